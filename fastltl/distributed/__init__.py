"""Fit learners on a Dask cluster, whose workers hold the tasks in shards."""

from fastltl.distributed.online import fit_path, fit_sharded
from fastltl.distributed.shards import ShardedTaskSet

__all__ = ["ShardedTaskSet", "fit_path", "fit_sharded"]
