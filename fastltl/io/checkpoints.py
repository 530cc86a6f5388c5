"""`load`: a learner from the file that its `save` wrote."""

from __future__ import annotations

from os import PathLike
from typing import Any

from fastltl._validation import reason_of
from fastltl.batch import MTL, BatchLTL
from fastltl.independent import ITL
from fastltl.io.storage import Checkpoint, read_checkpoint
from fastltl.online import OnlineLTL
from fastltl.path import OnlineLTLPath
from fastltl.ridge import RepresentationRidge

LEARNERS: dict[str, type[Any]] = {
    learner.__name__: learner
    for learner in (OnlineLTL, OnlineLTLPath, BatchLTL, MTL, ITL, RepresentationRidge)
}


def load(path: str | PathLike[str]) -> Any:
    """A learner as it was when it was saved: what it learns from here on has the same bits.

    Loading runs no code from the file. A file that is cut short, damaged, of another kind or of a
    newer format is refused with a ValueError that says which.

    Parameters
    ----------
    path : str or path
        A file that the `save` of a learner wrote.

    Returns
    -------
    OnlineLTL, OnlineLTLPath, BatchLTL, MTL, ITL or RepresentationRidge

    Examples
    --------
    >>> import os, tempfile
    >>> import fastltl as ltl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "ridge.npz")
    ...     ltl.RepresentationRidge(lam=0.5).fit([[1.0], [1.0]], [3.0, 3.0]).save(path)
    ...     model = ltl.load(path)
    >>> model
    RepresentationRidge(lam=0.5)
    >>> model.predict([[2.0]])
    array([4.])
    """
    return restored(read_checkpoint(path), path)


def restored(checkpoint: Checkpoint, path: str | PathLike[str]) -> Any:
    """The learner of a checkpoint that a file had."""
    try:
        learner = LEARNERS[checkpoint.learner](**checkpoint.parameters)
        if checkpoint.state is not None:
            learner._restore(checkpoint.state)
    except Exception as error:  # whatever it is, the file is what is wrong
        raise ValueError(
            f"{path} holds no {checkpoint.learner} that can be read ({reason_of(error)})."
        ) from error
    return learner
