"""Compatibility with scikit-learn: estimator checks, pipelines, searches and data frames."""

import numpy as np
import pandas as pd
import pytest
from naive import ragged_tasks, relative, sphere_task
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fastltl as ltl

# All checks pass; scikit-learn skips `check_array_api_input`, which no estimator supports.
ESTIMATORS = [
    ltl.RepresentationRidge(),
    ltl.RepresentationRidge(fit_intercept=True),
    ltl.BayesLTL(),
    ltl.BayesLTL(fit_intercept=False),
    ltl.BayesLTL(fit_mean=False, half_life=5.0),
    ltl.BayesLTL(n_passes=2),
    ltl.OnlineLTL(),
    ltl.OnlineLTL(geometry="euclidean", averaging="last", fit_intercept=True),
    ltl.OnlineLTL(geometry="euclidean", step="theory"),
    ltl.OnlineLTL(geometry="euclidean", step=0.5),
    ltl.OnlineLTLPath(lams=[1.0]),  # several need validation tasks of the right width
    ltl.BatchLTL(),
    ltl.BatchLTL(fit_intercept=True),
    ltl.MTL(),
    ltl.ITL(),
    ltl.ITL(fit_intercept=True),
]


@pytest.mark.filterwarnings("ignore:score of .* got no groups:UserWarning")
@parametrize_with_checks(ESTIMATORS)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-6, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (5, 9), (9, 5), (40, 4)])
def test_without_a_representation_it_matches_sklearn_ridge(n, d, lam, fit_intercept):
    X, y = sphere_task(np.random.default_rng(n), n, d)
    ours = ltl.RepresentationRidge(lam=lam, fit_intercept=fit_intercept).fit(X, y)
    theirs = Ridge(alpha=n * lam, fit_intercept=fit_intercept, solver="svd").fit(X, y)
    assert ours.coef_ == pytest.approx(theirs.coef_, rel=1e-8, abs=1e-10)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-8, abs=1e-10)
    assert ours.predict(X) == pytest.approx(theirs.predict(X), rel=1e-8, abs=1e-10)


def test_a_representation_overrides_lam():
    X, y = sphere_task(np.random.default_rng(0), 6, 4)
    one, other = (ltl.RepresentationRidge(np.eye(4), lam=lam).fit(X, y) for lam in (0.1, 10.0))
    assert np.array_equal(one.coef_, other.coef_)


@pytest.mark.parametrize(
    ("D", "message"),
    [
        ([[1.0, 2.0], [0.0, 1.0]], "D must be symmetric"),
        ([[1.0, 0.0], [0.0, -1.0]], "D must be positive semidefinite, got the eigenvalue -1"),
        ([[-1.0, 0.0], [0.0, -1.0]], "D must be positive semidefinite"),
        (np.eye(3), r"D must have a row per feature \(2\), got shape \(3, 3\)"),
        (np.ones((2, 3)), "D must be a square matrix"),
        (np.ones(2), r"D must be a square matrix, got an array of shape \(2,\)"),
        ([[np.nan, 0.0], [0.0, 1.0]], "D must hold finite numbers only"),
        (np.array([["a", "b"], ["c", "d"]]), "D must be an array of real numbers"),
    ],
)
def test_errors_describe_the_representation(D, message):
    X, y = np.ones((3, 2)), np.ones(3)
    estimator = ltl.RepresentationRidge(D)
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y)
    assert not hasattr(estimator, "coef_")


def test_rounding_errors_in_a_representation_are_accepted():
    X, y = sphere_task(np.random.default_rng(0), 6, 4)
    A = np.random.default_rng(1).normal(size=(4, 2))
    D = A @ A.T  # of rank two: two eigenvalues are zero up to rounding
    D[0, 1] *= 1 + 1e-14
    expected = ltl.RepresentationRidge(A @ A.T).fit(X, y).coef_
    assert relative(ltl.RepresentationRidge(D).fit(X, y).coef_, expected) < 1e-12


def test_pipeline_and_grid_search():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)) * [1, 10, 100, 1, 1] + 7
    y = X @ [1.0, 0.1, 0.01, 0, 0] + 0.1 * rng.normal(size=60) + 20
    pipeline = make_pipeline(StandardScaler(), ltl.RepresentationRidge(fit_intercept=True))
    search = GridSearchCV(
        pipeline, {"representationridge__lam": np.logspace(-6, 2, 9)}, cv=KFold(5)
    ).fit(X, y)
    assert search.best_params_["representationridge__lam"] < 0.1
    assert search.best_score_ > 0.95
    assert cross_val_score(search.best_estimator_, X, y, cv=3).min() > 0.9


def test_learner_as_a_transformer():
    tasks = ragged_tasks(0, 40, 8, (5, 9))
    X, y = sphere_task(np.random.default_rng(5), 30, 8)
    learner = ltl.OnlineLTL(0.01).fit(tasks)
    model = LinearRegression().fit(learner.transform(X), y)
    assert model.score(learner.transform(X), y) > 0.9
    assert list(learner.get_feature_names_out()) == [f"onlineltl{i}" for i in range(8)]


def test_feature_names_of_data_frames():
    X, y = sphere_task(np.random.default_rng(0), 12, 3)
    df = pd.DataFrame(X, columns=["age", "income", "height"])
    groups = pd.Series(list("aabbccaabbcc"))
    learner = ltl.OnlineLTL().fit(df, pd.Series(y), groups=groups)
    assert list(learner.feature_names_in_) == ["age", "income", "height"]
    assert np.array_equal(learner.D_, ltl.OnlineLTL().fit(X, y, groups=groups).D_)
    learner.partial_fit(df, y)
    assert learner.n_tasks_seen_ == 4
    before = learner.iterate_
    with pytest.raises(ValueError, match="feature names should match"):
        learner.partial_fit(df[["income", "age", "height"]], y)
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        learner.transform(X)
    assert np.array_equal(learner.iterate_, before)
    model = learner.adapt(df, y)
    assert model.predict(df).shape == (12,)
    with pytest.raises(ValueError, match="feature names should match"):
        learner.adapt(df[["income", "age", "height"]], y)


LEARNERS = [ltl.BayesLTL, ltl.OnlineLTL, ltl.BatchLTL, ltl.MTL, ltl.ITL]


@pytest.mark.parametrize("learner", LEARNERS)
def test_feature_names_of_task_sets(learner):
    X, y = sphere_task(np.random.default_rng(0), 12, 3)
    df = pd.DataFrame(X, columns=["age", "income", "height"]).assign(
        group=list("aabbccaabbcc"), y=y
    )
    tasks = ltl.TaskSet.from_frame(df, task="group", target="y")
    assert tasks.feature_names == tasks[1:].feature_names == ("age", "income", "height")
    fitted = learner().fit(tasks)
    assert list(fitted.feature_names_in_) == ["age", "income", "height"]
    fitted.adapt(*tasks[0])  # no warning about missing names
    fitted.transform(df[["age", "income", "height"]])
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.transform(df[["income", "age", "height"]])
    if learner is not ltl.BayesLTL:  # it has no lam
        chosen = ltl.select_lam(learner(), tasks, tasks.split_samples(0.5, random_state=0), [1.0])
        assert list(chosen.learner.feature_names_in_) == ["age", "income", "height"]
    assert not hasattr(fitted.fit([(X, y)]), "feature_names_in_")


@pytest.mark.parametrize("learner", LEARNERS)
def test_errors_name_tasks_with_other_feature_names(learner):
    X, y = sphere_task(np.random.default_rng(0), 6, 2)
    df = pd.DataFrame(X, columns=["a", "b"])
    with pytest.raises(ValueError, match=r"task 1: .*feature names should match"):
        learner().fit([(df, y), (df[["b", "a"]], y)])
