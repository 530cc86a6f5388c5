"""Say what to do after a comparison: the commands and the lines of code for the method to use."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastltl._text import printable
from fastltl.experiments.results import Results
from fastltl.experiments.verdict import (
    ALONE,
    BATCH,
    BAYES,
    INTERCEPTS,
    MULTITASK,
    ONLINE,
    POOLED,
    SLOPES,
)

#: Where the tasks come from: "file", "task", "target", and "features" and "drop" or None.
Source = Mapping[str, Any]


class Step(NamedTuple):
    """A thing to do in words, and its command or lines of code."""

    text: str
    code: str


def next_steps(results: Results, source: Source | None = None) -> list[Step]:
    """Return what to do with the recommended method; a command comes first if there is one.

    `source` says which file and columns were compared. Without it the steps are for Python.
    """
    use = results["verdict"]["use"]
    python = "In Python:" if source else "In Python, with the tasks that were compared:"
    if use in (INTERCEPTS, SLOPES):
        has_slopes = use == SLOPES
        steps = [
            Step("In R, with lme4:", _lme4(results, source, has_slopes)),
            Step("In Python, with GPBoost:", _gpboost(results, source, has_slopes)),
        ]
        mse = {row["method"]: row["mse"] for row in results["methods"]}
        excess = 100 * (mse[BAYES] / mse[use] - 1)
        behind = (
            f"Or BayesLTL, whose error is {excess:.1f} % higher. It learns task by task, from "
            "files of any size, and predicts with intervals."
        )
        if source is None:
            return [*steps, Step(behind, _script([*_read(None), *PYTHON[BAYES].splitlines()]))]
        learn, *others = _commands(BAYES, source, results["data"]["n_tasks"])
        return [*steps, Step(f"{behind} {learn.text}", learn.code), *others]
    n_tasks = results["data"]["n_tasks"]
    steps = _commands(use, source, n_tasks) if source and use in (BAYES, ONLINE) else []
    steps.append(Step(python, _script([*_read(source), *PYTHON[use].splitlines()])))
    if source is None:
        command = "fastltl compare table.csv --task COLUMN --target COLUMN"
        steps.append(Step("With a table of your own, CSV or Parquet:", command))
    return steps


def _commands(use: str, source: Source, n_tasks: int) -> list[Step]:
    """Return the commands that learn from the file, and that predict with what was learned."""
    kept = [str(max(1, n_tasks // 3))] if use == ONLINE and n_tasks < 60 else None  # default 20
    file, target = Path(source["file"]), source["target"]
    checkpoint, new = _positional(f"{file.stem}.npz"), f"new{file.suffix or '.csv'}"
    arguments = [
        _positional(source["file"]),
        *_option("--task", [source["task"]]),
        *_option("--target", [target]),
        *_option("--features", source.get("features")),
        *_option("--drop", source.get("drop")),
        *_option("--learner", ["online"] if use == ONLINE else None),
        *_option("--validation", kept),
        "--checkpoint",
        checkpoint,
    ]
    predictions = "predictions with intervals" if use == BAYES else "predictions"
    unlabelled = " A task may have no row with a target." if use == BAYES else ""
    return [
        Step(
            "Learn from all tasks. When tasks are added to the file, the same command goes on from "
            "its checkpoint. Beyond 8 MB the rows of a task must be adjacent.",
            " ".join(["fastltl train", *map(quote, arguments)]),
        ),
        Step(
            f"Predict tasks, new ones too: rows with a value of {target} say what their task is "
            f"like, and all rows get {predictions}.{unlabelled}",
            f"fastltl adapt {quote(checkpoint)} {quote(new)}",
        ),
    ]


def _option(name: str, values: Sequence[str] | None) -> list[str]:
    """Return the arguments of an option; values may begin with a hyphen."""
    if any(value.startswith("-") for value in values or ()):
        return [f"{name}={value}" for value in values or ()]
    return [name, *values] if values else []


def _positional(file: str) -> str:
    return f"./{file}" if file.startswith("-") else file


def quote(text: str) -> str:
    """Quote text for a shell; control characters become escapes, which bash and zsh read."""
    if sys.platform == "win32":  # Windows shells read no escapes, and cmd reads no single quotes
        return subprocess.list2cmdline([printable(text)])
    if printable(text) == text:
        return shlex.quote(text)
    escaped = text.replace("\\", r"\\").replace("'", r"\'")
    return f"$'{printable(escaped)}'"


def _literal(value: Any) -> str:
    """Return a string or list of strings as Python and R write it."""
    return printable(json.dumps(value, ensure_ascii=False))


# Python

_SCALE = """\
scaler = StandardScaler().fit(np.concatenate([X for X, _ in tasks]))
tasks = tasks.map_inputs(scaler.transform)"""

_LEARN = f"""\
import numpy as np
from sklearn.preprocessing import StandardScaler
{_SCALE}
training, validation = tasks[tasks.sizes > 1].split((0.7, 0.3), random_state=0)
halves = validation.split_samples(0.5, random_state=0)
lam = ltl.select_lam(ltl.NAME(fit_intercept=True), training, halves).best_lam
learner = ltl.NAME(lam, fit_intercept=True).fit(tasks)
model = learner.adapt(scaler.transform(X), y)  # some rows of a task, new or not
prediction = model.predict(scaler.transform(X_new))"""

#: Lines that follow the definition of `tasks`.
PYTHON = {
    BAYES: """\
learner = ltl.BayesLTL().fit(tasks)
model = learner.adapt(X, y)  # some rows of a task, new or not
prediction, std = model.predict(X_new, return_std=True)""",
    ONLINE: _LEARN.replace("NAME", "OnlineLTL"),
    BATCH: _LEARN.replace("NAME", "BatchLTL"),
    MULTITASK: "\n".join(
        [
            *_LEARN.replace("NAME", "MTL").splitlines()[:-2],
            "prediction = learner.predict(scaler.transform(X_new), groups_new)",
        ]
    ),
    POOLED: """\
import numpy as np
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
X, y = (np.concatenate(parts) for parts in zip(*tasks))
ridge = RidgeCV(len(y) * np.logspace(-6, 3, 30))
model = make_pipeline(StandardScaler(), ridge).fit(X, y)
prediction = model.predict(X_new)""",
    ALONE: f"""\
import numpy as np
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler
{_SCALE}
usable = tasks[tasks.sizes > 1]
halves = usable.split_samples(0.5, random_state=0)
lam = ltl.select_lam(ltl.ITL(fit_intercept=True), usable, halves).best_lam
models = {{label: Ridge(lam * len(y)).fit(X, y) for label, (X, y) in zip(tasks.labels, tasks)}}
prediction = models[label].predict(scaler.transform(X_new))""",
}


def _read(source: Source | None) -> list[str]:
    """Return the lines that read the tasks."""
    if source is None:
        return ["import fastltl as ltl"]
    names = ["table", _literal(source["task"]), _literal(source["target"])]
    if source.get("features"):
        names.append(_literal(list(source["features"])))
    if source.get("drop"):
        names.append(f"drop={_literal(list(source['drop']))}")
    return [
        "import fastltl as ltl",
        *_read_table(source),
        f"tasks = ltl.TaskSet.from_frame({', '.join(names)})",
    ]


def _script(lines: Sequence[str]) -> str:
    """Join lines of Python, with the imports first."""
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    return "\n".join([*imports, "", *(line for line in lines if line not in imports)])


def _read_table(source: Source) -> list[str]:
    reader = "read_parquet" if _is_parquet(source) else "read_csv"
    return ["import pandas as pd", f"table = pd.{reader}({_literal(source['file'])})"]


def _is_parquet(source: Source) -> bool:
    return Path(source["file"]).suffix.lower() in (".parquet", ".pq")


# Mixed models


def _lme4(results: Results, source: Source | None, has_slopes: bool) -> str:
    """Return lines of R that fit the mixed model."""
    features = " + ".join(map(_r_name, _columns(results, source)))
    task, target = (_r_name(source[key]) if source else key for key in ("task", "target"))
    random = f"(1 + {features} || {task})" if has_slopes else f"(1 | {task})"
    lines = ["library(lme4)"]
    if source is not None:
        file = _literal(source["file"])
        read = f"read.csv({file}, check.names = FALSE)"
        lines.append(f"table <- {f'arrow::read_parquet({file})' if _is_parquet(source) else read}")
    lines += [
        f"model <- lmer({target} ~ {features} + {random}, table)",
        "prediction <- predict(model, new_rows, allow.new.levels = TRUE)",
    ]
    return "\n".join(lines)


def _columns(results: Results, source: Source | None) -> list[str]:
    """Return the columns of the table that are features."""
    if source and source.get("features"):
        return list(source["features"])
    names = [feature["name"] for feature in results["learned"]["features"][:-1]]
    # Indicators of the values of a text column are named column=value.
    return list(dict.fromkeys(name.partition("=")[0] for name in names))


def _r_name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z][\w.]*", name, re.ASCII):
        return name
    return f"`{printable(name.replace('`', chr(92) + '`'))}`"


def _gpboost(results: Results, source: Source | None, has_slopes: bool) -> str:
    """Return lines of Python that fit the mixed model."""
    lines = ["import gpboost", "import numpy as np"]
    if source is None:
        lines += [
            "X, y = (np.concatenate(parts) for parts in zip(*tasks))",
            "groups = np.repeat(tasks.labels, tasks.sizes)",
        ]
    else:
        task, target = _literal(source["task"]), _literal(source["target"])
        rows = f"table[{_literal(_columns(results, source))}]"
        lines += [
            *_read_table(source),
            f"X = pd.get_dummies({rows}, drop_first=True, dtype=float)",
            f"y, groups = table[{target}], table[{task}]",
        ]
    slopes = ["    group_rand_coef_data=X, ind_effect_group_rand_coef=[1] * X.shape[1],"]
    lines += [
        "model = gpboost.GPModel(",
        "    group_data=groups,",
        *(slopes if has_slopes else []),
        ")",
        "model.fit(y=y, X=np.column_stack([np.ones(len(X)), X]))",
        "prediction = model.predict(",
        "    X_pred=np.column_stack([np.ones(len(X_new)), X_new]),",
        "    group_data_pred=groups_new,",
        *(["    group_rand_coef_data_pred=X_new,"] if has_slopes else []),
        ')["mu"]',
    ]
    return _script(lines)
