"""score, cross-validation and searches of scikit-learn, and warnings when nothing is shared."""

import re
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone, is_regressor
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import fastltl as ltl
from fastltl._objective import left_out_ridge


def make_rows(random_state=0, n_rows=180, n_tasks=30, d=3):
    """Return X, y and groups of tasks with weights around (1, ..., d) and their own levels."""
    rng = np.random.default_rng(random_state)
    codes = rng.permutation(np.arange(n_rows) % n_tasks)
    X = rng.normal(size=(n_rows, d))
    weights = np.arange(1.0, d + 1) + 0.3 * rng.normal(size=(n_tasks, d))
    y = np.sum(X * weights[codes], axis=1) + 5 + rng.normal(size=n_tasks)[codes]
    return X, y + 0.1 * rng.normal(size=n_rows), np.array([f"task {i}" for i in codes])


X, Y, GROUPS = make_rows()

REPRESENTATION_LEARNERS = [
    ltl.OnlineLTL(0.01),
    ltl.OnlineLTL(0.01, fit_intercept=True),
    ltl.OnlineLTLPath(lams=[0.01]),
    ltl.BatchLTL(0.01),
    ltl.BatchLTL(0.01, fit_intercept=True),
    ltl.MTL(0.01),
    ltl.MTL(0.01, fit_intercept=True),
    ltl.ITL(0.01),
    ltl.ITL(0.01, fit_intercept=True),
]
BAYES = [ltl.BayesLTL(), ltl.BayesLTL(fit_intercept=False), ltl.BayesLTL(n_passes=2)]
LEARNERS = BAYES + REPRESENTATION_LEARNERS
PREDICTORS = (ltl.BayesLTL, ltl.MTL, ltl.ITL)

each_learner = pytest.mark.parametrize("learner", LEARNERS, ids=repr)


@pytest.mark.parametrize("learner", BAYES, ids=repr)
def test_a_prior_is_scored_by_its_predictions_whatever_the_groups(learner):
    fitted = clone(learner).fit(X[:120], Y[:120], GROUPS[:120])
    weight = np.linspace(0.5, 2.0, 60)
    for groups in (None, GROUPS[120:], ["new"] * 60):
        expected = r2_score(Y[120:], fitted.predict(X[120:], groups))
        assert fitted.score(X[120:], Y[120:], groups) == expected
        expected = r2_score(Y[120:], fitted.predict(X[120:]), sample_weight=weight)
        assert fitted.score(X[120:], Y[120:], groups, sample_weight=weight) == expected
    assert not learner.fit_intercept or fitted.score(X[120:], Y[120:]) > 0.5


@pytest.mark.parametrize("learner", REPRESENTATION_LEARNERS, ids=repr)
def test_rows_of_new_groups_are_predicted_from_the_others_of_their_group(learner):
    fitted = clone(learner).fit(X, Y, GROUPS)
    X_new, y_new, groups = make_rows(1, n_rows=31, n_tasks=6)
    groups = np.array([f"new {label}" for label in groups])
    groups[7] = "single"
    predictions = np.empty(31)
    for i in range(31):
        others = (groups == groups[i]) & (np.arange(31) != i)
        if others.any():
            model = fitted.adapt(X_new[others], y_new[others])
            predictions[i] = model.predict(X_new[i : i + 1])[0]
        elif isinstance(learner, ltl.MTL | ltl.ITL):
            predictions[i] = fitted.intercept_.mean()
        else:
            predictions[i] = np.delete(y_new, i).mean() if learner.fit_intercept else 0.0
    expected = r2_score(y_new, predictions)
    assert fitted.score(X_new, y_new, groups) == pytest.approx(expected, rel=1e-9)
    weight = np.linspace(0.5, 2.0, 31)
    expected = r2_score(y_new, predictions, sample_weight=weight)
    assert fitted.score(X_new, y_new, groups, weight) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (2, 6), (5, 5), (6, 5), (7, 5), (40, 5)])
def test_left_out_rows_are_predicted_as_by_a_ridge_on_the_others(n, d, scale, fit_intercept):
    rng = np.random.default_rng(0)
    A, y = scale * rng.normal(size=(n, d)), 3.0 + rng.normal(size=n)
    predictions = left_out_ridge(A, y, fit_intercept)
    for i in range(n):
        model = ltl.RepresentationRidge(lam=1.0, fit_intercept=fit_intercept)
        model.fit(np.delete(A, i, axis=0), np.delete(y, i))
        assert predictions[i] == pytest.approx(model.predict(A[i : i + 1])[0], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_feature_of_one_row_alone_gives_finite_scores(fit_intercept):
    """A fit to all rows would reproduce the target of that row exactly."""
    only = np.zeros((180, 1))
    only[0] = 1.0
    learner = ltl.ITL(1e-15, fit_intercept=fit_intercept).fit(X, Y, GROUPS)
    with_feature = ltl.ITL(1e-15, fit_intercept=fit_intercept).fit(np.hstack([X, only]), Y, GROUPS)
    new = ["new"] * 180
    expected = learner.score(X[1:], Y[1:], new[1:])
    score = with_feature.score(np.hstack([X, only]), Y, new)
    assert score == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("make", [ltl.MTL, ltl.ITL])
def test_rows_of_known_tasks_are_predicted_by_their_weights(make):
    model = make(0.01, fit_intercept=True).fit(X[:150], Y[:150], GROUPS[:150])
    assert model.score(X, Y, GROUPS) == r2_score(Y, model.predict(X, GROUPS))
    some_new = np.where(np.arange(180) % 3 == 0, "new", GROUPS)
    predictions = model.predict(X, GROUPS)
    predictions[::3] = [
        model.adapt(np.delete(X[::3], i, axis=0), np.delete(Y[::3], i)).predict(X[[3 * i]])[0]
        for i in range(60)
    ]
    assert model.score(X, Y, some_new) == pytest.approx(r2_score(Y, predictions), rel=1e-9)
    with pytest.raises(ValueError, match="was fitted to, got 'new'; use adapt for a new task"):
        model.predict(X, some_new)


@pytest.mark.parametrize("make", [ltl.MTL, ltl.ITL])
def test_the_only_task_needs_no_groups(make):
    model = make(0.01).fit(X, Y)
    assert model.score(X, Y) == r2_score(Y, model.predict(X))


BY_ROWS = KFold(5, shuffle=True, random_state=0)

#: The calls of scikit-learn that work without metadata routing, with it, or both.
CALLS = [
    (False, {"groups": GROUPS, "params": {"groups": GROUPS}, "cv": GroupKFold()}),
    (True, {"params": {"groups": GROUPS}, "cv": GroupKFold()}),
    *(
        (routing, {"params": {"groups": GROUPS}, "cv": cv})
        for routing in (False, True)
        for cv in (list(GroupKFold().split(X, Y, GROUPS)), BY_ROWS)
    ),
]


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore:score of .* got no groups:UserWarning")
@pytest.mark.parametrize(("routing", "arguments"), CALLS)
@each_learner
def test_cross_validation_gives_finite_scores(learner, routing, arguments):
    with sklearn.config_context(enable_metadata_routing=routing):
        scores = cross_val_score(learner, X, Y, **arguments)
        again = cross_validate(learner, X, Y, **arguments)["test_score"]
    assert np.isfinite(scores).all()
    assert np.array_equal(scores, again)
    if isinstance(learner, ltl.BayesLTL) and learner.fit_intercept:
        assert scores.min() > 0.5  # it does without groups in score


def test_cross_validation_of_a_prior_is_the_same_with_and_without_routing():
    plain = cross_val_score(
        ltl.BayesLTL(), X, Y, groups=GROUPS, params={"groups": GROUPS}, cv=GroupKFold()
    )
    with sklearn.config_context(enable_metadata_routing=True):
        routed = cross_val_score(ltl.BayesLTL(), X, Y, params={"groups": GROUPS}, cv=GroupKFold())
        asked = ltl.BayesLTL().set_fit_request(groups=True).set_score_request(groups=True)
        by_request = cross_val_score(asked, X, Y, params={"groups": GROUPS}, cv=GroupKFold())
    assert plain.tolist() == routed.tolist() == by_request.tolist()


def test_routing_can_be_refused():
    with sklearn.config_context(enable_metadata_routing=True):
        learner = ltl.BayesLTL().set_fit_request(groups=False)
        with pytest.warns(UserWarning, match="was fitted to one task"):
            cross_val_score(learner, X, Y, params={"groups": GROUPS}, cv=GroupKFold())


@pytest.mark.parametrize(
    ("learner", "grid", "best", "cv"),
    [
        (ltl.BayesLTL(), {"n_passes": [1, 2]}, None, GroupKFold()),
        (ltl.BayesLTL(), {"n_passes": [1, 2]}, None, BY_ROWS),
        (ltl.BayesLTL(), {"fit_mean": [False, True]}, {"fit_mean": True}, GroupKFold()),
        (ltl.MTL(fit_intercept=True), {"lam": [1e-3, 10.0, 1e3]}, {"lam": 1e-3}, GroupKFold()),
        (ltl.MTL(fit_intercept=True), {"lam": [1e-3, 10.0, 1e3]}, {"lam": 1e-3}, BY_ROWS),
        (ltl.ITL(fit_intercept=True), {"lam": [1e-2, 10.0, 1e3]}, {"lam": 1e-2}, GroupKFold()),
        (ltl.ITL(fit_intercept=True), {"lam": [1e-2, 10.0, 1e3]}, {"lam": 1e-2}, BY_ROWS),
        # These keep no weights of tasks, so each task has to be left out whole.
        (ltl.BatchLTL(fit_intercept=True), {"lam": [1e-3, 10.0]}, {"lam": 1e-3}, GroupKFold()),
        (ltl.OnlineLTL(fit_intercept=True), {"lam": [1e-3, 10.0]}, {"lam": 1e-3}, GroupKFold()),
    ],
    ids=repr,
)
def test_a_grid_search_finds_the_better_parameters(learner, grid, best, cv):
    with sklearn.config_context(enable_metadata_routing=True):
        search = GridSearchCV(learner, grid, cv=cv).fit(X, Y, groups=GROUPS)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert search.best_score_ > 0.5
        assert best is None or search.best_params_ == best
        assert search.score(X, Y, groups=GROUPS) > 0.5


def test_a_grid_search_without_routing_takes_the_groups_of_a_step():
    """scikit-learn passes `groups` to the splitter only, and those of the step to fit."""
    pipeline = make_pipeline(StandardScaler(), ltl.BayesLTL())
    search = GridSearchCV(pipeline, {"bayesltl__n_passes": [1, 2]}, cv=GroupKFold())
    search.fit(X, Y, groups=GROUPS, bayesltl__groups=GROUPS)
    assert search.best_score_ > 0.5
    with pytest.warns(UserWarning, match=r"one task, .*enable_metadata_routing=True"):
        GridSearchCV(ltl.BayesLTL(), {"n_passes": [1]}, cv=GroupKFold()).fit(X, Y, groups=GROUPS)


@each_learner
def test_pipelines_pass_groups_on(learner):
    last, first = make_pipeline(StandardScaler(), learner), make_pipeline(learner, Ridge())
    step = f"{type(learner).__name__.lower()}__groups"
    plain = clone(last).fit(X, Y, **{step: GROUPS})
    features = clone(first).fit(X, Y, **{step: GROUPS})
    assert features.score(X, Y) > 0.5
    if isinstance(learner, PREDICTORS):
        assert np.isfinite(plain.predict(X, groups=GROUPS)).all()
    with sklearn.config_context(enable_metadata_routing=True):
        routed = clone(last).fit(X, Y, groups=GROUPS)
        if isinstance(learner, PREDICTORS):
            assert np.array_equal(routed.predict(X, groups=GROUPS), plain.predict(X, groups=GROUPS))
        scaled = StandardScaler().fit_transform(X)
        expected = clone(learner).fit(scaled, Y, GROUPS).score(scaled, Y, GROUPS)
        assert routed.score(X, Y, groups=GROUPS) == pytest.approx(expected, rel=1e-9)
        routed_features = clone(first).fit(X, Y, groups=GROUPS)
        assert np.array_equal(routed_features.predict(X), features.predict(X))


@each_learner
def test_learners_that_predict_are_regressors(learner):
    assert is_regressor(learner) == isinstance(learner, PREDICTORS)


@each_learner
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_data_frames_go_in_and_out(learner, frame):
    names = ["age", "income", "height"]
    table = frame(dict(zip(names, X.T, strict=True)))
    series = pd.Series if frame is pd.DataFrame else pl.Series
    y, groups = series(Y), series(GROUPS)
    fitted = clone(learner).fit(table, y, groups)
    assert fitted.feature_names_in_.tolist() == names
    output = "pandas" if frame is pd.DataFrame else "polars"
    transformed = fitted.set_output(transform=output).transform(table)
    assert isinstance(transformed, frame)
    assert list(transformed.columns) == list(fitted.get_feature_names_out())
    arrays = clone(learner).fit(X, Y, GROUPS)
    assert np.array_equal(transformed.to_numpy(), arrays.transform(X))
    again = clone(learner).set_output(transform=output).fit_transform(table, y, groups=groups)
    assert np.array_equal(again.to_numpy(), arrays.transform(X))
    assert fitted.score(table, y, groups) == arrays.score(X, Y, GROUPS)
    if isinstance(learner, PREDICTORS):
        assert np.array_equal(fitted.predict(table, groups), arrays.predict(X, GROUPS))
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.score(table[["income", "age", "height"]], y, groups)


@each_learner
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[:, :2], Y, GROUPS), "X has 2 features, but .* is expecting 3 features as input"),
        ((X, Y[:-1], GROUPS), "y must have one value for each of the 180 rows of X"),
        ((X, None, GROUPS), "requires y to be passed, but the target y is None"),
        ((X, np.full(180, np.nan), GROUPS), "y must hold finite numbers only, got NaN at index 0"),
        ((X, Y * 1e200, GROUPS), "results overflow or lose all precision; rescale X and y"),
    ],
)
def test_errors_of_score_name_the_argument(learner, arguments, message):
    fitted = clone(learner).fit(X, Y, GROUPS)
    with pytest.raises(ValueError, match=message):
        fitted.score(*arguments)
    with pytest.raises(sklearn.exceptions.NotFittedError):
        clone(learner).score(X, Y, GROUPS)


@pytest.mark.parametrize("learner", REPRESENTATION_LEARNERS, ids=repr)
@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (GROUPS[:-1], "groups must have one entry for each of the 180 rows"),
        ([None, *GROUPS[1:]], "groups must name a task for every row, got None at row 0"),
    ],
)
def test_errors_of_score_name_the_groups(learner, groups, message):
    fitted = clone(learner).fit(X, Y, GROUPS)
    with pytest.raises(ValueError, match=message):
        fitted.score(X, Y, groups)


def test_tasks_of_the_same_label_cannot_be_scored_by_groups():
    twice = ltl.TaskSet([(X, Y), (X, -Y)], labels=["a", "a"])
    with pytest.raises(ValueError, match="groups must tell tasks apart"):
        ltl.MTL().fit(twice).score(X, Y, ["a"] * 180)


def test_a_single_row_has_no_score():
    """The variance of one target is zero; scikit-learn warns and gives NaN."""
    learner = ltl.BayesLTL().fit(X, Y, GROUPS)
    with pytest.warns(sklearn.exceptions.UndefinedMetricWarning):
        assert np.isnan(learner.score(X[:1], Y[:1]))


ONE_TASK = r"was fitted to one task, so nothing is shared between tasks: pass groups, the task of"
SINGLE_ROWS = r"each of the 180 tasks has a single row, so .* with an intercept .*: check that gro"
ROW_NUMBERS = np.arange(180)
ROW_NAMES = [f"row {i}" for i in ROW_NUMBERS]  # numbers would be taken for a measurement
FRAME = pd.DataFrame(X, columns=["u", "v", "w"]).assign(y=Y, task="a", row=ROW_NAMES)


@each_learner
@pytest.mark.parametrize(
    "fit",
    [
        lambda learner: learner.fit(X, Y),
        lambda learner: learner.fit(X, Y, groups=np.zeros(180)),
        lambda learner: learner.fit([(X, Y)]),
        lambda learner: learner.fit(X[:1], Y[:1]),
        lambda learner: learner.fit(iter([(X.tolist(), Y.tolist())])),
        lambda learner: learner.fit(ltl.TaskSet.from_frame(FRAME, "task", "y", ["u", "v", "w"])),
        lambda learner: learner.fit_transform(X, Y),
    ],
    ids=["no groups", "one group", "one task", "one row", "iterator", "table", "fit_transform"],
)
def test_one_task_warns_that_nothing_is_shared(learner, fit):
    with pytest.warns(UserWarning, match=ONE_TASK) as caught:
        fit(clone(learner))
    assert len(caught) == 1


@each_learner
@pytest.mark.parametrize(
    "fit",
    [
        lambda learner: learner.fit(X, Y, groups=ROW_NUMBERS),
        lambda learner: learner.fit([(X[i : i + 1], Y[i : i + 1]) for i in range(180)]),
        lambda learner: learner.fit([(X[i : i + 1].tolist(), [Y[i]]) for i in range(180)]),
        lambda learner: learner.fit(ltl.TaskSet.from_frame(FRAME, "row", "y", ["u", "v", "w"])),
    ],
    ids=["row numbers", "tasks", "lists", "table"],
)
def test_single_rows_warn_if_each_has_its_own_intercept(learner, fit):
    learner = clone(learner)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(learner)
    assert len(caught) == learner.fit_intercept
    assert all(re.match(SINGLE_ROWS, str(warning.message)) for warning in caught)


@each_learner
def test_nothing_warns_where_something_is_shared(learner):
    two = [(X[:1], Y[:1]), (X[1:3], Y[1:3])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clone(learner).fit(two)
        clone(learner).fit(X, Y, GROUPS).score(X, Y, GROUPS)
        if hasattr(learner, "partial_fit"):
            online = clone(learner).partial_fit(X, Y)
            online.partial_fit(X[:1], Y[:1])


def test_warnings_point_to_the_call():
    for learner in (ltl.BayesLTL(n_passes=2), ltl.OnlineLTL(), ltl.MTL(), ltl.ITL()):
        with pytest.warns(UserWarning, match=ONE_TASK) as caught:
            learner.fit(X, Y)
        assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"score of OnlineLTL got no groups") as caught:
        ltl.OnlineLTL().fit(X, Y, GROUPS).score(X, Y)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("learner", REPRESENTATION_LEARNERS, ids=repr)
def test_score_without_groups_warns_and_takes_all_rows_as_one_task(learner):
    fitted = clone(learner).fit(X, Y, GROUPS)
    with pytest.warns(UserWarning, match=r"score of .* all rows are one task: pass groups"):
        score = fitted.score(X, Y)
    assert score == fitted.score(X, Y, ["new"] * 180)


@pytest.mark.parametrize("learner", [ltl.OnlineLTL(), ltl.BatchLTL(), ltl.MTL(), ltl.ITL()])
def test_select_lam_warns_of_one_task(learner):
    halves = ltl.TaskSet.from_groups(X, Y, GROUPS).split_samples(0.5, random_state=0)
    with pytest.warns(UserWarning, match=ONE_TASK):
        ltl.select_lam(learner, [(X, Y)], halves, [0.1])


@pytest.mark.parametrize(
    "use",
    [
        lambda path: path.best_lam_,
        lambda path: path.D_,
        lambda path: path.adapt(X[:5], Y[:5]),
        lambda path: path.transform(X),
        lambda path: path.score(X, Y, GROUPS),
    ],
    ids=["best_lam_", "D_", "adapt", "transform", "score"],
)
def test_a_path_warns_of_a_best_lam_at_the_edge_when_it_is_used(use):
    halves = ltl.TaskSet.from_groups(X, Y, GROUPS).split_samples(0.5, random_state=0)
    path = ltl.OnlineLTLPath([10.0, 100.0], halves, fit_intercept=True).fit(X, Y, GROUPS)
    with pytest.warns(UserWarning, match="the best lam, 10, is at the edge") as caught:
        use(path)
    assert len(caught) == 1
