"""Tables by columns, on the terminal and on pages: a column without any entry is left out.

Names of columns that end in "|" are of numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Cell = TypeVar("Cell", bound=str)

WIDE = 130  # columns of a terminal on which reasons have room in a table
_NAMES_SHOWN = 4


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


def print_reasons(reasons: Iterable[tuple[str, str]], console: Console) -> None:
    """Print below a table, for which the terminal is too narrow, why its rows are as they are.

    Args:
        reasons: the name of each row, and its reason. Each reason is printed once.
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons:
        names.setdefault(reason, []).append(name)
    for reason, own in names.items():
        more = f" and {len(own) - _NAMES_SHOWN} more" if len(own) > _NAMES_SHOWN else ""
        if reason:
            line = f"{', '.join(own[:_NAMES_SHOWN])}{more}: {reason}"
            console.print(escape(line), highlight=False)
