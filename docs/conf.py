"""Configuration of the site: `sphinx-build -W --keep-going -n -b html docs docs/_build`."""

import contextlib
import io
import re
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from numpydoc.docscrape_sphinx import SphinxDocString
from sphinx import addnodes
from sphinx.util.nodes import make_refnode

import fastltl
from fastltl.cli import main

project = "fastltl"
copyright = "the fastltl developers"
release = version = fastltl.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
smartquotes = False  # X' is a transpose
default_role = "literal"  # `link_names` links what is public
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "fastltl"
html_static_path = ["_static"]
html_css_files = ["fastltl.css"]
html_show_sourcelink = False
html_theme_options = {
    "github_url": "https://github.com/fastltl/fastltl",
    "header_links_before_dropdown": 5,
    "navigation_with_keys": False,
    "show_prev_next": False,
    "show_toc_level": 2,
}
# Pages without pages below or beside them need no list of these.
html_sidebars = {
    page: []
    for page in ("index", "tutorial", "performance", "reliability", "changelog", "contributing")
}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"  # docstrings describe parameters
numpydoc_show_class_members = False  # the template lists them

# numpydoc would replace what the docstring of a class says of a property by the property's own.
_process_param = SphinxDocString._process_param
SphinxDocString._process_param = lambda self, name, text, _: _process_param(self, name, text, False)

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "abort_on_example_error": True,
    "backreferences_dir": "api/generated/backreferences",
    "doc_module": ("fastltl",),
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "within_subsection_order": "FileNameSortKey",
    "write_computation_times": False,
}


def as_restructured_text(*arguments: Any) -> None:
    """Make links of the pages that a docstring names, such as docs/prior.md, and keep its bars."""
    lines = arguments[-1]
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[i] = re.sub(r"\bdocs/(\w+)\.md", r":doc:`/\1`", line.replace("|", r"\|"))


def link_from_here(app: Any, path: Any, page: str, content: list[str]) -> None:
    """Make links of a page that is included from the root lead to the same pages from docs/."""
    pages = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}

    def replaced(match: re.Match[str]) -> str:
        target = match[1]
        here = target.removeprefix("docs/")
        if target == here:
            here = pages.get(target, f"https://github.com/fastltl/fastltl/blob/main/{target}")
        return f"]({here})"

    content[0] = re.sub(r"\]\((?!\w+:|#)([^)]+)\)", replaced, content[0])


# Modules whose names mean one thing only in prose; `effects`, say, is not one of `plots` alone.
SCOPES = ("fastltl", "fastltl.bounds", "fastltl.datasets", "fastltl.distributed")


def link_names(app: Any, doctree: nodes.document, page: str) -> None:
    """Make links of the public names in code, such as `BayesLTL(n_passes=5)`.

    They are names in `fastltl`, in a module where they are unambiguous or, in a docstring, in its
    class or module.
    """
    objects = app.env.domains["py"].objects
    for node in list(doctree.findall(nodes.literal)):
        name = re.sub(r"^(ltl|fastltl)\.", "", node.astext().partition("(")[0])
        scopes, parent = [], node.parent
        while parent is not None and not isinstance(parent, nodes.reference | nodes.title):
            if isinstance(parent, addnodes.desc) and parent["domain"] == "py":
                scopes += parent[0]["ids"][:1]
            parent = parent.parent
        scopes += [scope.rpartition(".")[0] for scope in scopes]
        names = [f"{scope}.{name}" for scope in (*scopes, *SCOPES)]
        found = next((objects[name] for name in names if name in objects), None)
        if parent is None and found and found.objtype != "module" and found.node_id not in scopes:
            link = make_refnode(app.builder, page, found.docname, found.node_id, node.deepcopy())
            node.replace_self(link)


class Help(Directive):
    """Show what `fastltl COMMAND --help` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the text as a literal block."""
        text = io.StringIO()
        with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
            main([*self.arguments, "--help"])
        return [nodes.literal_block(text.getvalue(), text.getvalue(), language="text")]


def setup(app: Any) -> None:
    """Register the hooks and the directive."""
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("include-read", link_from_here)
    app.connect("doctree-resolved", link_names)
    app.add_directive("help", Help)
