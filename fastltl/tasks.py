"""Many small regression tasks of different sizes, packed into two arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fastltl._columns import group_codes
from fastltl._frames import encoded_rows, import_pandas, label_column, names_of
from fastltl._objective import (
    Indices,
    MeanObjective,
    Names,
    ReducedTasks,
    TaskCollection,
    reduce_tasks,
)
from fastltl._validation import (
    Array,
    as_floats,
    as_objects,
    check_generator,
    check_matrix,
    check_positive,
    check_target,
)

Task = tuple[Array, Array]

#: Numbers in a block of tasks: it should be long next to a call from Python, which takes
#: microseconds, and short for somebody who waits after Ctrl-C.
BLOCK_NUMBERS = 2**17


class TaskSet(TaskCollection):
    """Immutable sequence of tasks (X, y) that share their features but not their sizes.

    One array holds the rows of all tasks, one after another, and a second array the targets.
    Tasks and slices of tasks are views. All arrays are float64 and read-only.

    Parameters
    ----------
    tasks : iterable of (X, y)
        X is array-like of shape (n, d), y of shape (n,). n may differ from task to task.
    labels : sequence of hashable, optional
        One label per task, by default 0, 1, 2, ...

    Attributes
    ----------
    n_features : int
        Number of features, the same in every task.
    feature_names : tuple of str or None
        Names of the features, if the inputs had any.
    labels : ndarray of object
        Label of each task.
    sizes : ndarray of int
        Number of samples of each task.

    Examples
    --------
    >>> import numpy as np
    >>> import fastltl as ltl
    >>> ts = ltl.TaskSet([(np.ones((3, 2)), np.ones(3)), (np.zeros((1, 2)), np.zeros(1))])
    >>> ts
    TaskSet(2 tasks, 2 features, 4 samples)
    >>> X, y = ts[0]
    >>> X.shape, ts.sizes, ts[1:].labels
    ((3, 2), array([3, 1]), array([1], dtype=object))
    """

    __slots__ = ("_X", "_labels", "_names", "_offsets", "_y")

    def __init__(self, tasks: Iterable[Any], labels: Sequence[Hashable] | None = None) -> None:
        check_iterable(tasks, "tasks")
        checked: list[Task] = []
        first: Names = None  # names of the first task that has any
        for i, task in enumerate(tasks):
            width = checked[0][0].shape[1] if checked else None
            checked.append(check_task(task, f"task {i}", width))
            names = names_of(task[0])
            if first and names and names != first:
                raise ValueError(
                    f"task {i}: feature names should match those of the first tasks "
                    f"({', '.join(first)}), got {', '.join(names)}."
                )
            first = first or names
        if not checked:
            raise ValueError("tasks must hold at least one task (X, y), got none.")
        if labels is None:
            labels = range(len(checked))
        elif not isinstance(labels, Sized):
            raise TypeError(f"labels must be a sequence, got {type(labels).__name__}.")
        elif len(labels) != len(checked):
            raise ValueError(
                f"labels must have one entry for each of the {len(checked)} tasks, "
                f"got {len(labels)}."
            )
        X, y = map(np.concatenate, zip(*checked, strict=True))
        offsets = np.cumsum([0] + [len(y) for _, y in checked])
        self._pack(X, y, offsets, as_objects(labels), first)

    def _pack(
        self, X: Array, y: Array, offsets: Indices, labels: npt.NDArray[np.object_], names: Names
    ) -> None:
        """Store the arrays, without a copy, and make them read-only."""
        self._X, self._y, self._offsets, self._labels, self._names = X, y, offsets, labels, names
        for array in (X, y, offsets, labels):
            array.flags.writeable = False

    @classmethod
    def _packed(cls, *arrays: Any) -> TaskSet:
        """Create a TaskSet from the arguments of `_pack`."""
        tasks = cls.__new__(cls)
        tasks._pack(*arrays)
        return tasks

    @classmethod
    def from_groups(cls, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike) -> TaskSet:
        """Create one task from the rows of each group; the rows need not be adjacent.

        Tasks are ordered by the first appearance of their groups and labelled by them. Rows keep
        their order within a task.

        Examples
        --------
        >>> import fastltl as ltl
        >>> ts = ltl.TaskSet.from_groups([[1], [2], [3]], [0, 1, 2], ["b", "a", "b"])
        >>> list(ts.labels), ts[0][0].ravel()
        (['b', 'a'], array([1., 3.]))
        """
        names = names_of(X)
        X = check_matrix(X)
        y = check_target(y, len(X))
        return cls._grouped(X, y, *group_codes(groups, len(X), "groups"), names)

    @classmethod
    def from_frame(
        cls,
        df: Any,
        task: str,
        target: str,
        features: Sequence[str] | None = None,
        *,
        drop: Sequence[str] = (),
    ) -> TaskSet:
        """Create tasks from a table with a task column, a target column and feature columns.

        Numbers become features unchanged, and booleans 0 and 1. A column of text or categories
        becomes one indicator column of zeros and ones for each of its values, named
        ``column=value``. Dates and missing values are an error. Columns that look like row numbers
        (20 or more consecutive integers) or identifiers (distinct texts, or distinct integers with
        a name such as id) are left out with a warning, unless `features` names them.

        Parameters
        ----------
        df : data frame
            A pandas, polars or pyarrow table, a dict of arrays or, if pyarrow is installed, any
            object with ``__dataframe__``.
        task, target : str
            Names of the columns that hold the task and the target of each row.
        features : sequence of str, optional
            Names of the columns to learn from, by default all others. ``column=value`` is the
            indicator of a value: `feature_names` of other tasks encode a table like theirs.
        drop : sequence of str
            Names of columns to ignore.

        Examples
        --------
        >>> import fastltl as ltl
        >>> df = {"school": ["A", "A", "B"], "hours": [1, 2, 3], "score": [2.0, 4.0, 6.0]}
        >>> ltl.TaskSet.from_frame(df, task="school", target="score")
        TaskSet(2 tasks, 1 features, 3 samples)
        >>> df["sex"] = ["F", "M", "F"]
        >>> ltl.TaskSet.from_frame(df, task="school", target="score").feature_names
        ('hours', 'sex=F', 'sex=M')
        """
        return cls._grouped(*encoded_rows(df, task, target, features, drop))

    def to_frame(self, task: str = "task", target: str = "target") -> Any:
        """Return a pandas data frame of all rows: task, target and features, task after task.

        `TaskSet.from_frame` makes the same tasks of it, if their labels are distinct.

        Parameters
        ----------
        task, target : str
            Names of the columns of the labels and of the targets. Features without names are
            called x0, x1, ...

        Examples
        --------
        >>> import fastltl as ltl
        >>> tasks = ltl.TaskSet([([[1.0], [2.0]], [3.0, 4.0]), ([[5.0]], [6.0])], labels=["a", "b"])
        >>> print(tasks.to_frame(task="school", target="score"))
          school  score   x0
        0      a    3.0  1.0
        1      a    4.0  2.0
        2      b    6.0  5.0
        """
        names = self._names or tuple(f"x{j}" for j in range(self.n_features))
        for argument, name, others in (("task", task, (target, *names)), ("target", target, names)):
            if not isinstance(name, str) or name in others:
                raise ValueError(
                    f"{argument} must be a string that names no other column, got {name!r}."
                )
        df = import_pandas().DataFrame(self._X.copy(), columns=list(names))
        df.insert(0, target, self._y.copy())
        df.insert(0, task, label_column(np.repeat(self._labels, self.sizes)))
        return df

    @classmethod
    def _grouped(
        cls, X: Array, y: Array, codes: Indices, labels: list[Hashable], names: Names
    ) -> TaskSet:
        """Create tasks from rows, given the index of each row's task."""
        order = np.argsort(codes, kind="stable")
        sizes = np.bincount(codes, minlength=len(labels))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls._packed(X[order], y[order], offsets, as_objects(labels), names)

    def __len__(self) -> int:
        return len(self._labels)

    def __iter__(self) -> Iterator[Task]:
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, which: int | np.integer) -> Task: ...
    @overload
    def __getitem__(self, which: slice | npt.ArrayLike) -> TaskSet: ...

    def __getitem__(self, which: Any) -> Task | TaskSet:
        """Return a task for an integer, a TaskSet for a slice, a list of integers or a mask."""
        try:
            i = range(len(self))[operator.index(which)]
        except TypeError:
            pass  # not an integer
        except IndexError:
            raise IndexError(f"there are {len(self)} tasks, got the index {which}.") from None
        else:
            rows = slice(self._offsets[i], self._offsets[i + 1])
            return self._X[rows], self._y[rows]
        chosen = np.arange(len(self))[which]
        if chosen.ndim != 1:
            raise IndexError(
                f"index must be an integer, a slice, a list of integers or a mask, got {which!r}."
            )
        if isinstance(which, slice) and which.step in (None, 1):
            offsets = self._offsets[which.indices(len(self))[0] :][: len(chosen) + 1]
            start, stop = offsets[0], offsets[-1]
            X, y, labels = self._X[start:stop], self._y[start:stop], self._labels[which]
            return self._packed(X, y, offsets - start, labels, self._names)
        indices = [np.arange(self._offsets[i], self._offsets[i + 1]) for i in chosen]
        return self._take(indices, self._labels[chosen])

    def __repr__(self) -> str:
        return f"TaskSet({len(self)} tasks, {self.n_features} features, {len(self._y)} samples)"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._packed, (self._X, self._y, self._offsets, self._labels, self._names)

    def blocks(self) -> Iterator[tuple[Array, Array, Indices]]:
        """Iterate over writable copies of X, y and offsets of successive tasks."""
        codes = self._offsets[:-1] // max(1, BLOCK_NUMBERS // self.n_features)
        cuts = np.flatnonzero(np.diff(codes)) + 1
        for lo, hi in pairwise([0, *cuts.tolist(), len(self)]):
            part = self[lo:hi]
            # All writable, as in a stream: other types would compile the kernels again.
            yield part._X.copy(), part._y.copy(), part._offsets.copy()

    @property
    def n_features(self) -> int:
        """Number of features, the same in every task."""
        return int(self._X.shape[1])

    @property
    def sizes(self) -> Indices:
        """Number of samples of each task."""
        return np.diff(self._offsets)

    @property
    def labels(self) -> npt.NDArray[np.object_]:
        """Label of each task."""
        return self._labels

    @property
    def feature_names(self) -> Names:
        """Names of the features, or None if the inputs had none."""
        return self._names

    def with_names(self, names: Sequence[str]) -> TaskSet:
        """Return the same tasks with these feature names."""
        return self._packed(self._X, self._y, self._offsets, self._labels, tuple(names))

    def map_inputs(self, change: Callable[[Array], npt.ArrayLike]) -> TaskSet:
        """Replace the inputs X by `change(X)`, called once with the rows of all tasks.

        Examples
        --------
        >>> import numpy as np
        >>> import fastltl as ltl
        >>> ts = ltl.TaskSet([(np.ones((2, 3)), np.ones(2))])
        >>> ts.map_inputs(lambda X: X[:, :2])
        TaskSet(1 tasks, 2 features, 2 samples)
        """
        X = check_matrix(change(self._X))
        if len(X) != len(self._X):
            raise ValueError(f"change must keep all {len(self._X)} rows, got {len(X)}.")
        names = self._names if X.shape[1] == self.n_features else None
        return self._packed(X.copy(), self._y, self._offsets, self._labels, names)

    def reduced(self, fit_intercept: bool, n_threads: int) -> ReducedTasks:
        """Reduce each task, centred if `fit_intercept`, to as many rows as its inputs' rank."""
        return reduce_tasks(self._X, self._y, self._offsets, fit_intercept, n_threads)

    @property
    def largest_target(self) -> float:
        """Largest absolute target, or 1 if all targets are 0."""
        return float(np.abs(self._y).max()) or 1.0

    def mean_objective(
        self,
        regularized: bool,
        fit_intercept: bool,
        n_threads: int,
        target_unit: float | None = None,
    ) -> MeanObjective:
        """Create the objective of the batch learners, a mean over the tasks.

        Targets are divided by `target_unit`, by default `largest_target`.
        """
        unit = self.largest_target if target_unit is None else target_unit
        in_units = self._y / unit
        in_units.flags.writeable = False  # like X; another type would compile the kernels again
        reduced = reduce_tasks(self._X, in_units, self._offsets, fit_intercept, n_threads)
        return MeanObjective(reduced, unit, regularized, n_threads)

    def split(
        self, fractions: Sequence[float], random_state: int | np.random.Generator | None = None
    ) -> tuple[TaskSet, ...]:
        """Split the tasks at random into parts of the given fractions.

        Parameters
        ----------
        fractions : sequence of float
            Positive numbers with a sum of at most 1. If the sum is smaller, tasks are left out.
        random_state : int, Generator or None
            Seed of the shuffle.

        Examples
        --------
        >>> import numpy as np
        >>> import fastltl as ltl
        >>> ts = ltl.TaskSet([(np.ones((2, 1)), np.ones(2))] * 8)
        >>> [len(part) for part in ts.split((0.25, 0.5, 0.25), random_state=0)]
        [2, 4, 2]
        """
        wanted = as_floats(fractions, "fractions")
        are_positive = wanted.ndim == 1 and wanted.size > 0 and (wanted > 0).all()
        if not (are_positive and wanted.sum() <= 1 + 1e-9):
            raise ValueError(
                "fractions must be a sequence of positive numbers with a sum of at most 1, got "
                f"{fractions!r}."
            )
        order = check_generator(random_state).permutation(len(self))
        # The 1e-9 absorbs rounding errors in the cumulative sum.
        cuts = np.floor(np.cumsum([0.0, *wanted]) * len(self) + 0.5 + 1e-9).astype(int)
        if (np.diff(cuts) == 0).any():
            raise ValueError(
                f"fractions must give each part at least one of the {len(self)} tasks, "
                f"got {fractions!r}."
            )
        return tuple(self[order[i:j]] for i, j in pairwise(cuts))

    def split_samples(
        self, fraction: float, random_state: int | np.random.Generator | None = None
    ) -> tuple[TaskSet, TaskSet]:
        """Split the samples of every task at random into a train and a test set.

        Both sets have the same tasks in the same order and at least one sample of each task, so
        every task needs at least two samples.

        Parameters
        ----------
        fraction : float
            Fraction of each task's samples in the train set, between 0 and 1.
        random_state : int, Generator or None
            Seed of the shuffle.

        Examples
        --------
        >>> import numpy as np
        >>> import fastltl as ltl
        >>> ts = ltl.TaskSet([(np.ones((5, 1)), np.ones(5)), (np.ones((2, 1)), np.ones(2))])
        >>> train, test = ts.split_samples(0.6, random_state=0)
        >>> train.sizes, test.sizes
        (array([3, 1]), array([2, 1]))
        """
        if check_positive(fraction, "fraction", "a number between 0 and 1") >= 1:
            raise ValueError(f"fraction must be a number between 0 and 1, got {fraction!r}.")
        if (self.sizes < 2).any():
            label = self._labels[np.argmax(self.sizes < 2)]
            raise ValueError(
                f"split_samples needs at least 2 samples in every task, got 1 in task {label!r}."
            )
        generator = check_generator(random_state)
        n_train = np.clip(np.floor(fraction * self.sizes + 0.5).astype(int), 1, self.sizes - 1)
        train, test = [], []
        for start, size, k in zip(self._offsets[:-1], self.sizes, n_train, strict=True):
            rows = start + generator.permutation(size)
            train.append(np.sort(rows[:k]))
            test.append(np.sort(rows[k:]))
        return self._take(train, self._labels), self._take(test, self._labels)

    def _take(self, rows: list[Indices], labels: npt.NDArray[np.object_]) -> TaskSet:
        """Create one task from each array of row indices."""
        chosen = np.concatenate([np.empty(0, dtype=np.int64), *rows])  # also if there are no rows
        offsets = np.cumsum([0] + [len(indices) for indices in rows])
        return self._packed(self._X[chosen], self._y[chosen], offsets, labels, self._names)


def check_iterable(tasks: Any, name: str) -> None:
    """Check that `tasks` is an iterable and not a table."""
    kind = type(tasks).__name__
    is_table = hasattr(tasks, "columns") or isinstance(tasks, Mapping) or "GroupBy" in kind
    if is_table or not isinstance(tasks, Iterable):
        hint = "; use TaskSet.from_frame for a table, TaskSet.from_groups for arrays with groups"
        raise TypeError(
            f"{name} must be an iterable of pairs (X, y), got {kind}{hint if is_table else ''}."
        )


def check_task(task: Any, name: str, n_features: int | None = None) -> Task:
    """Return a pair (X, y) of finite float64 arrays; errors begin with the task's name."""
    try:
        X, y = task
    except (TypeError, ValueError):
        raise ValueError(
            f"{name} must be a pair (X, y), got {type(task).__name__}; pass a list [(X, y), ...]."
        ) from None
    try:
        X = check_matrix(X, n_features, owner="the first task")
        return X, check_target(y, len(X))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
