"""The compiled core: kernels, which take arrays and scalars and give back the same.

Arrays are float64 and C-contiguous, and matrices D, Q and S are symmetric; `fastltl._validation`
sees to that at the boundary. `fastltl.reference` has a plain-NumPy twin, of the same name and
signature, of each kernel that is a formula of its own.
"""

from fastltl._kernels.batch import (
    compute_duals,
    factor_changes,
    low_rank_factor,
    mean_gradient,
    objectives,
    objectives_in_turns,
    reduce_tasks,
    ridge_paths,
    score,
    score_weights,
    weights_from_duals,
    weights_of_tasks,
)
from fastltl._kernels.linalg import EPS
from fastltl._kernels.online import (
    MEET,
    MEET_AND_STEP,
    MOST_DRIFT,
    STEP,
    follow_duals,
    learn_entropic,
    learn_euclidean,
    start_over,
    sums_of_iterates,
)
from fastltl._kernels.rooms import RECORD, begin, iterate, parts_of, room_for
from fastltl._kernels.spectral import (
    compose,
    entropic_iterate,
    features,
    least_eigenvalue,
    project,
    rank_one_update,
    rank_two_update,
    soft_threshold,
)
from fastltl._kernels.task import (
    all_finite,
    centre,
    compress,
    loss_and_factors,
    mirror,
    ridge_weights,
    task_gradient,
    task_loss,
    task_loss_and_gradient,
    truncate,
)
from fastltl._kernels.turns import BOARD_SIZE, LEAVE, begin_turn

__all__ = [
    "BOARD_SIZE",
    "EPS",
    "LEAVE",
    "MEET",
    "MEET_AND_STEP",
    "MOST_DRIFT",
    "RECORD",
    "STEP",
    "all_finite",
    "begin",
    "begin_turn",
    "centre",
    "compose",
    "compress",
    "compute_duals",
    "entropic_iterate",
    "factor_changes",
    "features",
    "follow_duals",
    "iterate",
    "learn_entropic",
    "learn_euclidean",
    "least_eigenvalue",
    "loss_and_factors",
    "low_rank_factor",
    "mean_gradient",
    "mirror",
    "objectives",
    "objectives_in_turns",
    "parts_of",
    "project",
    "rank_one_update",
    "rank_two_update",
    "reduce_tasks",
    "ridge_paths",
    "ridge_weights",
    "room_for",
    "score",
    "score_weights",
    "soft_threshold",
    "start_over",
    "sums_of_iterates",
    "task_gradient",
    "task_loss",
    "task_loss_and_gradient",
    "truncate",
    "weights_from_duals",
    "weights_of_tasks",
]
