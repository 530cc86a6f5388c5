"""Compare BayesLTL with mixed models: ``python -m benchmarks.peers [PROBLEM ...]``.

It prints Markdown tables: seconds to fit, the error on new tasks, and how many of their targets the
95 % intervals contain. Problems are numbers of tasks with random slopes, and names of grouped
tables. Methods are fitted to T tasks. Then half of the rows of each new task are given and the
others predicted; new tasks are none of the T. A mixed model predicts by the posterior of a new
task's weights under its estimates.
"""

import sys
import time
import warnings
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import fastltl as ltl
from benchmarks.timing import _Comparison
from fastltl.experiments.peers import (
    R_ESTIMATES,
    Rows,
    fit_gpboost,
    gpboost_model,
    missing_gpboost,
    missing_lme4,
    rows_of,
    run_lme4,
)
from fastltl.experiments.prior import load_table, split_table
from fastltl.experiments.trials import LEVELS, coverage
from fastltl.tasks import TaskSet

N_FEATURES, N_SAMPLES, NOISE = 10, 20, 0.5
N_NEW_TASKS = 500
PROBLEMS = ("100", "1000", "10000", "100000", "Exam", "bdf", "Chem97")

BAYES, GPBOOST, LME4 = "`BayesLTL`", "GPBoost, diagonal slopes", "lme4, diagonal slopes"
MIXEDLM, PATH = "MixedLM, full slopes", "`OnlineLTLPath`, then `OnlineLTL`"
ALONE, POOLED = "each task alone (`ITL`)", "one least squares for all"
#: Methods that would take more than ten minutes with more tasks.
MOST_TASKS = {LME4: 10_000, MIXEDLM: 1000}
#: Arguments of GPBoost's `fit`: half as long as with its default, L-BFGS, to the same optimum.
GPBOOST_FIT = {"params": {"optimizer_cov": "fisher_scoring"}}
#: A method is fitted so many times, but not again after so many CPU seconds.
REPEATS, ENOUGH = 5, 5.0


def draw_tasks(n_tasks, n_samples, seed=0):
    """Draw tasks with random intercepts and slopes that vary by 0.1 to 1, and noise."""
    mean = np.random.default_rng(0).standard_normal(N_FEATURES + 1)
    rng, deviations = np.random.default_rng([seed, 1]), np.linspace(0.1, 1, N_FEATURES + 1)
    weights = mean + deviations * rng.standard_normal((n_tasks, N_FEATURES + 1))
    X = rng.standard_normal((n_tasks, n_samples, N_FEATURES))
    y = weights[:, :1] + np.einsum("tnd,td->tn", X, weights[:, 1:])
    y += NOISE * rng.standard_normal(y.shape)
    groups = np.repeat(np.arange(n_tasks), n_samples)
    return TaskSet.from_groups(X.reshape(-1, N_FEATURES), y.ravel(), groups)


class Estimates(NamedTuple):
    """A mixed model: weights of a task ~ N(mean, covariance), the intercept last, and noise."""

    mean: np.ndarray
    covariance: np.ndarray
    noise: float
    seconds: tuple[float, float] | None = None  #: CPU and wall, if it was fitted elsewhere
    converged: bool = True

    def score(self, given, held_out):
        """Return the mean squared error on held-out rows, and the coverage of 95 % intervals."""
        squares, variances = [], []
        for (X, y), (X_new, y_new) in zip(given, held_out, strict=True):
            A, B = with_ones(X), with_ones(X_new)
            AS = A @ self.covariance
            gain = np.linalg.solve(AS @ A.T + self.noise * np.eye(len(y)), AS).T
            weights = self.mean + gain @ (y - A @ self.mean)
            posterior = self.covariance - gain @ AS
            squares.append((y_new - B @ weights) ** 2)
            variances.append(np.sum(B @ posterior * B, axis=1) + self.noise)
        squares, variances = np.concatenate(squares), np.concatenate(variances)
        return squares.mean(), np.mean(squares <= 1.96**2 * variances)


def with_ones(X):
    return np.column_stack([X, np.ones(len(X))])


class Problem(NamedTuple):
    """Tasks to fit, also as rows, and the given and held-out rows of new tasks."""

    tasks: TaskSet
    rows: Rows
    given: TaskSet
    held_out: TaskSet


def slopes_problem(n_tasks):
    tasks = draw_tasks(n_tasks, N_SAMPLES)
    new = draw_tasks(N_NEW_TASKS, N_SAMPLES, seed=1)
    return Problem(tasks, rows_of(tasks), *new.split_samples(0.5, random_state=0))


def table_problem(name):
    """Split a standardised table into as many tasks to fit as new tasks."""
    split = split_table(load_table(name), np.random.default_rng(0))
    return Problem(split.training, rows_of(split.training), *split.trial.test)


def load_problem(name):
    return slopes_problem(int(name)) if name.isdigit() else table_problem(name)


def estimate_gpboost(problem):
    """Fit a random intercept and independent random slopes by GPBoost."""
    model = gpboost_model(problem.rows, **GPBOOST_FIT)
    noise, *variances = model.get_cov_pars(format_pandas=False)
    mean = model.get_coef(format_pandas=False)
    return Estimates(np.roll(mean, -1), np.diag(np.roll(variances, -1)), noise)


def estimate_lme4(problem):
    """Fit a random intercept and independent random slopes by lme4; only `lmer` is timed."""
    cpu, wall, noise, *rest = run_lme4(R_ESTIMATES, fitted=problem.rows)
    mean, variances = np.split(np.array(rest), 2)
    return Estimates(np.roll(mean, -1), np.diag(np.roll(variances, -1)), noise, (cpu, wall))


def estimate_mixedlm(problem):
    """Fit a random intercept and slopes with all correlations by statsmodels."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    X, y, task = problem.rows
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each optimizer that fails warns; the last one counts
        found = MixedLM(y, with_ones(X), groups=task, exog_re=with_ones(X)).fit()
    return Estimates(found.fe_params, found.cov_re, found.scale, converged=found.converged)


def estimate_pooled(problem):
    """Fit one regression to the rows of all tasks; what is given of a new task does not matter."""
    X = with_ones(problem.rows.X)
    mean, (residual, *_) = np.linalg.lstsq(X, problem.rows.y)[:2]
    return Estimates(mean, np.zeros((len(mean), len(mean))), residual / len(X))


def fit_bayes(problem):
    return ltl.BayesLTL().fit(problem.tasks)


def fit_path(problem):
    """Choose lam by a third of the tasks, and learn again from all."""
    n_learned = round(2 * len(problem.tasks) / 3)
    validation = problem.tasks[n_learned:].split_samples(0.5, random_state=0)
    path = ltl.OnlineLTLPath(validation=validation, fit_intercept=True, n_threads=1)
    lam = path.fit(problem.tasks[:n_learned]).best_lam_
    return ltl.OnlineLTL(lam, fit_intercept=True).fit(problem.tasks)


def fit_alone(problem):
    """Choose lam of ridge regression on each task by halves of up to 1,000 tasks."""
    halves = problem.tasks[:1000].split_samples(0.5, random_state=0)
    learner = ltl.ITL(fit_intercept=True)
    return ltl.select_lam(learner, problem.tasks[:1000], halves, n_threads=1).learner


METHODS = {
    BAYES: fit_bayes,
    GPBOOST: estimate_gpboost,
    LME4: estimate_lme4,
    MIXEDLM: estimate_mixedlm,
    PATH: fit_path,
    ALONE: fit_alone,
    POOLED: estimate_pooled,
}


def missing_peers():
    """Return what has to be installed for each mixed model that cannot be fitted here.

    The others are imported, so that this is not timed.
    """
    missing = {GPBOOST: missing_gpboost(), LME4: missing_lme4()}
    try:
        import statsmodels.regression.mixed_linear_model  # noqa: F401
    except ImportError:
        missing[MIXEDLM] = "pip install 'fastltl[peers]'"
    return {name: needed for name, needed in missing.items() if needed}


class Result(NamedTuple):
    """What a method does on a problem; a coverage of None means that it has no intervals."""

    cpu: float
    wall: float
    mse: float
    coverage: float | None
    converged: bool


def timed(fit, problem):
    """Fit a method; return the model, and its CPU seconds and seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    model = fit(problem)
    found = time.process_time() - cpu, time.perf_counter() - wall
    return model, getattr(model, "seconds", None) or found


def score(model, problem):
    """Return the mean squared error on held-out rows, and the coverage of 95 % intervals."""
    given, held_out = problem.given, problem.held_out
    if isinstance(model, Estimates):
        return model.score(given, held_out)
    errors, sizes = ltl.evaluate(model, given, held_out), held_out.sizes
    is_bayes = isinstance(model, ltl.BayesLTL)
    covered = coverage(model, given, held_out)[LEVELS.index(95)] if is_bayes else None
    return errors @ sizes / sizes.sum(), covered


def compare(problem, methods, repeats=REPEATS):
    """Return the `Result` of each method; BayesLTL is timed before each run of another one."""
    models, times = {}, {name: [] for name in methods}

    def run(name):
        models[name], seconds = timed(METHODS[name], problem)
        times[name].append(seconds)

    for _ in range(repeats):
        for name in methods:
            if name != BAYES and sum(cpu for cpu, _ in times[name]) < ENOUGH:
                run(BAYES)
                run(name)
    return {
        name: Result(
            *np.median(times[name], axis=0),
            *score(models[name], problem),
            getattr(models[name], "converged", True),
        )
        for name in methods
    }


def compile_kernels():
    problem = slopes_problem(30)
    for fit in (fit_bayes, fit_path, fit_alone):
        score(fit(problem), problem)


def format_table(title, results, cell):
    """Format a Markdown table with a row for each method and a column for each problem."""
    names = [f"T = {int(name):,}" if name.isdigit() else name for name in results]
    lines = [f"| {title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for method in METHODS:
        found = [result.get(method) for result in results.values()]
        cells = ["–" if one is None else cell(one) for one in found]
        if set(cells) != {"–"}:
            lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_seconds(result):
    cpu, wall = (f"{s:.0f}" if s >= 10 else f"{s:.2g}" for s in (result.cpu, result.wall))
    return f"{cpu} ({wall})" + "*" * (not result.converged)


def format_coverage(result):
    return "–" if result.coverage is None else f"{100 * result.coverage:.1f}"


TABLES = {
    "CPU seconds to fit (wall)": format_seconds,
    "MSE on new tasks": lambda result: f"{result.mse:.4f}",
    "coverage of 95 % intervals, %": format_coverage,
}


def main(names, methods=METHODS):
    """Print the tables of problems, by default of all."""
    missing = missing_peers()
    for name, needed in missing.items():
        print(f"{name} is left out: it needs {needed}.\n")
    methods = [name for name in methods if name not in missing]
    results = {}
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the best lam")  # at the edge of the candidates
        compile_kernels()
        for name in names or PROBLEMS:
            problem = load_problem(name)
            n_tasks = len(problem.tasks)
            tried = [one for one in methods if n_tasks <= MOST_TASKS.get(one, n_tasks)]
            results[name] = compare(problem, tried)
            for method, found in results[name].items():
                print(name, method, found, file=sys.stderr, flush=True)
    for title, cell in TABLES.items():
        print(format_table(title, results, cell), end="\n\n")
    print("One thread. –: takes more than ten minutes, or has no intervals. *: did not converge.")


def bayes_error(given, held_out):
    return ltl.evaluate(ltl.BayesLTL().fit(given), given, held_out).mean()


def gpboost_error(fitted, new):
    return np.mean((new.y - fit_gpboost(fitted, new, **GPBOOST_FIT)) ** 2)


class RandomSlopes(_Comparison):
    """Time learning from T tasks and predicting further rows of each; d = 10, n = 20.

    The result is the mean squared error of the predictions.
    """

    unit = "BayesLTL / GPBoost"
    tolerance = 0.05
    params = ([100, 1000],)
    param_names = ("T",)

    def setup_cache(self):
        tasks = {n_tasks: draw_tasks(n_tasks, 2 * N_SAMPLES) for n_tasks in self.params[0]}
        return {n_tasks: one.split_samples(0.5, random_state=0) for n_tasks, one in tasks.items()}

    def runs(self, data, n_tasks):
        if find_spec("gpboost") is None:
            raise NotImplementedError("gpboost is not installed")  # asv then skips the suite
        self.repeats = {100: 15, 1000: 3}[n_tasks]
        given, held_out = data[n_tasks]
        return (
            partial(bayes_error, given, held_out),
            partial(gpboost_error, rows_of(given), rows_of(held_out)),
        )

    def track_mse_fastltl(self, data, n_tasks):
        """Return the mean squared error of BayesLTL on held-out rows."""
        return self.fast()

    def track_mse_gpboost(self, data, n_tasks):
        """Return the mean squared error of the mixed model on held-out rows."""
        return self.plain()

    track_mse_fastltl.unit = track_mse_gpboost.unit = "mean squared error"


if __name__ == "__main__":
    main(sys.argv[1:])
