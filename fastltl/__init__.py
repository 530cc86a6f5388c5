"""Learn, task by task, a representation that makes ridge regression work on tasks not seen yet.

Names below are imported on first use, so that `import fastltl` takes no time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "BatchLTL": "batch",
    "ITL": "ridge",
    "MTL": "batch",
    "OnlineLTL": "online",
    "OnlineLTLPath": "path",
    "RepresentationRidge": "ridge",
    "Selection": "selection",
    "TaskSet": "tasks",
    "evaluate": "metrics",
    "load": "io.checkpoints",
    "open_stream": "io.streams",
    "project": "functional",
    "relative_improvement": "metrics",
    "ridge_weights": "functional",
    "select_lam": "selection",
    "task_gradient": "functional",
    "task_loss": "functional",
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
    from fastltl.batch import MTL, BatchLTL
    from fastltl.functional import project, ridge_weights, task_gradient, task_loss
    from fastltl.io.checkpoints import load
    from fastltl.io.streams import open_stream
    from fastltl.metrics import evaluate, relative_improvement
    from fastltl.online import OnlineLTL
    from fastltl.path import OnlineLTLPath
    from fastltl.ridge import ITL, RepresentationRidge
    from fastltl.selection import Selection, select_lam
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
