"""Tables by columns, on the terminal and on pages: a column without any entry is left out.

Names of columns that end in "|" are of numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from typing import TypeVar

from rich.markup import escape
from rich.table import Table

Cell = TypeVar("Cell", bound=str)


def filled(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]]
) -> tuple[list[str], list[list[Cell]]]:
    """The columns in which any row has an entry, and the rows without the other ones."""
    used = [any(row[number] for row in rows) for number in range(len(columns))]
    return list(compress(columns, used)), [list(compress(row, used)) for row in rows]


def text_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    gap: int = 2,
    whole: Collection[str] = (),
) -> Table:
    """A table for the terminal.

    Args:
        gap: spaces between columns.
        whole: columns of words that are not wrapped; numbers never are.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    columns, rows = filled(columns, rows)
    for column in columns:
        name, is_number = column.rstrip("|"), column.endswith("|")
        table.add_column(
            name,
            justify="right" if is_number else "left",
            no_wrap=is_number or name in whole,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(escape, row))
    return table
