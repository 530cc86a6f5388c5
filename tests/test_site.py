"""Build the documentation with warnings as errors, and follow its links."""

import html.parser
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.compiled]

ROOT = Path(__file__).parent.parent


class Page(html.parser.HTMLParser):
    """The anchors, the links and the loaded files of a page."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), set(), set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.anchors.add(values.get("id"))
        if tag == "a" and values.get("href"):
            self.links.add(values["href"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.add(values["href"])
        if tag in ("script", "img", "iframe", "source") and values.get("src"):
            self.loaded.add(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site from a copy of its sources, and return its folder."""
    pytest.importorskip("sphinx", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("site").resolve()
    generated = shutil.ignore_patterns("_build", "generated", "gallery")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=generated)
    shutil.copytree(ROOT / "examples", folder / "examples")
    for page in ROOT.glob("*.md"):
        shutil.copy(page, folder)
    command = ["sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html", "docs", "site"]
    run = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html") if "_static" not in path.parts}


def test_links_and_anchors_resolve(site, pages):
    assert {"index.html", "tutorial.html", "api", "gallery"} <= {
        path.name for path in site.iterdir()
    }
    broken = []
    for path, page in pages.items():
        for link in page.links | page.loaded:
            address = urllib.parse.urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = path
            if address.path:
                target = (path.parent / urllib.parse.unquote(address.path)).resolve()
            anchors = pages[target].anchors if target in pages else ()
            has_anchor = urllib.parse.unquote(address.fragment) in anchors
            if not target.is_file() or (address.fragment and target in pages and not has_anchor):
                broken.append((path.name, link))
    assert not broken


def test_pages_need_no_network(pages):
    loaded = {source for page in pages.values() for source in page.loaded}
    assert loaded
    assert not {source for source in loaded if urllib.parse.urlsplit(source).netloc}


def test_every_public_name_has_an_entry(site):
    import fastltl

    anchors = {name for path in site.rglob("*.html") for name in Page(path).anchors}
    modules = [getattr(fastltl, name) for name in fastltl._MODULES]
    names = {f"fastltl.{name}" for name in fastltl._HOMES}
    names |= {f"module-{module.__name__}" for module in modules}
    names |= {f"{module.__name__}.{name}" for module in modules for name in public_names(module)}
    assert not names - anchors


def public_names(module):
    """Return the names of the functions and classes that a module offers."""
    return set(getattr(module, "__all__", ())) or {
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    }


def test_every_example_of_the_gallery_has_a_page_with_pictures(site, pages):
    scripts = sorted((ROOT / "examples").glob("plot_*.py"))
    assert len(scripts) >= 6
    for script in scripts:
        page = pages[site / "gallery" / f"{script.stem}.html"]
        assert any(f"sphx_glr_{script.stem}_" in source for source in page.loaded)
        assert "Warning:" not in (site / "gallery" / f"{script.stem}.html").read_text()
