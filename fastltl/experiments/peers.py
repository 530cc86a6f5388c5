"""Fit the mixed models that others have written, to compare with."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastltl._validation import Array
from fastltl.experiments.trials import Split
from fastltl.tasks import TaskSet

#: Seconds after which a fit by R is given up.
R_TIMEOUT = 600
#: A column whose distance to the span of others is below this share of its size depends on them.
DEPENDENT = 1e-6

#: GPBoost fits many random effects faster in clusters of so many tasks, with the same likelihood.
TASKS_PER_CLUSTER = 20

#: Threads of a Dask worker must not redirect stdout at the same time.
_STDOUT = Lock()

Ints = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """The rows of several tasks, and the number of each row's task."""

    X: Array
    y: Array
    task: Ints


def rows_of(*parts: TaskSet) -> Rows:
    """Return the rows of tasks, numbered from 0 through all parts."""
    tasks = [task for part in parts for task in part]
    number = np.repeat(np.arange(len(tasks)), [len(y) for _, y in tasks])
    X, y = map(np.concatenate, zip(*tasks, strict=True))
    return Rows(X, y, number)


def drop_dependent(X: Array, backwards: bool = False) -> Array:
    """Drop the columns that depend on a constant and on columns that come before them."""
    columns = range(X.shape[1])
    sizes, rest = np.linalg.norm(X, axis=0), X - X.mean(axis=0)
    kept = []
    for j in reversed(columns) if backwards else columns:
        distance = np.linalg.norm(rest[:, j])
        if distance > DEPENDENT * sizes[j]:
            kept.append(j)
            direction = rest[:, j] / distance
            rest -= np.outer(direction, direction @ rest)
    return X[:, sorted(kept)]


def score_peer(fit: Callable[[Rows, Rows], Array], split: Split) -> Array:
    """Return the mean squared error of a mixed model on each new task.

    `fit` is fitted to the training tasks and the given rows of the new tasks, without columns that
    depend on others, and predicts the held-out rows.
    """
    given, held_out = split.trial.test
    fitted, new = rows_of(split.training, given), rows_of(held_out)
    X = drop_dependent(np.concatenate([fitted.X, new.X]), backwards=True)
    prediction = fit(
        fitted._replace(X=X[: len(fitted.y)]),
        new._replace(X=X[len(fitted.y) :], task=new.task + len(split.training)),
    )
    errors: Array = np.bincount(new.task, (new.y - prediction) ** 2) / held_out.sizes
    return errors


def missing_gpboost() -> str | None:
    """Return what has to be installed for GPBoost to be imported, None if it can be."""
    try:
        import gpboost  # noqa: F401
    except ImportError:
        return "pip install 'fastltl[peers]'"
    except OSError:  # its library does not load
        return "the library libomp (macOS: brew install libomp)"
    return None


def fit_gpboost(fitted: Rows, new: Rows, slopes: bool = True, **fit_options: Any) -> Array:
    """Fit random intercepts, and independent random slopes, by GPBoost; predict the new rows."""
    model = gpboost_model(fitted, slopes, **fit_options)
    with _STDOUT, redirect_stdout(io.StringIO()):
        found = model.predict(
            group_data_pred=new.task,
            group_rand_coef_data_pred=new.X if slopes else None,
            cluster_ids_pred=_clusters(new) if slopes else None,
            X_pred=_with_ones(new.X),
        )
    prediction: Array = found["mu"]
    return prediction


def gpboost_model(fitted: Rows, slopes: bool = True, **fit_options: Any) -> Any:
    """Fit random intercepts, and independent random slopes; return GPBoost's model.

    `fit_options` are arguments of GPBoost's `fit`. Slopes are fitted by Cholesky factors, one for
    each cluster of tasks, so that the time grows like the number of tasks. With one factor for all
    tasks, whose likelihood is the same, it grows like its square. GPBoost's default is iterative
    and approximate, and slower as well.
    """
    import gpboost

    options: dict[str, Any] = {}
    if slopes:
        n_features = fitted.X.shape[1]
        options |= {
            "group_rand_coef_data": fitted.X,
            "ind_effect_group_rand_coef": [1] * n_features,
            "cluster_ids": _clusters(fitted),
            "matrix_inversion_method": "cholesky",
        }
    log = io.StringIO()
    with _STDOUT, redirect_stdout(log):  # GPBoost prints its warnings
        model = gpboost.GPModel(
            group_data=fitted.task,
            likelihood="gaussian",
            num_parallel_threads=1,  # more only slow it down at these sizes
            **options,
        )
        model.fit(y=fitted.y, X=_with_ones(fitted.X), **fit_options)
    if "did not converge" in log.getvalue():
        raise RuntimeError("the maximal number of iterations was reached")
    return model


def _clusters(rows: Rows) -> npt.NDArray[np.int32]:
    """Return the number of each row's cluster; random effects of clusters are independent."""
    clusters: npt.NDArray[np.int32] = (rows.task // TASKS_PER_CLUSTER).astype(np.int32)
    return clusters


def _with_ones(X: Array) -> Array:
    return np.column_stack([np.ones(len(X)), X])


#: Fits the model; the code after it sets `found`.
R_FIT = """
suppressMessages(library(lme4))
fitted <- read.csv("fitted.csv")
terms <- paste(c("1", setdiff(names(fitted), c("task", "y"))), collapse = " + ")
formula <- as.formula(paste0("y ~ ", terms, " + (", terms, " || task)"))
time <- system.time(model <- lmer(formula, fitted))
if (model@optinfo$conv$opt != 0) stop("the optimizer did not converge")
"""
R_PREDICT = 'found <- predict(model, read.csv("new.csv"))'
#: CPU seconds, seconds, the noise, then the means and variances of intercept and slopes.
R_ESTIMATES = """
parts <- as.data.frame(VarCorr(model))
variances <- parts$vcov[match(names(fixef(model)), parts$var1)]
found <- c(sum(time[1:2]), time[[3]], sigma(model)^2, fixef(model), variances)
"""
R_WRITE = """
write.table(format(found, digits = 17), "found.txt",
            quote = FALSE, row.names = FALSE, col.names = FALSE)
"""


def missing_lme4() -> str | None:
    """Return what has to be installed for lme4 to run, None if it can."""
    if shutil.which("Rscript"):
        command = ["Rscript", "-e", "stopifnot(requireNamespace('lme4'))"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return None
    return "Rscript with the package lme4"


def fit_lme4(fitted: Rows, new: Rows) -> Array:
    """Fit a random intercept and independent random slopes by R's lme4; predict the new rows."""
    return run_lme4(R_PREDICT, fitted=fitted, new=new)


def run_lme4(code: str, **tables: Rows) -> Array:
    """Fit the table `fitted` by lme4, run R code that sets `found`, and return its numbers."""
    with tempfile.TemporaryDirectory() as folder:
        for name, rows in tables.items():
            header = ",".join([*(f"x{j}" for j in range(rows.X.shape[1])), "y", "task"])
            table = np.column_stack([rows.X, rows.y, rows.task])
            path = Path(folder, f"{name}.csv")
            np.savetxt(path, table, "%.17g", delimiter=",", header=header, comments="")
        script = Path(folder, "fit.R")
        script.write_text(f"{R_FIT}{code}{R_WRITE}", encoding="utf-8")
        options: Any = {"capture_output": True, "text": True, "timeout": R_TIMEOUT}
        done = subprocess.run(["Rscript", script.name], cwd=folder, check=False, **options)
        if done.returncode != 0:
            raise RuntimeError(" ".join(done.stderr.split()))
        found: Array = np.loadtxt(Path(folder, "found.txt"), ndmin=1)
    return found
