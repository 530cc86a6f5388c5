"""Evaluations that threads share in turns: the same bits, whoever comes, goes, fails or is late."""

import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest
from naive import random_psd

import fastltl as ltl
from fastltl import kernels, threads
from fastltl._kernels import turns
from fastltl._kernels.compilation import HAS_JIT, compiled

pytestmark = pytest.mark.skipif(not HAS_JIT, reason="only compiled code shares in turns")


@compiled
def take_all(board, n_pieces, from_end, times_taken):
    """Take what there is in this turn, and say which pieces it was."""
    turn = turns.look(board, turns.TURN)
    piece = turns.take(board, turn, n_pieces, from_end)
    while piece >= 0:
        times_taken[piece] += 1
        turns.add(board, turns.DONE, 1)
        piece = turns.take(board, turn, n_pieces, from_end)


def new_board():
    return np.zeros(kernels.BOARD_SIZE, np.int64)


def large_objective(n_threads, penalised=False):
    """One that is worth sharing, and whose tasks take different times."""
    environment = ltl.datasets.make_environment(40, random_state=0)
    tasks = [task for n in (5, 20, 39) for task in environment.tasks(40, n)]
    return ltl.TaskSet(tasks).mean_objective(penalised, False, n_threads)


def representations(n, d=40):
    rng = np.random.default_rng(0)
    return [random_psd(rng, d, rank, 1e3) for rank in (1, 7, 25, 39, 40) * (n // 5)]


@pytest.mark.parametrize("n_pieces", [1, 3, 1000])
def test_each_piece_is_taken_once_a_turn(n_pieces):
    board, n_takers = new_board(), 4
    for turn in range(1, 40):
        taken = np.zeros((n_takers, n_pieces), np.int64)
        kernels.begin_turn(board, 0)
        takers = [
            threading.Thread(target=take_all, args=(board, n_pieces, i % 2 == 0, row))
            for i, row in enumerate(taken)
        ]
        for taker in takers:
            taker.start()
        while not turns.watch(board, turns.DONE, n_pieces):
            pass
        assert (taken.sum(axis=0) == 1).all()
        for taker in takers:
            taker.join()
        assert board[turns.TURN] == turn


def test_nothing_is_left_to_take_for_who_comes_late_or_is_a_turn_behind():
    board, taken = new_board(), np.zeros(10, np.int64)
    kernels.begin_turn(board, 0)
    take_all(board, 10, False, taken)
    take_all(board, 10, True, taken)
    assert (taken == 1).all()
    assert board[turns.DONE] == 10

    @compiled
    def take_in(board, turn, from_end):
        return turns.take(board, turn, 10, from_end)

    kernels.begin_turn(board, 0)
    assert take_in(board, 1, False) == -1
    assert [take_in(board, 2, side) for side in (False, True, True, False)] == [0, 9, 8, 1]
    kernels.begin_turn(board, kernels.LEAVE)
    assert take_in(board, 3, False) == take_in(board, 3, True) == -1


def test_nobody_watches_for_ever():
    board = new_board()
    assert not turns.watch(board, turns.DONE, 1)
    assert turns.watch(board, turns.DONE, 0)


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("n_threads", [2, 3, 8])
def test_evaluations_have_the_same_bits_in_any_number_of_threads(penalised, n_threads):
    alone, shared = large_objective(1, penalised), large_objective(n_threads, penalised)
    for i, D in enumerate(representations(40)):
        value, gradient = alone.value_and_gradient(D)
        shared_value, shared_gradient = shared.value_and_gradient(D)
        assert shared_value == value
        assert np.array_equal(shared_gradient, gradient)
        if i % 7 == 0:
            shared.rest()
        if i % 11 == 0:
            time.sleep(0.01)  # longer than anybody watches
        if i % 5 == 0:
            assert np.array_equal(shared.curvature(D), alone.curvature(D))


def test_evaluations_of_several_at_a_time():
    expected = [large_objective(1).value_and_gradient(D)[0] for D in representations(5)]

    def evaluate(found):
        objective = large_objective(2)
        found += [objective.value_and_gradient(D)[0] for D in representations(5)]

    found = [[] for _ in range(4)]
    workers = [threading.Thread(target=evaluate, args=(values,)) for values in found]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all(values == expected for values in found)


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core: nobody helps")
def test_who_fails_is_heard_where_work_is_missing_and_does_no_harm_later(monkeypatch):
    """A helper takes its share and fails: nobody else will do it."""
    objective, D = large_objective(2), representations(5)[-1]
    expected = large_objective(1).value_and_gradient(D)[0]
    kernel, is_taken = kernels.objectives_in_turns, threading.Event()

    def failing(*arguments):
        board, stays = arguments[-2:]
        if not stays:
            assert is_taken.wait(10)
            return kernel(*arguments)
        turn = board[turns.TURN]
        board[turns.TAKEN] = turn * turns.TURN_UNIT + 3
        is_taken.set()
        raise MemoryError("no room")

    monkeypatch.setattr(kernels, "objectives_in_turns", failing)
    with pytest.raises(MemoryError, match="no room"):
        objective.value_and_gradient(D)
    monkeypatch.setattr(kernels, "objectives_in_turns", kernel)
    assert objective.value_and_gradient(D)[0] == expected


def test_nothing_outlives_its_objective():
    """Not even until Python looks for cycles, which large arrays do not make it do."""
    objective = large_objective(2)
    objective.value_and_gradient(np.eye(40))
    objective.rest()
    array = weakref.ref(objective._factors)
    gc.disable()
    try:
        del objective
        deadline = time.monotonic() + 10
        while array() is not None and time.monotonic() < deadline:
            time.sleep(0.01)  # until the helper has left
        assert array() is None
    finally:
        gc.enable()


def test_there_are_no_more_watchers_than_cores(monkeypatch):
    monkeypatch.setattr(threads, "_n_cores", lambda: 1)
    objective, asked = large_objective(8), []
    monkeypatch.setattr(threads, "_helped", lambda *arguments: asked.append(arguments) or [])
    objective.value_and_gradient(np.eye(40))
    assert not asked


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_evaluates_though_its_helpers_stayed_behind():
    objective, D = large_objective(2), representations(5)[-1]
    expected = objective.value_and_gradient(D)[0]
    child = os.fork()
    if child == 0:
        os._exit(0 if objective.value_and_gradient(D)[0] == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
