"""Parts that pages are made of: sections, tiles with a figure, rows with a bar, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.report.columns import filled
from caramel.report.markup import Markup, element
from caramel.report.units import seconds_texts


def section(title: str, *content: Markup | None, class_: str | None = None) -> Markup:
    """A card of the page, with a title."""
    return element("section", element("h2", title), *content, class_=class_)


def tile(name: str, value: str, note: str) -> Markup:
    """A key figure."""
    return element(
        "div", element("dt", name), element("dd", value), element("dd", note, class_="quiet")
    )


def bars(
    name: str,
    caption: str,
    columns: tuple[str, str],
    rows: Sequence[tuple[str, str, float]],
    longest_s: float | None = None,
) -> Markup:
    """A table of times, each with a bar.

    Args:
        name: the table's id.
        caption: what stands above it.
        columns: their names, for those who cannot see the bars.
        rows: the class of the bar, what it is, and the time.
        longest_s: what a bar of the whole width stands for; by default the longest time.
    """
    times_s = [seconds for _, _, seconds in rows]
    whole_s = max(times_s) if longest_s is None else longest_s
    body = (
        _bar(kind, what, text, seconds / whole_s)
        for (kind, what, seconds), text in zip(rows, seconds_texts(times_s), strict=True)
    )
    return element(
        "table",
        element("caption", caption),
        element("thead", _bar_head(*columns)),
        element("tbody", *body),
        class_="bars",
        id=name,
    )


def _bar_head(first: str, second: str) -> Markup:
    return element(
        "tr",
        element("th", first, scope="col"),
        element("th", second, scope="col", class_="number"),
        element("td"),
        class_="unseen",
    )


def _bar(kind: str, name: str, text: str, share: float) -> Markup:
    drawn = element("div", class_=f"bar {kind}", style=f"width:{100 * share:.1f}%")
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", text, class_="number"),
        element("td", drawn, class_="track", aria_hidden="true"),
    )


def plain_table(
    name: str, caption: str | None, columns: Sequence[str], rows: Iterable[Sequence[str]]
) -> Markup:
    """A table whose first column says what a row is about; names that end in "|" are of numbers.

    Columns without any entry are left out. On a narrow screen each row is a card.
    """
    columns, cells = filled(columns, list(rows))
    heads = [column.rstrip("|") for column in columns]
    kinds = ["number" if column.endswith("|") else None for column in columns]
    head = (
        element("th", text, scope="col", class_=kind)
        for text, kind in zip(heads, kinds, strict=True)
    )
    body = (
        element(
            "tr",
            element("th", row[0], scope="row", class_=kinds[0]),
            *(
                element("td", cell, class_=kind, data_label=text)
                for cell, kind, text in zip(row[1:], kinds[1:], heads[1:], strict=True)
            ),
        )
        for row in cells
    )
    table = element(
        "table",
        None if caption is None else element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        id=name,
        class_="cards",
    )
    return element("div", table, class_="scrolls")
