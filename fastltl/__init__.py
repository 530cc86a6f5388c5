"""Learn, task by task, a representation that makes ridge regression work on tasks not seen yet.

Names below are imported on first use, so that `import fastltl` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_NAMES = {
    "batch": ("BatchLTL", "MTL"),
    "bayes": ("BayesLTL",),
    "experiments.compare": ("compare",),
    "functional": ("project", "ridge_weights", "task_gradient", "task_loss"),
    "io.checkpoints": ("load",),
    "io.streams": ("open_stream",),
    "metrics": ("evaluate", "relative_improvement"),
    "online": ("OnlineLTL",),
    "path": ("OnlineLTLPath",),
    "ridge": ("ITL", "RepresentationRidge"),
    "selection": ("Selection", "select_lam"),
    "tasks": ("TaskSet",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("bounds", "datasets", "distributed", "plots", "reference")

__all__ = ["__version__", *_HOMES, *_MODULES]

if TYPE_CHECKING:
    from fastltl import (
        bounds as bounds,
        datasets as datasets,
        distributed as distributed,
        plots as plots,
        reference as reference,
    )
    from fastltl.batch import MTL as MTL, BatchLTL as BatchLTL
    from fastltl.bayes import BayesLTL as BayesLTL
    from fastltl.experiments.compare import compare as compare
    from fastltl.functional import (
        project as project,
        ridge_weights as ridge_weights,
        task_gradient as task_gradient,
        task_loss as task_loss,
    )
    from fastltl.io.checkpoints import load as load
    from fastltl.io.streams import open_stream as open_stream
    from fastltl.metrics import evaluate as evaluate, relative_improvement as relative_improvement
    from fastltl.online import OnlineLTL as OnlineLTL
    from fastltl.path import OnlineLTLPath as OnlineLTLPath
    from fastltl.ridge import ITL as ITL, RepresentationRidge as RepresentationRidge
    from fastltl.selection import Selection as Selection, select_lam as select_lam
    from fastltl.tasks import TaskSet as TaskSet


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"fastltl.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fastltl' has no attribute {name!r}")
    value = getattr(import_module(f"fastltl.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
