"""The learned prior of `BayesLTL` in plain NumPy; a part of `fastltl.reference`."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class LearnedPrior:
    """Learn the prior of `BayesLTL` in plain NumPy: `learn` a task, then read `mean`, `D`, `noise`.

    They are in units of the data; an intercept is the last entry. ``fastltl/_kernels/prior.py`` and
    ``fastltl/_kernels/bayes.py`` explain the notation.

    Examples
    --------
    >>> import numpy as np
    >>> from fastltl.reference import LearnedPrior
    >>> prior = LearnedPrior(fit_intercept=False)
    >>> _ = prior.learn(np.array([[1.0], [2.0]]), np.array([1.0, 2.1]))
    >>> prior.D.shape
    (1, 1)
    """

    m: Array
    c: Array
    KAPPAS = 2.0 ** np.arange(-3.0, 3.5, 0.5)

    def __init__(
        self, fit_mean: bool = True, fit_intercept: bool = True, half_life: float | None = None
    ) -> None:
        self.fit_mean, self.fit_intercept = fit_mean, fit_intercept
        self.decay = 1.0 if half_life is None else 0.5 ** (1 / half_life)
        self.t = self.N = self.information = self.yy = self.y_origin = self.y_scale = 0.0
        self.scored = self.unscored = self.new_rows = 0.0
        self.n_tasks, self.f = 0, 0.0

    def learn(self, X: Array, y: Array) -> float:
        """Learn from a task; return its leave-one-out error before."""
        self._set_units(X, y)
        self.n_tasks += 1
        if self.t == 0 and (y == self.y_origin).all():
            return 0.0
        X, y = self._design(X), (y - self.y_origin) / self.y_scale
        is_first = self.t == 0
        if is_first:
            self._start(X, y)
        self._count(X, y, self.decay)
        task = self._reduce(X, y)
        self.unscored += 1
        is_due = self.t <= 128 or self.unscored >= np.sqrt(self.t) / 4
        if is_due:
            fresh = self._leave_one_out(*task)
            if not is_first:
                squares = fresh[:, :, :3] @ [1, -2 * self.f, self.f**2]
                expected = float(np.sum(self.weights * squares))
            self.scored = self.scored * self.decay**self.unscored + 1
            rates = np.full(13, 3 / (self.scored + 2))
            rates[12] = min(1, 5 * rates[12])
            self.table += rates * (fresh - self.table)
            self.unscored = 0.0
            self._choose()
        in_use = self._update(*task, self._D(), self.s2 / self.kappa)
        if is_due:
            self._solve()
        error = expected if is_due and not is_first else in_use
        return error * self.y_scale**2

    def learn_again(self, X: Array, y: Array, decay: float) -> None:
        """Learn once more from a task, with S as the prior."""
        X, y = self._design(X), (y - self.y_origin) / self.y_scale
        self._count(X, y, decay)
        self._update(*self._reduce(X, y), self.S.copy(), self.s2)
        self._solve()

    @property
    def mean(self) -> Array:
        """The prior mean f m of the weights."""
        mean: Array = self._to_data() @ (self.f * self._latest().m)
        if self.fit_intercept:
            mean[-1] += self.y_origin
        return mean

    @property
    def D(self) -> Array:
        """The prior covariance of the weights, scaled like the z-scores of tasks."""
        T = self._to_data()
        D: Array = self.weight_inflation * (T @ self._latest()._D() @ T.T)
        return D

    @property
    def noise(self) -> float:
        """The noise variance in use, scaled so that z-scores have mean square one."""
        return float(self.inflation * self._latest().s2 / self.kappa * self.y_scale**2)

    def _latest(self) -> LearnedPrior:
        """Solve for mean and variances, if tasks have come since; return a copy."""
        latest = deepcopy(self)
        if self.unscored > 0:
            latest._solve()
        return latest

    def _to_data(self) -> Array:
        """The matrix that maps weights in units to weights of the data."""
        T = np.diag(self.y_scale / np.where(self.scale > 0, self.scale, np.inf))
        if self.fit_intercept:
            T[-1, :-1] = -self.origin[:-1] * np.diag(T)[:-1]
        return T

    @staticmethod
    def _origin(values: Array) -> float:
        if np.ptp(values) == 0:
            return float(values[0])
        mean, variance = values.mean(), values.var(ddof=1)
        return float(mean - 9 * variance / mean) if mean**2 > 9 * variance else 0.0

    def _set_units(self, X: Array, y: Array) -> None:
        n, p = X.shape
        if self.y_scale == 0:
            if self.n_tasks == 0:
                self.origin = np.zeros(p + self.fit_intercept)
            self.scale = np.zeros(p)
            if self.fit_intercept and (n > 1 or self.n_tasks == 0):
                self.origin[:p] = [self._origin(x) for x in X.T]
                self.y_origin = self._origin(y) if self.fit_mean else 0.0
            self.y_scale = float(np.sqrt(np.mean((y - self.y_origin) ** 2)))
            self.scale = np.append(self.scale, [1.0] * self.fit_intercept)
        sizes = np.sqrt(np.mean((X - self.origin[:p]) ** 2, axis=0))
        self.scale[:p] = np.where(self.scale[:p] > 0, self.scale[:p], sizes)

    def _design(self, X: Array) -> Array:
        if self.fit_intercept:
            X = np.column_stack([X, np.ones(len(X))])
        design: Array = (X - self.origin) / np.where(self.scale > 0, self.scale, np.inf)
        return design

    def _reduce(self, X: Array, y: Array) -> tuple[Array, Array, Array | None, Array]:
        if len(y) <= X.shape[1]:
            return X, y, None, np.empty(0)
        Q, R = np.linalg.qr(X)
        return R, Q.T @ y, Q, y - Q @ (Q.T @ y)

    def _start(self, X: Array, y: Array) -> None:
        d, n = X.shape[1], len(y)
        values, V = np.linalg.eigh(X @ X.T)
        values, squares = np.maximum(values, 0), (V.T @ y) ** 2
        best = np.inf
        for ratio in np.logspace(-3, 4, 29) / (values.mean() or 1):
            s2 = np.mean(squares / (ratio * values + 1))
            value = n * np.log(s2) + np.sum(np.log(ratio * values + 1))
            if value < best:
                best, self.tau, self.s2 = value, ratio * s2, max(s2, 1e-6)
        self.level, self.v, self.S = self.tau, np.full(d, self.tau), self.tau * np.eye(d)
        self.q, self.m, self.A, self.c = np.zeros(d), np.zeros(d), np.zeros((d, d)), np.zeros(d)
        self.F, self.b = np.zeros((d + 1, d + 1)), np.zeros(d + 1)
        self.table = np.zeros((4, len(self.KAPPAS), 13))

    def _count(self, X: Array, y: Array, decay: float) -> None:
        for name in ("t", "N", "information", "A", "c", "F", "b"):
            setattr(self, name, decay * getattr(self, name))
        self.t += 1
        self.N += len(y)
        self.yy += (float(np.mean(y**2)) - self.yy) * len(y) / self.N
        self.yy = max(self.yy, 1e-60)
        self.q += (np.mean(X**2, axis=0) - self.q) / self.t

    def _isotropic(self) -> Array:
        variances: Array = self.tau / np.where(self.q > 0, self.q, 1)
        if self.fit_intercept:
            variances[-1] = self.level
        return variances

    def _shares(self) -> Array:
        d = len(self.m)
        slight, strong = (nu * d / (nu * d + self.t) for nu in (0.06, 1.0))
        return np.array([[1 - slight, 0, slight], [1 - strong, 0, strong], [0, 1, 0], [0, 0, 1]])

    def _D(self) -> Array:
        D: Array = self.mixed[0] * self.S + np.diag(
            self.mixed[1] * self.v + self.mixed[2] * self._isotropic()
        )
        return D

    def _leave_one_out(self, R: Array, z: Array, Q: Array | None, rest: Array) -> Array:
        table, kappas = np.empty_like(self.table), self.KAPPAS[:, None]
        grams = [R @ self.S @ R.T, (R * self.v) @ R.T, (R * self._isotropic()) @ R.T]
        for row, share in zip(table, self._shares(), strict=True):
            gram = sum(a * G for a, G in zip(share, grams, strict=True))
            values, V = np.linalg.eigh(gram / self.s2)
            kept = 1 / (kappas * np.maximum(values, 0) + 1)
            zy, zm = V.T @ z, V.T @ (R @ self.m)
            ey, em, n = kept * zy, kept * zm, max(len(z), len(rest))
            row[:, 6], row[:, 7] = kept @ (zy * zm) / n, kept @ (zm * zm) / n
            if Q is None:
                left = kept @ (V**2).T
                ey, em = ey @ V.T, em @ V.T
            else:
                V = Q @ V
                left = 1 - (1 - kept) @ (V**2).T
                ey, em = ey @ V.T + rest, em @ V.T
            left = np.maximum(left, 1e-10)
            Rm, rr = R @ self.m, float(rest @ rest)
            row[:, 8], row[:, 12] = left.mean(axis=1), np.trace(gram) / n
            row[:, 9:12] = np.array([z @ z + rr, z @ Rm, Rm @ Rm]) / n
            ey, em, precision = ey / left, em / left, left * kappas / self.s2
            for i, product in enumerate((ey * ey, ey * em, em * em)):
                row[:, i], row[:, 3 + i] = product.mean(axis=1), (product * precision).mean(axis=1)
        z_squares = table[:, :, 3:6] @ [1, -2 * self.f, self.f**2]
        table[:, :, 3:6] *= np.minimum(1, 9 / np.maximum(z_squares, 9))[:, :, None]
        return table

    def _choose(self) -> None:
        T, shares, octaves = self.table, self._shares(), np.log2(self.KAPPAS)
        with np.errstate(divide="ignore", invalid="ignore"):
            best = (T[:, :, 1] + T[:, :, 6]) / ((T[:, :, 2] + T[:, :, 7]) * (1 + 1 / self.n_tasks))
        f = np.where(T[:, :, 1] + T[:, :, 6] > 0, np.minimum(best, 1), 0)
        powers = np.stack([np.ones_like(f), -2 * f, f**2], axis=2)
        errors = np.maximum(np.sum(T[:, :, :3] * powers, axis=2), 1e-12 * self.yy)
        penalised = errors * (1 + 4 * octaves**2 / self.N)
        penalised[2] *= 1 + 0.2 * len(self.m) / self.N
        weights = np.exp(-0.15 * self.N * np.log(penalised / penalised.min()))
        self.weights = weights / weights.sum()
        self.kappa = np.exp(np.sum(self.weights * np.log(self.KAPPAS)))
        self.mixed = np.sum(self.weights * self.KAPPAS, axis=1) @ shares / self.kappa
        self.f, self.error = float(np.sum(self.weights * f)), np.sum(self.weights * errors)
        z_square = np.sum(self.weights * np.sum(T[:, :, 3:6] * powers, axis=2))
        self.inflation = max(float(z_square), 1e-6)
        self.weight_inflation = self.inflation ** (1 - np.sum(self.weights * T[:, :, 8]))
        residual = np.sum(self.weights * np.sum(T[:, :, 9:12] * powers, axis=2))
        variance = np.sum(self.weights * self.KAPPAS * T[:, :, 12]) / self.kappa
        explained = max(residual - self.inflation * self.s2 / self.kappa, 1e-3 * residual)
        inflation = float(explained / variance) if variance > 0 else 1.0
        self.prior_inflation = min(max(inflation, 1e-6), 1e6)

    def _update(
        self, R: Array, z: Array, Q: Array | None, rest: Array, D: Array, noise: float
    ) -> float:
        d = len(self.m)
        M = R @ D @ R.T
        inverse = np.linalg.inv(M + (noise + 1e-14 * np.trace(M)) * np.eye(len(z)))
        r = z - self.f * (R @ self.m)
        if Q is None:
            errors = inverse @ r / np.diag(inverse)
        else:
            left = 1 + np.sum((Q @ (noise * inverse - np.eye(d))) * Q, axis=1)
            errors = (noise * (Q @ inverse @ r) + rest) / np.maximum(left, 1e-10)
        H, a, RD = R.T @ inverse @ R, D @ R.T @ inverse @ r, R @ D
        self.information += np.sum(H * D) / d
        gain = 0.7 + 1.3 * self.information / (self.information + 1.5 * d)
        rho = min(0.5, gain / (self.information + gain))
        S = (1 - rho) * self.S + rho * (D - RD.T @ inverse @ RD + np.outer(a, a))
        self.S = (S + S.T) / 2  # rounding errors in its skew part would grow
        if self.t > 1:
            self._add_moments(R, r, rest)
        if self.fit_mean:
            self.A += noise * H
            self.c += noise * (R.T @ inverse @ z)
            self.new_rows += len(errors)
        return float(np.mean(errors**2))

    def _solve(self) -> None:
        if self.t > 1:
            self._solve_variances()
        if self.fit_mean and self.new_rows >= min(len(self.m) / 12, self.N / 2):
            ridge = np.where(self.q > 0, self.q, 1) * self.s2 / self.kappa / self.yy
            ridge += 1e-12 * np.diag(self.A)
            self.m[:], self.new_rows = np.linalg.solve(self.A + np.diag(ridge), self.c), 0.0

    def _add_moments(self, R: Array, r: Array, rest: Array) -> None:
        (k, d), n = R.shape, max(len(r), len(rest))
        noise = max(self.s2, self.yy * d / (d + self.N))
        inverse = np.linalg.inv((R * self.v) @ R.T + noise * np.eye(k))
        e, B = inverse @ r, inverse @ R
        F = np.empty((d + 1, d + 1))
        F[:d, :d] = (R.T @ B) ** 2
        F[:d, d] = F[d, :d] = np.sum(B**2, axis=0)
        F[d, d] = np.sum(inverse**2) + (n - k) / noise**2
        self.F += F
        self.b += np.append((R.T @ e) ** 2, e @ e + rest @ rest / noise**2)

    def _solve_variances(self) -> None:
        d, yy, p = len(self.m), self.yy, len(self.m) - self.fit_intercept
        q = np.where(self.q > 0, self.q, 1)
        E, guess = np.zeros((3, d + 1)), yy * np.array([1 / d, 1, 1])
        E[0, :p], E[1, p:d], E[2, d] = 1 / q[:p], 1, 1
        x = np.array([self.tau, self.level, self.s2])
        x = self._descend(E @ self.F @ E.T, E @ self.b, x, guess, 2 / guess**2, 30)
        self.tau, self.level = max(x[0], 1e-6 * yy / d), max(x[1], 1e-9 * yy)
        guess = np.append(np.maximum(self._isotropic(), 1e-4 * yy / d / q), yy)
        anchors = np.append(np.ones(d), 2) / guess**2
        x = self._descend(self.F, self.b, np.append(self.v, self.s2), guess, anchors, 2)
        least = max(self.s2 / 4, 1e-6 * yy)
        self.v, self.s2 = x[:d], float(np.clip(x[d], least, 4 * self.s2))

    @staticmethod
    def _descend(F: Array, b: Array, x: Array, guess: Array, anchors: Array, sweeps: int) -> Array:
        F, b = F + np.diag(anchors), b + anchors * guess
        for _ in range(sweeps):
            for j in range(len(x)):
                c = b[j] - F[j] @ x + F[j, j] * x[j]
                x[j] = max(0.0, c / F[j, j])
                if j == len(x) - 1:
                    x[j] = (c + np.sqrt(c**2 + 8 * F[j, j])) / (2 * F[j, j])
        return x
