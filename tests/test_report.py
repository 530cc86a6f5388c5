"""Tests of fastltl.experiments.figures and report, also in a real browser."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_comparison import make_tasks

from fastltl.experiments import compare, figures, paper, report

NAMES = {"learning", "gains", "spectrum"}


@pytest.fixture(scope="module")
def compared():
    return compare.compare(make_tasks(n_tasks=16))


@pytest.fixture(scope="module")
def comparison_page(compared, tmp_path_factory):
    title, about = "Does <sharing> help?", "Tasks & targets."
    return report.write_comparison(compared, title, about, tmp_path_factory.mktemp("compared"))


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


@pytest.mark.parametrize("which", ["comparison_page", "reproduction_page"])
def test_page_is_self_contained_and_ids_are_unique(which, request):
    path = request.getfixturevalue(which)
    page = Page(path)
    assert all(reference.startswith(("#", "data:")) for reference in page.references)
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
    text = " ".join(Page(comparison_page).text)
    assert compared["verdict"]["sentence"] in text
    for row in compared["methods"]:
        assert row["method"] in text
        assert f"{row['mse']:.4g}" in text
    assert "effective rank" in text
    assert compared["manifest"]["machine"]["cpu"] in text


def test_pictures_are_saved_as_files(comparison_page):
    for name in NAMES:
        svg = ElementTree.parse(comparison_page.parent / f"{name}.svg").getroot()
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
        assert (comparison_page.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")


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


def test_output_is_reproducible(compared, comparison_page, tmp_path):
    again = report.write_comparison(compared, "Does <sharing> help?", "Tasks & targets.", tmp_path)
    for path in comparison_page.parent.iterdir():
        assert (again.parent / path.name).read_bytes() == path.read_bytes()


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
    assert len(pictures) == (3 if which == "comparison_page" else 10)
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
