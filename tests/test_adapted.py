"""adapt of a TaskSet: one regressor per task, and predictions for rows of any task."""

import pickle

import numpy as np
import pandas as pd
import pytest
from naive import ragged_tasks
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import fastltl as ltl
from fastltl.adapted import AdaptedTasks

OLD = ltl.TaskSet(ragged_tasks(0, 12, 4, (2, 9)))
NEW = ltl.TaskSet(
    [(X, y + 2.0) for X, y in ragged_tasks(1, 4, 4, (2, 9))], labels=["b", 1, (2, "c"), "a"]
)

LEARNERS = [
    make(fit_intercept=fit_intercept)
    for make in (
        ltl.BayesLTL,
        ltl.OnlineLTL,
        lambda **settings: ltl.OnlineLTL(0.1, "error", "euclidean", "theory", **settings),
        lambda **settings: ltl.OnlineLTLPath(lams=[0.1], **settings),
        ltl.BatchLTL,
        ltl.MTL,
        ltl.ITL,
    )
    for fit_intercept in (False, True)
]


@pytest.fixture(params=LEARNERS, ids=repr)
def learner(request):
    return clone(request.param).fit(OLD)


def rows_of(tasks, random_state=0):
    """Return the rows of all tasks, shuffled, and their labels."""
    X = np.concatenate([X for X, _ in tasks])
    groups = np.repeat(tasks.labels, tasks.sizes)
    order = np.random.default_rng(random_state).permutation(len(X))
    return X[order], groups[order].tolist()


def test_each_task_is_adapted_to_as_if_alone(learner):
    adapted = learner.adapt(NEW)
    assert list(adapted) == list(NEW.labels)
    assert len(adapted) == 4
    assert repr(adapted) == "AdaptedTasks(4 tasks)"
    for label, (X, y) in zip(NEW.labels, NEW, strict=True):
        alone = learner.adapt(X, y)
        assert type(adapted[label]) is type(alone)
        assert adapted[label].coef_.tobytes() == alone.coef_.tobytes()
        assert adapted[label].intercept_ == alone.intercept_
    with pytest.raises(KeyError):
        adapted["new"]


def test_rows_are_predicted_by_the_regressors_of_their_tasks(learner):
    adapted = learner.adapt(NEW)
    X, groups = rows_of(NEW)
    expected = [adapted[label].predict(x[None])[0] for x, label in zip(X, groups, strict=True)]
    assert adapted.predict(X, groups) == pytest.approx(expected, rel=1e-12, abs=1e-14)
    again = pickle.loads(pickle.dumps(adapted))
    assert np.array_equal(again.predict(X, groups), adapted.predict(X, groups))


def test_rows_of_unknown_tasks_are_predicted_by_the_prior(learner):
    adapted = learner.adapt(NEW)
    X, groups = rows_of(NEW)
    is_new = np.arange(len(X)) % 3 == 1
    asked = [f"new {i % 2}" if is_new[i] else label for i, label in enumerate(groups)]
    prediction = adapted.predict(X, asked)
    if isinstance(learner, ltl.BayesLTL):
        assert prediction[is_new] == pytest.approx(learner.predict(X[is_new]), rel=1e-12)
    else:
        intercept = np.mean([model.intercept_ for model in adapted.values()])
        assert prediction[is_new] == pytest.approx(np.full(is_new.sum(), intercept), rel=1e-12)
        assert (intercept == 0.0) == (not learner.fit_intercept)
    known = adapted.predict(X, groups)
    assert prediction[~is_new] == pytest.approx(known[~is_new], rel=1e-12, abs=1e-14)
    assert np.array_equal(adapted.predict(X, ["new"] * len(X)), adapted.prior.predict(X))


@pytest.mark.parametrize("make", [ltl.MTL, ltl.ITL])
def test_multitask_models_adapt_to_their_own_tasks_as_in_fit(make):
    model = make(lam=0.1, fit_intercept=True).fit(NEW)
    X, groups = rows_of(NEW)
    expected = model.predict(X, groups)
    assert model.adapt(NEW).predict(X, groups) == pytest.approx(expected, rel=1e-6, abs=1e-9)


class Spread:
    """A regressor that returns a number and, on request, another."""

    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def predict(self, X, return_std=False):
        mean, std = self.mean + X[:, 0], np.full(len(X), self.std)
        return (mean, std) if return_std else mean


def test_options_are_passed_on_and_pairs_of_arrays_reordered():
    adapted = AdaptedTasks(
        {"a": Spread(0.0, 1.0), "b": Spread(10.0, 2.0)}, Spread(20.0, 3.0), 1, None
    )
    X, groups = np.arange(6.0)[:, None], ["b", "new", "a", "a", "b", "other"]
    mean, std = adapted.predict(X, groups, return_std=True)
    assert mean.tolist() == [10.0, 21.0, 2.0, 3.0, 14.0, 25.0]
    assert std.tolist() == [2.0, 3.0, 1.0, 1.0, 2.0, 3.0]
    assert np.array_equal(adapted.predict(X, groups), mean)


def test_features_are_found_to_have_other_names():
    rng = np.random.default_rng(0)
    df = pd.DataFrame({"task": list("aabb"), "y": rng.normal(size=4), "u": rng.normal(size=4)})
    df["v"] = rng.normal(size=4)
    tasks = ltl.TaskSet.from_frame(df, task="task", target="y")
    adapted = ltl.OnlineLTL().fit(tasks).adapt(tasks)
    expected = adapted.predict(df[["u", "v"]].to_numpy(), df["task"])
    assert np.array_equal(adapted.predict(df[["u", "v"]], df["task"]), expected)
    with pytest.raises(ValueError, match=r"feature names .* during fit \(u, v\), got v, u"):
        adapted.predict(df[["v", "u"]], df["task"])
    with pytest.raises(ValueError, match=r"feature names .* during fit \(u, v\), got w, z"):
        ltl.OnlineLTL().fit(tasks).adapt(tasks.with_names(["w", "z"]))


def test_errors_name_the_argument(learner):
    X, y = NEW[0]
    with pytest.raises(NotFittedError):
        clone(learner).adapt(NEW)
    with pytest.raises(ValueError, match="labels of tasks must be distinct, got 'a' twice"):
        learner.adapt(ltl.TaskSet([*NEW[:2], (X, y)], labels=["a", "b", "a"]))
    with pytest.raises(TypeError, match=r"labels of tasks must be numbers, .* got \[1\]"):
        learner.adapt(ltl.TaskSet([(X, y)], labels=[[1]]))
    with pytest.raises(ValueError, match=r"y must be None when X is a TaskSet, .* got ndarray"):
        learner.adapt(NEW, y)
    for given in (X, list(NEW), pd.DataFrame(X)):
        with pytest.raises(
            ValueError, match=r"requires y to be passed.* X must be a TaskSet, got "
        ):
            learner.adapt(given)
    with pytest.raises(ValueError, match="X must hold at least one task"):
        learner.adapt(NEW[:0])
    with pytest.raises(ValueError, match=r"X has 3 features, but .* is expecting 4 features"):
        learner.adapt(NEW.map_inputs(lambda X: X[:, :3]))
    huge = ltl.TaskSet([(X, y), (X * 1e200, y)], labels=["good", "bad"])
    message = r"task 'bad': (D, )?X and y must not be so large"
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=message):  # JIT off: warnings
        learner.adapt(huge)


def test_errors_of_predict_name_the_argument():
    adapted = ltl.ITL().fit(OLD).adapt(NEW)
    X, groups = rows_of(NEW)
    with pytest.raises(
        ValueError, match=f"groups must have one entry for each of the {len(X)} rows"
    ):
        adapted.predict(X, groups[:-1])
    with pytest.raises(ValueError, match=r"groups must have one entry .* got shape"):
        adapted.predict(X, None)
    with pytest.raises(
        ValueError, match="groups must name a task for every row, got None at row 0"
    ):
        adapted.predict(X, [None, *groups[1:]])
    with pytest.raises(TypeError, match="groups must hold numbers, strings or the like"):
        adapted.predict(X, [[1]] * len(X))
    with pytest.raises(ValueError, match="X has 2 features, but AdaptedTasks is expecting 4"):
        adapted.predict(X[:, :2], groups)
    with pytest.raises(TypeError, match="return_std"):
        adapted.predict(X, groups, return_std=True)
