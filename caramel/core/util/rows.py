"""Names with their values as a table: in text, and in HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

Row = tuple[str, str]
"""What something is called, and what it is."""


def text_table(rows: Iterable[Row]) -> str:
    """A line for each row, with the values one below the other."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def html_table(rows: Iterable[Row]) -> str:
    """The same as an HTML table."""
    cells = (f"<tr><th>{escape(n)}</th><td>{escape(v)}</td></tr>" for n, v in rows)
    return f"<table>{''.join(cells)}</table>"
