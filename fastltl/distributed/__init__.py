"""The same learners on a Dask cluster: tasks in shards that stay on the workers."""

from fastltl.distributed.online import fit_path, fit_sharded
from fastltl.distributed.shards import ShardedTaskSet

__all__ = ["ShardedTaskSet", "fit_path", "fit_sharded"]
