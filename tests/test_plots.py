"""Plots: what they draw, on which Axes, and that it fits."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from scipy.stats import norm
from sklearn.exceptions import NotFittedError
from test_effects import slopes

import fastltl as ltl
from fastltl import plots
from fastltl.plots import LEVELS


@pytest.fixture(scope="module")
def tasks():
    labels = [f"School {i}" for i in range(40)]
    return slopes(40, np.random.default_rng(0), labels=labels)[0]


@pytest.fixture(scope="module")
def learner(tasks):
    return ltl.BayesLTL().fit(tasks)


def new_axes(width=5.6, height=4.2):
    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


def test_effects_are_sorted_and_have_the_intervals_of_the_frame(learner, tasks):
    ax = new_axes(height=6)
    assert plots.effects(learner, tasks, "x1", level=0.8, ax=ax) is ax
    frame = learner.effects(tasks, level=0.8).query("feature == 'x1'").sort_values("estimate")
    points = ax.get_lines()[1].get_xydata()
    np.testing.assert_allclose(points[:, 0], frame["estimate"])
    np.testing.assert_array_equal(points[:, 1], np.arange(40))
    (intervals,) = ax.collections
    ends = np.array([segment[:, 0] for segment in intervals.get_segments()])
    np.testing.assert_allclose(ends, frame[["lower", "upper"]])
    assert [label.get_text() for label in ax.get_yticklabels()] == frame["task"].tolist()
    mean = learner.mean_[1]
    np.testing.assert_allclose(lines(ax)[f"prior mean {mean:.3g}"][:, 0], mean)
    assert ax.get_xlabel() == "weight of x1, with 80 % intervals"


def test_many_effects_have_no_labels(learner, tasks):
    many = ltl.TaskSet(list(tasks) * 10)
    ax = plots.effects(learner, many, "intercept", ax=new_axes())
    assert len(ax.get_yticks()) == 0
    assert len(ax.get_lines()[1].get_xydata()) == 400
    assert ax.get_ylabel() == "tasks, by their estimate"
    assert ax.get_xlabel() == "intercept, with 95 % intervals"


def test_long_labels_keep_their_ends(learner, tasks):
    some = ltl.TaskSet(list(tasks[:3]), labels=[f"{'long ' * 10}\x1b {i}" for i in range(3)])
    ax = plots.effects(learner, some, "x0", ax=new_axes())
    labels = sorted(label.get_text() for label in ax.get_yticklabels())
    assert labels == [f"long long l… long \\x1b {i}" for i in range(3)]


def test_the_learning_curve_has_running_means():
    rng = np.random.default_rng(0)
    errors = rng.exponential(size=60)
    ax = plots.learning_curve(errors, ax=new_axes())
    drawn = lines(ax)
    np.testing.assert_array_equal(drawn["task"][:, 0], np.arange(2, 61))  # not the first
    np.testing.assert_allclose(drawn["task"][:, 1] ** 2, errors[1:])
    for k in (1, 2, 7, 59):  # errors after the first one
        window = errors[1 + k // 2 : 1 + k]
        assert drawn["running mean"][k - 1, 1] ** 2 == pytest.approx(window.mean())
    (band,) = ax.collections
    upper = max(y for x, y in band.get_paths()[0].vertices if x == 60)
    window = errors[30:]
    expected = window.mean() + 1.96 * window.std(ddof=1) / np.sqrt(30)
    assert upper**2 == pytest.approx(expected)


def test_a_learning_curve_takes_what_iter_fit_yields(tasks):
    progress = ltl.BayesLTL().iter_fit(tasks)
    drawn = lines(plots.learning_curve(progress, ax=new_axes()))
    errors = [error for _, error in ltl.BayesLTL().iter_fit(tasks)]
    np.testing.assert_allclose(drawn["task"][:, 1] ** 2, errors[1:])
    twice = plots.learning_curve(errors[:2], ax=new_axes())  # the shortest
    np.testing.assert_allclose(lines(twice)["running mean"], [[2, np.sqrt(errors[1])]])


def test_shrinkage_goes_from_ridge_to_adapted_weights(learner, tasks):
    ax = plots.shrinkage(learner, tasks, ("x0", "intercept"), ax=new_axes())
    drawn = lines(ax)
    adapted = [[model.coef_[0], model.intercept_] for model in learner.adapt(tasks).values()]
    np.testing.assert_allclose(drawn["adapted"], adapted, rtol=1e-10)
    np.testing.assert_allclose(drawn["prior mean"], learner.mean_[None, [0, 3]])
    run = learner._run
    squares, prior = run.state.squares, run.prior()
    moments = (np.diag(prior.covariance) + run.state.mean**2) * squares
    variances = np.append(moments[:3].mean() / squares[:3], moments[3])
    X, y = tasks[5]
    A = np.column_stack([(X - prior.origin[:3]) / prior.scale[:3], np.ones(len(X))])
    z = (y - prior.y_origin) / prior.y_scale
    ridge = np.linalg.solve(A.T @ A + prior.noise * np.diag(1 / variances), A.T @ z)
    expected = prior.weights_in_data_units(ridge)
    np.testing.assert_allclose(drawn["alone (ridge)"][5], expected[[0, 3]], rtol=1e-8)
    (arrows,) = ax.collections
    moves = np.column_stack([arrows.U, arrows.V])
    np.testing.assert_allclose(moves, drawn["adapted"] - drawn["alone (ridge)"])


def test_ridge_of_tasks_with_many_samples_is_least_squares():
    rng = np.random.default_rng(0)
    tasks, weights = slopes(20, rng, n_rows=2000)
    drawn = lines(plots.shrinkage(ltl.BayesLTL().fit(tasks), tasks, ("x0", "x1"), ax=new_axes()))
    np.testing.assert_allclose(drawn["alone (ridge)"], weights[:, :2], atol=0.15)


def test_coverage_counts_targets_within_intervals(learner, tasks):
    known, hidden = tasks.split_samples(0.5, random_state=0)
    ax = plots.coverage(learner, known, hidden, ax=new_axes())
    drawn = lines(ax)["actual"]
    adapted = learner.adapt(known)
    for level in (0.2, 0.5, 0.95):
        inside = []
        for label, (X, y) in zip(hidden.labels, hidden, strict=True):
            prediction, std = adapted[label].predict(X, return_std=True)
            inside.extend(np.abs(y - prediction) <= norm.ppf(0.5 + level / 2) * std)
        at = np.argmin(np.abs(LEVELS - level))
        assert LEVELS[at] == pytest.approx(level)
        np.testing.assert_allclose(drawn[at], [100 * level, 100 * np.mean(inside)])
    assert ax.get_title(loc="left") == f"95 % intervals cover {100 * np.mean(inside):.0f} %"
    assert 80 < 100 * np.mean(inside) <= 100


PLOTS = {
    "effects": lambda learner, ts, ax: plots.effects(learner, ts, "x0", ax=ax),
    "learning curve": lambda learner, ts, ax: plots.learning_curve(np.ones(len(ts)), ax=ax),
    "shrinkage": lambda learner, ts, ax: plots.shrinkage(learner, ts, ("x0", "x1"), ax=ax),
    "coverage": lambda learner, ts, ax: plots.coverage(learner, ts, ts, ax=ax),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("n_tasks", [2, 10, 65, 500])
@pytest.mark.parametrize("name", PLOTS)
def test_plots_fit_into_390_pixels(name, n_tasks, learner, tasks):
    ts = ltl.TaskSet((list(tasks) * 13)[:n_tasks])
    ax = new_axes(3.9, 3.6)
    assert PLOTS[name](learner, ts, ax) is ax
    figure = ax.get_figure()
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    labels = [label for label in (ax.xaxis.label, ax.yaxis.label) if label.get_text()]
    for artist in (ax._left_title, ax.get_legend(), *labels):
        box = artist.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width
        assert box.y0 >= 0
        assert box.y1 <= height
    assert ax.get_window_extent().width > 0.6 * width  # labels and legend leave it its place
    ticks = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
    ends = sorted((box.x0, box.x1) for box in ticks)
    assert all(left[1] < right[0] for left, right in pairwise(ends))


@pytest.mark.parametrize("name", PLOTS)
def test_without_axes_there_is_a_new_figure(name, learner, tasks):
    with pyplot.rc_context({"backend": "agg"}):
        ax = PLOTS[name](learner, tasks, None)
    try:
        assert pyplot.fignum_exists(ax.get_figure().number)
        assert ax.get_title(loc="left")
        assert ax.get_xlabel()
    finally:
        pyplot.close(ax.get_figure())


def test_a_caterpillar_is_as_high_as_its_labels_need(learner, tasks):
    heights = []
    for n in (2, 40, 500):
        ax = plots.effects(learner, ltl.TaskSet((list(tasks) * 13)[:n]), "x0")
        heights.append(ax.get_figure().get_figheight())
        assert len(ax.get_yticks()) == (n if n <= 40 else 0)
        pyplot.close(ax.get_figure())
    assert heights[0] < heights[2] < heights[1]


ERRORS = {
    "not fitted": (
        lambda _, ts: plots.effects(ltl.BayesLTL(), ts, "x0"),
        NotFittedError,
        "has not seen a task",
    ),
    "another learner": (
        lambda _, ts: plots.effects(ltl.ITL().fit(ts), ts, "x0"),
        TypeError,
        "learner must be a BayesLTL, got ITL",
    ),
    "unknown feature": (
        lambda learner, ts: plots.effects(learner, ts, "age"),
        ValueError,
        "feature must be one of x0, x1, x2, intercept, got 'age'",
    ),
    "a number for a feature": (
        lambda learner, ts: plots.effects(learner, ts, 1),
        ValueError,
        "feature must be one of .*, got 1",
    ),
    "other features": (
        lambda learner, ts: plots.effects(learner, ts.map_inputs(lambda X: X[:, :2]), "x0"),
        ValueError,
        "X has 2 features, but BayesLTL is expecting 3",
    ),
    "a list of tasks": (
        lambda learner, ts: plots.effects(learner, list(ts), "x0"),
        TypeError,
        "tasks must be a TaskSet, got list",
    ),
    "level": (
        lambda learner, ts: plots.effects(learner, ts, "x0", level=1.5),
        ValueError,
        "level must be a number between 0 and 1, got 1.5",
    ),
    "one weight": (
        lambda learner, ts: plots.shrinkage(learner, ts, "x0"),
        ValueError,
        "features must be the names of two weights, got 'x0'",
    ),
    "the same weight": (
        lambda learner, ts: plots.shrinkage(learner, ts, ("x0", "x0")),
        ValueError,
        "features must be the names of two weights",
    ),
    "unknown weight": (
        lambda learner, ts: plots.shrinkage(learner, ts, ("x0", "x9")),
        ValueError,
        "feature must be one of x0, x1, x2, intercept, got 'x9'",
    ),
    "no curve": (lambda _, ts: plots.learning_curve([]), ValueError, "two or more errors"),
    "triples": (
        lambda _, ts: plots.learning_curve([(1, 2, 3)] * 3),
        ValueError,
        r"curve must hold .* got an array of shape \(3, 3\)",
    ),
    "nan": (
        lambda _, ts: plots.learning_curve([1.0, np.nan]),
        ValueError,
        "curve must hold finite",
    ),
    "negative": (
        lambda _, ts: plots.learning_curve([1.0, -1.0]),
        ValueError,
        "curve must hold squared errors, got -1",
    ),
    "other tasks": (
        lambda learner, ts: plots.coverage(learner, ts[:2], ts[2:4]),
        ValueError,
        "test must hold the tasks of train in order",
    ),
    "coverage before fit": (
        lambda _, ts: plots.coverage(ltl.BayesLTL(), ts, ts),
        NotFittedError,
        "has not seen a task",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_leave_no_figure(case, learner, tasks):
    call, kind, message = ERRORS[case]
    before = pyplot.get_fignums()
    with pytest.raises(kind, match=message):
        call(learner, tasks)
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize("name", PLOTS)
def test_plots_without_matplotlib(name, learner, tasks, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'fastltl\[report\]'"):
        PLOTS[name](learner, tasks, None)


@pytest.mark.slow
def test_matplotlib_is_imported_by_plots_only():
    code = (
        "import sys, fastltl\n"
        "for name in fastltl.__all__: getattr(fastltl, name)\n"
        "learner = fastltl.BayesLTL().fit([([[1.0], [2.0]], [1.0, 3.0])] * 3)\n"
        "str(learner.summary())\n"
        "print('matplotlib' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
