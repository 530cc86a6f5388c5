"""Tests of fastltl.experiments.charts, figures, advice and report, also in a real browser."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import fastltl as ltl
from fastltl import experiments
from fastltl._arguments import build_parser
from fastltl.experiments import advice, charts, figures, paper, report
from fastltl.experiments.verdict import ALONE, BATCH, BAYES, INTERCEPTS, METHODS, ONLINE, SLOPES

NAMES = {"methods", "learning", "tasks", "coverage"}
TITLE, ABOUT = "Does <sharing> help?", "Tasks & targets."
SOURCE = {"file": "exam.csv", "task": "school", "target": "score", "features": None, "drop": []}


@pytest.fixture(scope="module")
def tasks():
    environment = ltl.datasets.make_environment(5, 1, noise=0.1, random_state=0)
    return environment.tasks(16, 10)


@pytest.fixture(scope="module")
def comparison(tasks):
    return ltl.compare(tasks, repeats=2)


@pytest.fixture(scope="module")
def compared(comparison):
    """Return results with a row for each method, whether or not GPBoost is installed."""
    results = deepcopy(comparison.results)
    rows = {row["method"]: row for row in results["methods"]}
    for name in (INTERCEPTS, SLOPES):
        rows.setdefault(name, rows[ONLINE] | {"method": name})
        for task in results["tasks"]:
            task["mse"].setdefault(name, task["mse"][ONLINE])
    results["methods"] = [rows[name] for name in METHODS]
    return results | {"left_out": {}}


@pytest.fixture(scope="module")
def comparison_page(compared, tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    return report.write_comparison(compared, TITLE, ABOUT, out, SOURCE)


def recommending(results, method):
    """Return the results with another verdict."""
    sentence = f"Use {method}: it is the one."
    return results | {"verdict": results["verdict"] | {"use": method, "sentence": sentence}}


@pytest.fixture(scope="module")
def reproduction_page(tmp_path_factory):
    """Write the page of all experiments from fake results."""
    out = tmp_path_factory.mktemp("reproduced")
    return report.write_reproduction([fake_results(name) for name in paper.EXPERIMENTS], out)


def fake_results(name):
    """Return results of an experiment with made-up values of its cells."""
    experiment = paper.EXPERIMENTS[name]
    cells = experiment.cells(0, 2, name != "grid")
    rows = []
    for cell in cells:
        better = 1.0 - 0.01 * cell.get("trial", 0)
        if name == "grid":
            methods = dict.fromkeys((paper.ALONE, *paper.ONLINE))
            values = {m: [better] * len(cell["n_tasks"]) for m in methods}
            values[paper.DEFAULT] = [better - 0.02 * k for k in range(15)]
        elif name == "timing":
            methods = (*paper.BATCHES, *paper.ONLINE)
            seconds = {f"{m}{kind}": better for m in methods for kind in ("", ", plain NumPy")}
            starts = [f"{m}, {start} start" for m in paper.BATCHES for start in ("cold", "warm")]
            values = {"seconds": seconds, "iterations": dict.fromkeys(starts, 7 * better)}
        elif name == "bounds":
            values = experiment.compute(cell)
        else:
            values = dict.fromkeys((paper.ALONE, paper.MULTITASK), better)
            values |= {paper.SUBSPACE: better / 2} if name == "stream" else {}
            values |= {m: [better] * 35 for m in paper.ONLINE}
            values |= {m: [better] * len(cell["batch_after"]) for m in paper.BATCHES}
        rows.append(cell | values)
    manifest = {"experiment": name, "parameters": {"trials": 2, "quick": True, "seed": 0}}
    summary = experiment.summarise(rows)
    return {"manifest": manifest, "cells": [], "warnings": {"odd": 3}, "summary": summary}


class Page(HTMLParser):
    """Collect the references, ids and text of a page."""

    def __init__(self, path):
        super().__init__()
        self.references, self.ids, self.text = [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                self.references.append(value)

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize(
    "which", ["comparison_page", pytest.param("reproduction_page", marks=pytest.mark.slow)]
)
def test_page_is_self_contained_and_ids_are_unique(which, request):
    path = request.getfixturevalue(which)
    page = Page(path)
    linked = {name for name in page.references if not name.startswith(("#", "data:"))}
    names = paper.EXPERIMENTS if which == "reproduction_page" else ["results"]
    assert linked == {f"{name}.json" for name in names}
    assert len(page.ids) == len(set(page.ids))
    assert {reference[1:] for reference in page.references if reference[0] == "#"} <= set(page.ids)
    content = path.read_text(encoding="utf-8")
    assert not re.search(r"@import|url\((?!#)", content)
    assert set(re.findall(r"url\(#([^)]+)\)", content)) <= set(page.ids)
    assert "<script" not in content


def test_text_is_escaped(comparison_page):
    content = comparison_page.read_text(encoding="utf-8")
    assert "Does &lt;sharing&gt; help?" in content
    assert "Tasks &amp; targets." in content


def test_page_shows_the_results(compared, comparison_page):
    text = " ".join("".join(Page(comparison_page).text).split())
    assert compared["verdict"]["sentence"] in text
    assert text.index(compared["verdict"]["sentence"]) < text.index("Methods")
    for row in compared["methods"]:
        assert row["method"] in text
        assert f"{row['mse']:.4g}" in text
    assert "done 2 times" in text
    assert compared["manifest"]["machine"]["cpu"] in text
    saved = json.loads((comparison_page.parent / "results.json").read_text(encoding="utf-8"))
    assert saved == json.loads(json.dumps(compared))


def test_columns_are_explained(compared, comparison_page):
    content = comparison_page.read_text(encoding="utf-8")
    columns = set(re.findall(r'<th scope="col">(.*?)</th>', content))
    assert {"explained %", "gain %", "95 % interval", "deviation"} <= columns
    assert columns <= set(re.findall(r"<dt>(.*?):</dt>", content))


def test_methods_left_out_are_listed(compared, tmp_path):
    left_out = {BATCH: "it takes <long>"}
    kept = [row for row in compared["methods"] if row["method"] != BATCH]
    results = compared | {"left_out": left_out, "methods": kept}
    content = report.write_comparison(results, "", "", tmp_path).read_text(encoding="utf-8")
    assert f"<dt>{BATCH}:</dt> <dd>left out, since it takes &lt;long&gt;.</dd>" in content


@pytest.mark.parametrize(
    "method",
    [one if one == BAYES else pytest.param(one, marks=pytest.mark.slow) for one in METHODS],
)
def test_method_to_use_is_marked(compared, method, tmp_path):
    path = report.write_comparison(recommending(compared, method), "", "", tmp_path)
    content = path.read_text(encoding="utf-8")
    assert f"<strong>Use {method}:</strong> it is the one." in content
    (row,) = re.findall(r'<tr class="marked">(.*?)</tr>', content)
    assert row.startswith(f'<td class="words">{method} <span class="badge">use this</span></td>')
    assert content.count('class="badge"') == 1


def test_most_important_features_are_shown(compared):
    def feature(k, scale=1.0):
        return {"name": f"f{k}", "mean": 0.1 * k, "deviation": 0.01, "scale": scale}

    features = [feature(k) for k in range(30)] + [feature(50, scale=1e-3)]
    intercept = {"name": "intercept", "mean": 0.0, "deviation": 0.0, "scale": 1.0}
    learned = {"features": [*features, intercept], "noise": 0.5, "expected_error": 0.7}
    section = report._learned_section(learned)
    assert [row[0] for row in section.table.rows] == [
        *(f"f{k}" for k in range(29, 14, -1)),
        "intercept",
    ]
    assert section.table.rows[0] == ("f29", "2.90", "0.01", "2.88 to 2.92")
    assert section.table.rows[-1] == ("intercept", "0", "0", "0 to 0")
    assert "The 15 of 31 features" in section.text[-1]
    assert "where f29 is larger by 1, the prediction changes by 2.90 on average" in section.text[0]


@pytest.mark.parametrize(
    ("number", "unit", "shown"),
    [
        (4e-139, 0.2, "0.000"),
        (-4e-139, 0.2, "0.000"),
        (12.345, 84.6, "12.3"),
        (-5.79, 84.6, "-5.8"),
        (123456.0, 123456.0, "123000"),
        (1.23456e9, 1e9, "1.23e+09"),
        (-1e-12, 3e-8, "0"),
        (2.5e-8, 3e-8, "2.5e-08"),
    ],
)
def test_numbers_are_rounded_to_their_unit(number, unit, shown):
    assert report._rounded(number, unit) == shown


def test_pictures_are_saved_as_files(comparison_page):
    for name in NAMES:
        svg = ElementTree.parse(comparison_page.parent / f"{name}.svg").getroot()
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
        assert (comparison_page.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_names_of_pictures_are_known_before_they_are_drawn(compared):
    for results in (compared, *map(fake_results, paper.EXPERIMENTS)):
        name = results["manifest"]["experiment"]
        assert [picture.name for picture in figures.draw(results)] == figures.PICTURES[name]


def test_words_from_right_to_left_are_isolated():
    """Otherwise a browser would put the second number to the left of the first."""
    text = "+0.5 \u05e9\u05dd \u05e8\u05d1, -0.4 \u0639<b>"
    shown = "+0.5 <bdi>\u05e9\u05dd \u05e8\u05d1</bdi>, -0.4 <bdi>\u0639</bdi>&lt;b&gt;"
    assert report.isolated(text) == shown
    assert report.isolated("a \u202e1") == "a \\u202e1"


def test_title_of_the_page_has_no_tags(compared, tmp_path):
    path = report.write_comparison(compared, "\u05e9\u05dd <1> \x1b", "", tmp_path)
    content = path.read_text(encoding="utf-8")
    assert "<title>\u05e9\u05dd &lt;1&gt; \\x1b</title>" in content
    assert "<h1><bdi>\u05e9\u05dd</bdi> &lt;1&gt; \\x1b</h1>" in content


@pytest.mark.slow
def test_output_is_reproducible(compared, comparison_page, tmp_path):
    again = report.write_comparison(compared, TITLE, ABOUT, tmp_path, SOURCE)
    names = {path.name for path in comparison_page.parent.iterdir()}
    assert len(names) == 2 + 2 * len(NAMES)
    for name in names:
        assert (again.parent / name).read_bytes() == (comparison_page.parent / name).read_bytes()


def test_comparison_writes_its_report(comparison, tmp_path):
    page = comparison.write_report(tmp_path / "new")
    assert page == tmp_path / "new" / "report.html"
    text = "".join(Page(page).text)
    assert comparison.verdict in " ".join(text.split())
    assert "16 tasks, 5 features, 160 rows." in text
    assert (page.parent / "results.json").exists()


@pytest.mark.parametrize("package", ["matplotlib", "jinja2"])
def test_report_without_its_packages_names_the_extra(comparison, package, monkeypatch, tmp_path):
    for name in ("report", "figures", "charts"):
        monkeypatch.delitem(sys.modules, f"fastltl.experiments.{name}")
        monkeypatch.delattr(experiments, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}: pip install 'fastltl\[report\]'"):
        comparison.write_report(tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Steps that follow a comparison


@pytest.mark.parametrize("method", [BAYES, ONLINE])
def test_first_steps_are_commands(compared, method):
    train, adapt, python = advice.next_steps(recommending(compared, method), SOURCE)
    learner = " --learner online --validation 5" if method == ONLINE else ""  # of 16 tasks
    columns = "--task school --target score"
    assert train.code == f"fastltl train exam.csv {columns}{learner} --checkpoint exam.npz"
    assert adapt.code == "fastltl adapt exam.npz new.csv"
    assert ("intervals" in adapt.text) == (method == BAYES)
    assert 'from_frame(table, "school", "score")' in python.code


HOSTILE = {
    "file": "my data/-it's $(1).csv",
    "task": "-school name",
    "target": "sc`ore\x1b[31m\n",
    "features": ["a b", "-c", "d;e"],
    "drop": ["f\u202e", "g"],
}


@pytest.mark.parametrize("source", [SOURCE, HOSTILE, HOSTILE | {"file": "-f", "features": None}])
def test_commands_are_quoted(compared, source):
    train, adapt, _ = advice.next_steps(recommending(compared, BAYES), source)
    arguments, adapting = ([*run_by_shell(step.code)] for step in (train, adapt))
    assert arguments[:2] == ["fastltl", "train"]
    # The parser need not know all the options for the others to be checked.
    options, others = build_parser().parse_known_args(arguments[1:])
    assert str(options.stream) == str(Path(source["file"]))
    assert (options.task, options.target) == (source["task"], source["target"])
    assert options.features == source["features"]
    found = getattr(options, "drop", None) or [name for name in others if name[:2] != "--"]
    assert found == list(source["drop"])
    assert str(options.checkpoint) == f"{Path(source['file']).stem}.npz"
    assert build_parser().parse_args(adapting[1:]).checkpoint == options.checkpoint


def run_by_shell(command):
    """Return the arguments that a shell makes of a command."""
    assert command.isprintable()
    if sys.platform == "win32" or not (bash := shutil.which("bash")):
        pytest.skip("needs bash, for which Windows does not quote")
    printed = subprocess.run(
        [bash, "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True
    ).stdout
    return printed.decode().split("\0")[:-1]


def test_plain_names_are_not_quoted(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    assert advice.quote("exam.csv") == "exam.csv"
    assert shlex.split(advice.quote("it's a")) == ["it's a"]
    assert advice.quote("a\x1b'\\") == r"$'a\x1b\'\\'"


@pytest.mark.sample(4)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("has_source", [False, True])
def test_lines_of_python_run(compared, tasks, method, has_source, tmp_path):
    if method in (INTERCEPTS, SLOPES):
        pytest.importorskip("gpboost")
    pd = pytest.importorskip("pandas")
    labels = np.repeat(tasks.labels, tasks.sizes).astype(int)
    X, y = map(np.concatenate, zip(*tasks, strict=True))
    table = pd.DataFrame(X).add_prefix("x").assign(**{"the school": labels, "score": y})
    path = tmp_path / "exam.csv"
    table.to_csv(path, index=False)
    source = SOURCE | {"file": str(path), "task": "the school"}
    steps = advice.next_steps(recommending(compared, method), source if has_source else None)
    codes = [step.code for step in steps if step.code.startswith("import ")]
    assert codes
    label = tasks.labels[0]
    for code in codes:
        names = {
            "tasks": tasks, "label": label, "X": X[:6], "y": y[:6], "X_new": X[6:10],
            "groups_new": [label] * 4,
        }  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lam is at the edge of the candidates
            exec(code, names)
        error = np.mean((np.asarray(names["prediction"]) - y[6:10]) ** 2)
        assert error < 2 * np.var(y)
        assert np.shape(names["prediction"]) == (4,)


def test_mixed_model_has_a_formula_and_a_distance(compared):
    features = [{"name": name} for name in ("sex=F", "sex=M", "age", "2nd try", "intercept")]
    results = deepcopy(recommending(compared, SLOPES)) | {"learned": {"features": features}}
    for row in results["methods"]:
        row["mse"] = {SLOPES: 1.0, BAYES: 1.034}.get(row["method"], row["mse"])
    r, gpboost, train, _ = advice.next_steps(results, SOURCE | {"drop": ["id"]})
    terms = "sex + age + `2nd try`"
    assert f"lmer(score ~ {terms} + (1 + {terms} || school), table)" in r.code
    assert 'table[["sex", "age", "2nd try"]]' in gpboost.code  # no identifiers left out
    assert "error is 3.4 % higher" in train.text
    assert train.code.startswith("fastltl train exam.csv")
    r, *_ = advice.next_steps(recommending(results, INTERCEPTS), SOURCE | {"features": ["age"]})
    assert "lmer(score ~ age + (1 | school), table)" in r.code


def test_parquet_files_are_read_as_such(compared):
    source = SOURCE | {"file": "exam.parquet", "features": ["a"], "drop": ["b"]}
    train, adapt, python = advice.next_steps(recommending(compared, BAYES), source)
    assert "--features a --drop b --checkpoint exam.npz" in train.code
    assert adapt.code == "fastltl adapt exam.npz new.parquet"
    assert 'pd.read_parquet("exam.parquet")' in python.code
    assert 'from_frame(table, "school", "score", ["a"], drop=["b"])' in python.code


# Pictures


def test_labels_are_spread():
    heights = np.array([0.0, 0.0, 0.02, 0.5, 0.97, 1.0, 1.0])
    places = charts.spread(heights, 0.08)
    assert np.diff(places).min() >= 0.08 - 1e-12
    assert places[0] >= 0.0
    assert places[-1] <= 1.0
    assert places[3] == 0.5
    np.testing.assert_allclose(charts.spread(np.array([0.4, 0.42]), 0.1), [0.36, 0.46])


@pytest.mark.slow
def test_a_method_far_worse_than_others_does_not_rule_the_picture(compared):
    results = deepcopy(compared)
    results["methods"][2] |= {"explained": -80.0, "interval": [-9e3, -8e3], "gain": -8.5e3}
    methods, learning, *_ = figures.draw(results)
    assert methods.figure.axes[0].get_xlim()[0] > -100
    assert learning.figure.axes[0].get_ylim()[0] > -100


def test_tasks_are_compared_with_the_best_other_method_if_each_alone_is_best(compared):
    for row in compared["methods"]:
        assert charts.shown_method(recommending(compared, row["method"])) != ALONE
    picture = figures.draw(recommending(compared, ALONE))[2]
    assert picture.name == "tasks"
    others = [row for row in compared["methods"] if row["method"] != ALONE]
    best = min(others, key=lambda row: row["mse"])["method"]
    n_better = sum(task["mse"][best] < task["mse"][ALONE] for task in compared["tasks"])
    assert f"with {best}, against ridge" in picture.caption
    assert f"which {n_better} of 16 tasks are" in picture.caption


@pytest.mark.parametrize("errors", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_tasks_without_error_can_be_drawn(compared, errors):
    mse = dict.fromkeys(METHODS, errors[0]) | {BAYES: errors[1]}
    tasks = [{"label": "a", "n_rows": 3, "mse": mse}] * 4
    picture = figures.draw(recommending(compared, BAYES) | {"tasks": tasks})[2]
    assert np.isfinite(picture.figure.axes[0].get_xlim()).all()
    charts.render(picture, "png")


def test_many_tasks_are_drawn_as_an_image(compared):
    random = np.random.default_rng(0)
    sizes = {}
    for n_tasks in (400, 4000, 16000):
        errors = np.exp(random.normal(size=(n_tasks, len(METHODS))))
        tasks = [{"mse": dict(zip(METHODS, row, strict=True))} for row in errors.tolist()]
        picture = figures.draw(compared | {"tasks": tasks})[2]
        svg = report.inline_svg(picture)
        assert ("data:image/png" in svg) == (n_tasks > charts.MANY_POINTS)
        sizes[n_tasks] = len(svg)
    assert sizes[16000] < 1.5 * sizes[4000]


@pytest.mark.slow
def test_fewest_tasks_can_be_drawn(tmp_path):
    tasks = ltl.datasets.make_environment(1, 1, noise=0.1, random_state=0).tasks(4, 2)
    page = ltl.compare(tasks, repeats=1).write_report(tmp_path)
    assert "with only 4 tasks" in page.read_text(encoding="utf-8")


def test_curves_of_one_trial_have_no_interval():
    results = fake_results("stream")
    rows = [row | {"low": None, "high": None} for row in results["summary"]]
    pictures = figures.draw(results | {"summary": rows})
    assert [picture.name for picture in pictures] == ["stream-paper-noise", "stream-lower-noise"]


CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def open_page(browser, path: Path, width: int, scheme: str) -> None:
    emulation = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", emulation)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get("about:blank")  # clear the logs of the start page
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(path.as_uri())


def luminance(colour):
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


@pytest.mark.slow
@pytest.mark.parametrize("which", ["comparison_page", "reproduction_page"])
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_browser_shows_the_page(browser, which, width, scheme, request):
    path = request.getfixturevalue(which)
    open_page(browser, path, width, scheme)
    assert browser.get_log("browser") == []
    requested = [
        match
        for entry in browser.get_log("performance")
        if "Network.requestWillBeSent" in entry["message"]
        for match in re.findall(r'"url":"([^"]+)"', entry["message"])
    ]
    assert path.as_uri() in requested
    assert {url.split(":")[0] for url in requested} <= {"file", "data"}
    pictures = browser.find_elements("css selector", "figure svg")
    assert len(pictures) == (4 if which == "comparison_page" else 10)
    for picture in pictures:
        assert picture.size["width"] > 250
        assert picture.size["height"] > 100
        assert picture.size["width"] <= width
    # Only tables may be wider than the screen; they scroll on their own.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    page, ink, label = (
        luminance(browser.execute_script(f"return getComputedStyle({element}).{style}"))
        for element, style in (
            ("document.body", "backgroundColor"),
            ("document.body", "color"),
            ("document.querySelector('figure svg text')", "fill"),
        )
    )
    assert (page < 0.2) == (scheme == "dark")
    assert abs(page - ink) > 0.5
    assert abs(page - label) > 0.5


#: Returns the widths of what is in the element, and those of the element, for each of a kind.
WIDTHS = """
return [...document.querySelectorAll(arguments[0])].map(e => [e.scrollWidth, e.clientWidth]);
"""

#: Returns the edges of the texts of a picture.
EDGES = """
return [...document.querySelectorAll(arguments[0])].map(e => {
  const edges = e.getBoundingClientRect();
  return [e.textContent, edges.left, edges.right, edges.top, edges.bottom];
});
"""


@pytest.mark.slow
def test_phone_shows_tables_whole(browser, comparison_page):
    open_page(browser, comparison_page, 390, "light")
    for element, least in (
        (".table", 2),
        (".table td", 50),
        (".table th", 7),
        (".steps .command", 2),
    ):
        widths = browser.execute_script(WIDTHS, element)
        assert len(widths) >= least
        assert all(inside <= outside + 1 for inside, outside in widths)
    shown = browser.execute_script(EDGES, ".table td")
    assert all(edges[2] > edges[1] and edges[2] <= 390 for edges in shown)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("picture", sorted(NAMES))
def test_texts_of_pictures_do_not_overlap(browser, compared, picture, width, tmp_path):
    """All methods but one explain the same, so that their labels would be in one place."""
    alike = [row | {"explained": 0.7} for row in compared["methods"]]
    alike[1] |= {"explained": -0.2}
    page = report.write_comparison(compared | {"methods": alike}, TITLE, "", tmp_path)
    open_page(browser, page, width, "light")
    texts = browser.execute_script(EDGES, f"#{picture} svg text")
    assert len(texts) > 5
    for k, (text, left, right, top, bottom) in enumerate(texts):
        assert left >= 0
        assert right <= width
        for other, *edges in texts[:k]:
            apart = edges[0] >= right or edges[1] <= left or edges[2] >= bottom - 2
            assert apart or edges[3] <= top + 2, f"{text} overlaps {other}"
