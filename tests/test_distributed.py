"""Learners on a real cluster of worker processes, some of which are killed."""

import os
import re
import signal
import subprocess
import sys
import threading
from copy import copy
from functools import partial

import numpy as np
import psutil
import pyarrow
import pytest
import recipes
from distributed import Client, LocalCluster
from pyarrow import csv, parquet

import fastltl as ltl
from fastltl import cli
from fastltl._bayes_run import SQUARES, BayesRun
from fastltl.distributed import ShardedTaskSet, fit_path, fit_sharded
from fastltl.distributed.shards import ShardedObjective
from fastltl.experiments import compare, results

pytestmark = [pytest.mark.slow, pytest.mark.compiled, pytest.mark.filterwarnings("ignore")]

#: Difference of solutions that rounding may make: sums over shards have another order.
SOLVER = 1e-7

N_TASKS = 60
TASKS = recipes.environment_tasks(N_TASKS)


@pytest.fixture(scope="module")
def client(request):
    """A client of a cluster with two workers, or as many as the test requests."""
    options = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    n_workers = getattr(request, "param", 2)
    with LocalCluster(n_workers=n_workers, **options) as cluster, Client(cluster) as client:
        yield client


on_two_and_four_workers = pytest.mark.parametrize("client", [2, 4], indirect=True)


@pytest.fixture(scope="module", autouse=True)
def _no_process_leaks():
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [
        child
        for child in psutil.Process().children(recursive=True)
        if child.pid not in before and "resource_tracker" not in " ".join(child.cmdline())
    ]
    _, left = psutil.wait_procs(left, timeout=600)
    assert not left


def shards(n_shards, *seconds):
    waits = [*seconds, *[0.0] * n_shards]
    return [partial(recipes.shard, i, n_shards, N_TASKS, waits[i]) for i in range(n_shards)]


def relative(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@pytest.mark.parametrize(
    "learner",
    [
        ltl.BatchLTL(1e-2),
        ltl.BatchLTL(1e-4, fit_intercept=True),
        ltl.BatchLTL(1e-2, objective="error"),
        ltl.MTL(1e-2),
        ltl.MTL(1e-3, fit_intercept=True),
    ],
    ids=str,
)
@on_two_and_four_workers
def test_batch_learners_match_one_machine(client, learner):
    tasks = ShardedTaskSet(shards(5), client)
    assert (len(tasks), tasks.n_features) == (60, 8)
    alone = learner.fit(TASKS)
    wanted, objective = alone.D_, alone.objective_
    weights = getattr(alone, "coef_", None), getattr(alone, "intercept_", None)
    found = learner.fit(tasks)
    assert relative(found.D_, wanted) < SOLVER
    assert found.objective_ == pytest.approx(objective, rel=1e-12)
    if weights[0] is not None:
        assert relative(found.coef_, weights[0]) < SOLVER
        assert np.allclose(found.intercept_, weights[1], atol=SOLVER)
        assert found.predict(TASKS[7][0], [7] * 12).shape == (12,)


def test_results_do_not_depend_on_the_order_of_arrival(client):
    first = ltl.MTL(1e-2).fit(ShardedTaskSet(shards(3), client))
    for waits in ((0.5, 0.0, 0.0), (0.0, 0.3, 0.6)):
        later = ltl.MTL(1e-2).fit(ShardedTaskSet(shards(3, *waits), client))
        assert np.array_equal(later.D_, first.D_)
        assert np.array_equal(later.coef_, first.coef_)


def test_many_shards_are_summed_in_a_tree(client):
    tasks = ShardedTaskSet(shards(30), client)
    assert relative(ltl.BatchLTL(1e-2).fit(tasks).D_, ltl.BatchLTL(1e-2).fit(TASKS).D_) < SOLVER


def test_target_unit_is_common_to_all_shards(client):
    tasks = [
        ltl.TaskSet([(X, y * 10.0 ** (9 * i)) for X, y in TASKS[20 * i :][:20]]) for i in (0, 1)
    ]
    sharded = ShardedTaskSet([partial(ltl.TaskSet, list(part)) for part in tasks], client)
    whole = ltl.TaskSet([*tasks[0], *tasks[1]])
    assert relative(ltl.MTL(1e-2).fit(sharded).D_, ltl.MTL(1e-2).fit(whole).D_) < SOLVER


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"geometry": "euclidean", "fit_intercept": True},
        {"objective": "error", "geometry": "euclidean", "step": "theory", "score_every": 1},
        {"lams": [1e-3, 1e-2, 1e-1], "step_scale": [1.0, 2.0], "averaging": "last"},
        {"lams": [0.1]},
    ],
    ids=str,
)
@on_two_and_four_workers
def test_fit_path_matches_one_machine_exactly(client, options):
    validation = TASKS[:10].split_samples(0.5, random_state=0)
    alone = ltl.OnlineLTLPath(validation=validation, **options).fit(TASKS)
    path = ltl.OnlineLTLPath(validation=validation, **options)
    assert fit_path(path, ShardedTaskSet(shards(3), client)) is path
    for _ in range(2):
        assert np.array_equal(path.representations_, alone.representations_)
        assert np.allclose(path.scores_, alone.scores_, rtol=1e-13)
        assert path.n_tasks_seen_ == alone.n_tasks_seen_
        alone.partial_fit(*TASKS[0])
        path.partial_fit(*TASKS[0])


RULES = [
    {"geometry": "entropic"},
    {"geometry": "euclidean"},
    {"objective": "error", "geometry": "entropic"},
    {"objective": "error", "geometry": "euclidean", "step": "theory"},
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_fit_sharded_on_one_shard_matches_fit(client, rule):
    """Merging a single run changes only rounding errors."""
    alone = ltl.OnlineLTL(1e-2, **rule).fit(TASKS)
    found = fit_sharded(ltl.OnlineLTL(1e-2, **rule), ShardedTaskSet(shards(1), client), every=7)
    assert found.n_tasks_seen_ == 60
    assert relative(found.D_, alone.D_) < 1e-12
    assert relative(found.iterate_, alone.iterate_) < 1e-12
    assert found.cumulative_loss_ == pytest.approx(alone.cumulative_loss_, rel=1e-12)
    with pytest.raises(AttributeError, match="needs tasks that came one after another"):
        _ = found.regret_bound_


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_fit_sharded_merges_the_runs_of_the_shards(client, rule):
    """Compare with three independent runs that are merged by hand."""
    learner = ltl.OnlineLTL(1e-2, **rule)
    found = fit_sharded(learner, ShardedTaskSet(shards(3), client), every=1000)
    runs = [ltl.OnlineLTL(1e-2, **rule).fit(TASKS[20 * i : 20 * i + 20]) for i in range(3)]
    assert relative(found.D_, np.mean([run.D_ for run in runs], axis=0)) < 1e-12
    assert found.cumulative_loss_ == pytest.approx(sum(run.cumulative_loss_ for run in runs))
    if rule["geometry"] == "euclidean":
        assert relative(found.iterate_, np.mean([run.iterate_ for run in runs], axis=0)) < 1e-12
    else:
        records = np.concatenate([run._run.state.records for run in runs])
        S = sum(run._run.state.matrices[0] for run in runs)
        norm = np.sqrt(np.sum(records["norm"] ** 2))
        eta = 2 * np.sqrt(np.log(9)) / norm
        assert relative(found.iterate_, ltl.reference.entropic_iterate(S, eta, 100.0)) < 1e-12
    eigenvalues = np.linalg.eigvalsh(found.iterate_)
    assert eigenvalues[0] >= -1e-11
    assert eigenvalues.sum() <= 100.0 * (1 + 1e-12)
    found.partial_fit(*TASKS[0])
    assert found.n_tasks_seen_ == 61


PRIORS = [{}, {"fit_intercept": False}, {"fit_mean": False}, {"half_life": 20.0}]


@pytest.mark.parametrize("settings", PRIORS, ids=str)
def test_a_prior_learned_from_one_shard_matches_fit(client, settings):
    alone = ltl.BayesLTL(**settings).fit(TASKS)
    found = fit_sharded(ltl.BayesLTL(**settings), ShardedTaskSet(shards(1), client), every=7)
    assert found.n_tasks_seen_ == 60
    assert relative(found.covariance_, alone.covariance_) < 1e-12
    assert found.mean_ == pytest.approx(alone.mean_, rel=1e-9, abs=1e-12)


def state_of(learner):
    return [array.tobytes() for array in learner._run.state]


@on_two_and_four_workers
def test_a_prior_does_not_depend_on_the_number_of_workers(client):
    """Merge by hand what each shard learns in one process."""
    found = fit_sharded(ltl.BayesLTL(), ShardedTaskSet(shards(4), client), every=5)
    expected = ltl.BayesLTL()
    run = expected._new_run(8)
    run.set_units(TASKS)
    for first in range(0, 15, 5):
        ends = []
        for i in range(4):
            learner = ltl.BayesLTL()
            learner._continue_run(copy(run), TASKS)
            for X, y in TASKS[15 * i + first : 15 * i + first + 5]:
                learner.partial_fit(X, y)
            ends.append(learner._run)
        run.merge(ends)
    expected._continue_run(run, TASKS)
    assert state_of(found) == state_of(expected)


def test_sums_of_a_prior_add_up_over_shards(client):
    """With one merge at the end, A, c, F, b and the counts are those of the separate runs."""
    found = fit_sharded(ltl.BayesLTL(), ShardedTaskSet(shards(3), client), every=1000)
    state, record = found._run.state, found._run.state.records[0]
    assert (record["n_tasks"], record["t"], record["n_rows"]) == (60, 60, 720)
    alone = [ltl.BayesLTL() for _ in range(3)]
    for i, learner in enumerate(alone):
        learner._continue_run(learner._new_run(8), TASKS)
        learner._run.set_units(TASKS)
        for X, y in TASKS[20 * i : 20 * i + 20]:
            learner.partial_fit(X, y)
    for name in ("precision", "weighted", "moments", "sums"):
        total = sum(getattr(learner._run.state, name) for learner in alone)
        assert relative(getattr(state, name), total) < 1e-12
    # At a start from nothing, S is the mean by information.
    gains = np.array([learner._run.state.records[0]["information"] for learner in alone])
    mean = np.tensordot(gains / gains.sum(), [s._run.state.covariance for s in alone], axes=1)
    assert relative(state.covariance, mean) < 1e-12
    assert np.linalg.eigvalsh(found.covariance_)[0] > 0
    assert found.partial_fit(*TASKS[0]).n_tasks_seen_ == 61


def test_a_prior_learned_side_by_side_predicts_as_well(client):
    parts = [partial(recipes.shard, i, 4, 240) for i in range(4)]
    sharded = ShardedTaskSet(parts, client)
    found = fit_sharded(ltl.BayesLTL(), sharded, every=15)
    alone = ltl.BayesLTL().fit(recipes.environment_tasks(240))
    new = ltl.datasets.make_environment(8, noise=0.1, random_state=0)
    new.tasks(240, 12)
    test = new.tasks(200, 16).split_samples(0.5, random_state=0)
    errors = [ltl.evaluate(learner, *test).mean() for learner in (found, alone)]
    assert errors[0] < 1.05 * errors[1]


def test_shards_that_forget_keep_their_errors_positive(client):
    """Errors that fall tenfold must not be carried below zero by a merge."""
    tasks = [(X, y * (1.0 if i % 15 < 10 else 0.1)) for i, (X, y) in enumerate(TASKS)]
    parts = [partial(ltl.TaskSet, tasks[15 * i : 15 * i + 15]) for i in range(4)]
    learner = fit_sharded(ltl.BayesLTL(half_life=5.0), ShardedTaskSet(parts, client), every=5)
    assert (learner._run.state.table[:, :, SQUARES] >= 0).all()
    assert learner.loo_error_ > 0
    assert learner.noise_ > 0
    assert np.isfinite(learner.adapt(*TASKS[0]).coef_).all()


def test_shards_may_disagree_on_the_units_of_a_feature(client):
    """A feature that first varies in two shards at once is measured in the units of one."""
    rng = np.random.default_rng(0)

    def tasks(factor, n_tasks=10):
        zero, varied = np.array([1.0, 0.0]), np.array([1.0, factor])
        for t in range(n_tasks):
            X = rng.normal(size=(12, 2)) * (zero if t == 0 else varied)
            yield X, X @ [1.0, 500.0] + 0.1 * rng.normal(size=12)

    parts = [partial(ltl.TaskSet, list(tasks(factor))) for factor in (1e-3, 1e-3, 4e-3)]
    found = fit_sharded(ltl.BayesLTL(), ShardedTaskSet(parts, client), every=5)
    assert found.n_tasks_seen_ == 30
    assert np.isfinite(found.covariance_).all()
    assert np.linalg.eigvalsh(found.covariance_ / np.outer(*[[1, 1e3, 1]] * 2))[0] > -1e-9
    assert found.mean_[:2] == pytest.approx([1.0, 500.0], rel=0.1)


def test_tasks_without_variation_set_no_units(client):
    constant = partial(ltl.TaskSet, [(np.ones((3, 8)), np.zeros(3))] * 2)
    found = fit_sharded(ltl.BayesLTL(), ShardedTaskSet([constant, *shards(1)], client), every=30)
    assert found.n_tasks_seen_ == 62
    assert relative(found.covariance_, ltl.BayesLTL().fit(TASKS).covariance_) < 1e-3
    nothing = fit_sharded(ltl.BayesLTL(), ShardedTaskSet([constant, constant], client))
    assert nothing.n_tasks_seen_ == 4
    assert nothing.predict(np.ones((1, 8))) == 0


def test_several_passes_are_not_for_shards(client):
    with pytest.raises(ValueError, match="n_passes must be 1 for fit_sharded, got 2"):
        fit_sharded(ltl.BayesLTL(n_passes=2), ShardedTaskSet(shards(1), client))
    with pytest.raises(TypeError, match=r"use distributed\.fit_sharded for a cluster"):
        ltl.BayesLTL(n_passes=2).fit(ShardedTaskSet(shards(1), client))


@pytest.mark.parametrize("scale", [1e-100, 1e100])
@pytest.mark.parametrize("rule", RULES[:2], ids=str)
def test_merges_do_not_depend_on_the_units_of_targets(client, rule, scale):
    tasks = [(X, scale * y) for X, y in TASKS]
    alone = ltl.OnlineLTL(1e-2, **rule).fit(tasks)
    sharded = ShardedTaskSet([partial(ltl.TaskSet, tasks)], client)
    found = fit_sharded(ltl.OnlineLTL(1e-2, **rule), sharded, every=7)
    assert relative(found.D_, alone.D_) < 1e-12


def test_repeated_labels_are_paired_with_the_shard(client):
    parts = [partial(ltl.TaskSet, list(TASKS[20 * i : 20 * i + 20])) for i in range(2)]
    model = ltl.MTL(1e-2).fit(ShardedTaskSet(parts, client))
    assert model.labels_[0] == (0, 0)
    assert model.labels_[-1] == (1, 19)
    assert model.predict(TASKS[0][0], [(1, 0)] * 12).shape == (12,)


def test_shards_of_different_lengths(client):
    parts = [partial(recipes.shard, 0, 1, n) for n in (3, 10, 25)]
    learner = fit_sharded(ltl.OnlineLTL(1e-2), ShardedTaskSet(parts, client), every=4)
    assert learner.n_tasks_seen_ == 38


def test_from_files(client, tmp_path):
    X, y = (np.concatenate(arrays) for arrays in zip(*TASKS, strict=True))
    columns = {f"x{j}": X[:, j] for j in range(8)}
    table = pyarrow.table({"task": np.repeat(np.arange(60).astype(str), 12), **columns, "y": y})
    csv.write_csv(table.slice(0, 360), tmp_path / "a.csv")
    parquet.write_table(table.slice(360), tmp_path / "b.parquet")
    paths = [tmp_path / "a.csv", tmp_path / "b.parquet"]
    tasks = ShardedTaskSet.from_files(paths, client, task="task", target="y")
    assert repr(tasks) == "ShardedTaskSet(60 tasks, 8 features, 2 shards)"
    model = ltl.MTL(1e-2).fit(tasks)
    assert relative(model.D_, ltl.MTL(1e-2).fit(TASKS).D_) < SOLVER
    assert list(model.feature_names_in_) == list(columns)
    assert list(model.labels_[:2]) == ["0", "1"]
    with pytest.raises(ValueError, match=r"shard 0: target must name a column of .*a.csv"):
        ShardedTaskSet.from_files(paths, client, task="task", target="z")
    with pytest.raises(OSError, match=r"shard 1: .*No such file or folder"):
        ShardedTaskSet.from_files([paths[0], tmp_path / "c.csv"], client, task="task", target="y")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (recipes.with_nan, r"shard 1: task 2: X must hold finite numbers only, got NaN at"),
        (recipes.two_widths, "shard 1: task 2: X has 9 features, but the first task is expect"),
        (recipes.wide, "shard 1 must have the 8 features of shard 0, got 9"),
        (recipes.not_tasks, "shard 1: its function must return a TaskSet, got list"),
        (partial(ltl.TaskSet, []), "shard 1: tasks must hold at least one task"),
        (recipes.timed_out, "shard 1: the network is slow"),
        (recipes.badly_encoded, "shard 1: UnicodeDecodeError: 'utf-8' codec can't decode"),
        (recipes.incomplete, "shard 1: KeyError: 'store'"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_errors_name_the_shard(client, bad, message):
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        ShardedTaskSet([*shards(1), bad], client)


def test_errors_name_a_task_that_is_too_large(client):
    tasks = ShardedTaskSet([*shards(1), recipes.too_large], client)
    learner = ltl.OnlineLTL().fit(TASKS)
    before = learner.D_
    for fit in (fit_sharded, lambda _, tasks: fit_path(ltl.OnlineLTLPath(), tasks)):
        with pytest.raises(ValueError, match="shard 1: task 2: X and y must not be so large"):
            fit(learner, tasks)
    assert np.array_equal(learner.D_, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": []}, "shards must hold at least one function, got none"),
        ({"shards": [TASKS]}, "shard 0 must be a function, got TaskSet"),
        ({"timeout": 0}, "timeout must be a positive finite number, got 0"),
        ({"client": "tcp://localhost"}, "client must be a distributed.Client, got str"),
    ],
)
def test_bad_arguments(client, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ShardedTaskSet(**{"shards": shards(2), "client": client} | arguments)
    tasks = ShardedTaskSet(shards(2), client)
    with pytest.raises(ValueError, match="every must be a positive integer, got 0"):
        fit_sharded(ltl.OnlineLTL(), tasks, every=0)
    with pytest.raises(ValueError, match="lam must be"):
        fit_sharded(ltl.OnlineLTL(-1), tasks)
    with pytest.raises(TypeError, match="expected OnlineLTL or BayesLTL, got BatchLTL"):
        fit_sharded(ltl.BatchLTL(), tasks)
    with pytest.raises(TypeError, match="expected ShardedTaskSet, got TaskSet"):
        fit_path(ltl.OnlineLTLPath(), TASKS)
    with pytest.raises(TypeError, match=r"X must be a TaskSet, .* got ShardedTaskSet"):
        ltl.ITL().fit(tasks)
    with pytest.raises(
        TypeError, match=r"paths must be an iterable of paths, got the path 'a.csv'"
    ):
        ShardedTaskSet.from_files("a.csv", client)
    validation = ltl.TaskSet([(np.ones((4, 3)), np.ones(4))] * 2).split_samples(0.5)
    with pytest.raises(ValueError, match="X has 8 features, but the tasks of validation have 3"):
        fit_path(ltl.OnlineLTLPath(validation=validation), tasks)


def run_at_call(monkeypatch, n_calls, action):
    """Run `action` during a fit, before the n-th evaluation of the objective."""
    calls, evaluate = [], ShardedObjective.value_and_gradient

    def evaluate_after_action(self, D):
        calls.append(1)
        if len(calls) == n_calls:
            action()
        return evaluate(self, D)

    monkeypatch.setattr(ShardedObjective, "value_and_gradient", evaluate_after_action)


@on_two_and_four_workers
def test_killing_a_worker_during_a_fit_does_not_change_the_result(client, monkeypatch):
    """Another worker loads the lost shards again."""
    learner = ltl.BatchLTL(1e-3, tol=1e-8)
    expected = learner.fit(ShardedTaskSet(shards(4), client)).D_
    tasks = ShardedTaskSet(shards(4), client)
    victim = next(iter(client.run(os.getpid).values()))
    run_at_call(monkeypatch, 4, lambda: os.kill(victim, signal.SIGKILL))
    found = learner.fit(tasks).D_
    assert not psutil.pid_exists(victim)
    assert np.array_equal(found, expected)


def test_killing_a_worker_does_not_change_a_prior(client, monkeypatch):
    learner = ltl.BayesLTL()
    expected = state_of(fit_sharded(learner, ShardedTaskSet(shards(4), client), every=4))
    tasks = ShardedTaskSet(shards(4), client)
    victim, merge = next(iter(client.run(os.getpid).values())), BayesRun.merge

    def merge_after_a_loss(run, ends):
        if run.n_tasks == 16:  # after the first round
            os.kill(victim, signal.SIGKILL)
        merge(run, ends)

    monkeypatch.setattr(BayesRun, "merge", merge_after_a_loss)
    found = state_of(fit_sharded(learner, tasks, every=4))
    assert not psutil.pid_exists(victim)
    assert found == expected


@pytest.fixture
def processes():
    """A scheduler, a worker and the address; no nanny restarts them."""
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0"]
    command += ["--no-dashboard", "--host", "127.0.0.1"]
    path = {"env": os.environ | {"PYTHONPATH": os.path.dirname(recipes.__file__)}}
    scheduler = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **path)
    address = next(filter(None, (re.search(r"tcp://\S+", line) for line in scheduler.stderr)))[0]
    drain = threading.Thread(target=lambda: list(scheduler.stderr), daemon=True)
    drain.start()
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny"]
    command += ["--nthreads", "1", "--no-dashboard"]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL, **path)
    yield scheduler, worker, address
    for process in (worker, scheduler):
        process.kill()
        process.wait()
    drain.join()
    scheduler.stderr.close()


def test_killing_the_scheduler_during_a_fit_raises(processes, monkeypatch):
    """A warm start resumes from the last iterate."""
    scheduler, _, address = processes
    client = Client(address, timeout=600)
    try:
        client.wait_for_workers(1)
        tasks = ShardedTaskSet(shards(2), client, timeout=5)
        learner = ltl.BatchLTL(1e-2, tol=1e-8, warm_start=True)
        run_at_call(monkeypatch, 6, scheduler.kill)
        with pytest.raises(
            ConnectionError, match="client is not connected: no answer from the scheduler at"
        ):
            learner.fit(tasks)
    finally:
        client.close(timeout=2)
    assert not learner.__sklearn_is_fitted__()
    alone = ltl.BatchLTL(1e-2, tol=1e-8).fit(TASKS)
    learner.fit(TASKS)
    assert learner.n_iter_ < alone.n_iter_
    assert learner.objective_ == pytest.approx(alone.objective_, rel=1e-8)


def test_compare_prints_the_same_numbers_on_a_cluster(processes, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "LEAST_SECONDS", np.inf)  # or a busy machine leaves methods out
    *_, address = processes
    table = tmp_path / "table.csv"
    X, y = (np.concatenate(arrays) for arrays in zip(*TASKS, strict=True))
    columns = {f"x{j}": X[:, j] for j in range(8)}
    csv.write_csv(pyarrow.table({"task": np.repeat(np.arange(60), 12), **columns, "y": y}), table)
    command = ["compare", str(table), "--task", "task", "--target", "y", "--jobs", "1"]
    command += ["--repeats", "1"]
    printed = []
    for options in (["--dask", address], []):
        out = tmp_path / f"out{len(options)}"
        assert cli.main([*command, "--out", str(out), *options]) == 0
        lines = capsys.readouterr().out.splitlines()
        seconds = r"\s+\d+\.\d(\s+<- use this)?$"
        printed.append([re.sub(seconds, r"\1", line) for line in lines[:-1]])
    assert printed[0] == printed[1]
    monkeypatch.setattr(results, "CONNECT", 1)
    assert cli.main([*command, "--dask", "tcp://127.0.0.1:1", "--out", str(out)]) == 2
    message = "dask must be the address of a scheduler, as tcp://host:8786, got 'tcp://127.0.0.1:1'"
    assert message in capsys.readouterr().err


def test_waiting_for_workers_times_out(processes):
    _, worker, address = processes
    with Client(address, timeout=600) as client:
        client.wait_for_workers(1)
        tasks = ShardedTaskSet(shards(2), client, timeout=3)
        worker.kill()
        with pytest.raises(ConnectionError, match="no workers for 3 s"):
            ltl.BatchLTL().fit(tasks)


def test_map_on_cluster_raises_when_workers_die(processes, monkeypatch):
    """Results computed before are returned first."""
    _, worker, address = processes
    monkeypatch.setattr(results, "TIMEOUT", 3)
    work = partial(recipes.wait_and_return, 0.5)
    with Client(address, timeout=600) as client:
        client.wait_for_workers(1)
    answers = results.map_on_cluster(work, list(range(100)), address)
    assert next(answers) in range(100)
    worker.kill()
    with pytest.raises(ConnectionError, match="no workers for 3 s"):
        list(answers)


def test_a_closed_client_raises(client):
    tasks = ShardedTaskSet(shards(2), client)
    with Client(client.scheduler.address) as other:
        closed = ShardedTaskSet(shards(2), other)
    with pytest.raises(ConnectionError, match="client is not connected"):
        ltl.BatchLTL().fit(closed)
    assert ltl.BatchLTL().fit(tasks).n_features_in_ == 8
