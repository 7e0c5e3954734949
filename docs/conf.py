"""How Sphinx makes these pages: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import caramel

project = "Caramel"
author = "the Caramel developers"
copyright = f"2026, {author}"
version = release = caramel.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

exclude_patterns = ["_build", "description.md"]  # the latter is for PyPI
default_role = "code"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"Caramel {release}"
html_show_sourcelink = False
html_show_copyright = False

MADE_BY_OTHERS = {"caramel.Session", "caramel.Cluster", "caramel.Plan"}
"""Classes that users do not make themselves: how they are made says nothing to them."""


def _without_arguments(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Leave out what such a class is made of."""
    if what == "class" and name in MADE_BY_OTHERS and "Args:" in lines:
        begin = lines.index("Args:")
        end = next((n for n in range(begin, len(lines)) if not lines[n]), len(lines))
        del lines[begin : end + 1]


def _without_signature(app: Any, what: str, name: str, *_: Any) -> tuple[str, None] | None:
    return ("", None) if name in MADE_BY_OTHERS else None


def setup(app: Any) -> None:
    """Before napoleon reads the docstrings."""
    app.connect("autodoc-process-docstring", _without_arguments, priority=400)
    app.connect("autodoc-process-signature", _without_signature)
