"""Learn, task by task, a representation that makes ridge regression work on tasks not seen yet.

Everything below is loaded on first use, so that importing the package costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "BatchLTL": "learners.batch",
    "ITL": "learners.independent",
    "MTL": "learners.batch",
    "OnlineLTL": "learners.online",
    "OnlineLTLPath": "path",
    "RepresentationRidge": "learners.ridge",
    "Selection": "selection",
    "TaskSet": "tasks",
    "evaluate": "evaluation",
    "load": "checkpoints",
    "open_stream": "streams",
    "project": "representation",
    "relative_improvement": "evaluation",
    "ridge_weights": "representation",
    "select_lam": "selection",
    "task_gradient": "representation",
    "task_loss": "representation",
}
_MODULES = ("bounds", "datasets", "distributed", "reference")

__all__ = [
    "ITL",
    "MTL",
    "BatchLTL",
    "OnlineLTL",
    "OnlineLTLPath",
    "RepresentationRidge",
    "Selection",
    "TaskSet",
    "__version__",
    "bounds",
    "datasets",
    "distributed",
    "evaluate",
    "load",
    "open_stream",
    "project",
    "reference",
    "relative_improvement",
    "ridge_weights",
    "select_lam",
    "task_gradient",
    "task_loss",
]

if TYPE_CHECKING:
    from fastltl import bounds, datasets, distributed, reference
    from fastltl.checkpoints import load
    from fastltl.evaluation import evaluate, relative_improvement
    from fastltl.learners.batch import MTL, BatchLTL
    from fastltl.learners.independent import ITL
    from fastltl.learners.online import OnlineLTL
    from fastltl.learners.ridge import RepresentationRidge
    from fastltl.path import OnlineLTLPath
    from fastltl.representation import project, ridge_weights, task_gradient, task_loss
    from fastltl.selection import Selection, select_lam
    from fastltl.streams import open_stream
    from fastltl.tasks import TaskSet


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
