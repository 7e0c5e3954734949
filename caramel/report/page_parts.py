"""Parts that pages are made of: sections, tiles with a figure, rows with a bar, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.report.markup import Markup, element


def section(title: str, *content: Markup | None, class_: str | None = None) -> Markup:
    """A card of the page, with a title."""
    return element("section", element("h2", title), *content, class_=class_)


def tile(name: str, value: str, note: str) -> Markup:
    """A key figure."""
    return element(
        "div", element("dt", name), element("dd", value), element("dd", note, class_="quiet")
    )


def bar_head(first: str, second: str) -> Markup:
    """The head of a table of `bar`s, for those who cannot see it."""
    return element(
        "tr",
        element("th", first, scope="col"),
        element("th", second, scope="col", class_="number"),
        element("td"),
        class_="unseen",
    )


def bar(kind: str, name: str, text: str, share: float) -> Markup:
    """A row with a value, and a bar that is `share` of the longest one."""
    drawn = element("div", class_=f"bar {kind}", style=f"width:{100 * share:.1f}%")
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", text, class_="number"),
        element("td", drawn, class_="track", aria_hidden="true"),
    )


def plain_table(
    name: str, caption: str, columns: Sequence[str], rows: Iterable[Sequence[str | Markup]]
) -> Markup:
    """A table whose first column says what a row is about; names that end in "|" are of numbers."""
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
                element("td", cell, class_=kind)
                for cell, kind in zip(row[1:], kinds[1:], strict=True)
            ),
        )
        for row in rows
    )
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *head)),
        element("tbody", *body),
        id=name,
    )
    return element("div", table, class_="scrolls")
