"""Compare `fastltl train` with what it cannot do without: parsing a file, and learning."""

import tempfile
from functools import partial
from pathlib import Path

import pyarrow
from pyarrow import csv, parquet

import fastltl as ltl
from benchmarks.timing import _Comparison
from fastltl.io.tables import BLOCK_BYTES
from fastltl.train import Settings, Training

N_TASKS, N_FEATURES, N_SAMPLES = 20_000, 20, 10


def write_files(folder):
    """Write the same tasks to a Parquet and a CSV file; return the file of each kind."""
    environment = ltl.datasets.make_environment(N_FEATURES, noise=0.1, random_state=0)
    tasks = environment.tasks(N_TASKS, N_SAMPLES)
    table = pyarrow.Table.from_pandas(tasks.to_frame("task", "y"), preserve_index=False)
    files = {kind: folder / f"tasks.{kind}" for kind in ("parquet", "csv")}
    parquet.write_table(table, files["parquet"], compression="none", use_dictionary=["task"])
    csv.write_csv(table, files["csv"])
    return files


def parse(file):
    """Let pyarrow alone parse a file in blocks, on one thread."""
    if file.suffix == ".parquet":
        with parquet.ParquetFile(file) as source:
            rows = BLOCK_BYTES // (8 * (N_FEATURES + 2))
            return sum(len(batch) for batch in source.iter_batches(rows, use_threads=False))
    options = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    with csv.open_csv(file, read_options=options) as source:
        return sum(len(batch) for batch in source)


def train(file):
    settings = Settings(None, "task", "y", None, (), True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "c.npz"
        training = Training(file, checkpoint, settings, "error", False, lambda: False)
        training.prepare()
        training.run(None)
    return training.learner.covariance_


def parse_and_fit(file, tasks):
    parse(file)
    return ltl.BayesLTL().fit(tasks).covariance_


class Stream(_Comparison):
    """Time `fastltl train` on a file of 20,000 tasks; d = 20, n = 10.

    The other side parses the file by pyarrow, and learns from the same tasks in memory.
    """

    unit = "fastltl train / pyarrow and fit"
    params = (["parquet", "csv"],)
    param_names = ("file",)
    tolerance = 1e-12

    def setup_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            return {kind: file.read_bytes() for kind, file in write_files(Path(folder)).items()}

    def runs(self, contents, kind):
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / f"tasks.{kind}"
        file.write_bytes(contents[kind])
        tasks = ltl.open_stream(file, task="task", target="y").collection()
        return partial(train, file), partial(parse_and_fit, file, tasks)

    def teardown(self, *params):
        super().teardown(*params)
        self.folder.cleanup()
