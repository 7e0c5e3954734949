"""HTML elements from Python: text is escaped unless it is `Markup`, which only this file makes.

So the names that users give to their parameters cannot become part of a page's structure.
"""

from __future__ import annotations

import html


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


# Without children, these have no end tag in HTML.
_VOID = frozenset({"input", "link", "meta"})


def element(
    name: str, /, *children: str | None, **attributes: str | int | float | bool | None
) -> Markup:
    """One element.

    Args:
        name: of the element.
        children: text, which is escaped, or elements; None is left out.
        attributes: "_" in their names becomes "-", and one at their end is dropped (``class_``).
            True means the attribute without a value; None and False are left out.
    """
    parts = [name]
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            parts.append(attribute)
        elif value is not None and value is not False:
            parts.append(f'{attribute}="{html.escape(str(value))}"')
    start = f"<{' '.join(parts)}>"
    if name in _VOID:
        return Markup(start)
    return Markup(f"{start}{joined(*children)}</{name}>")


def joined(*children: str | None) -> Markup:
    """Text and elements one after another."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else html.escape(child)
            for child in children
            if child is not None
        )
    )


def raw(name: str, content: str) -> Markup:
    """A `style` or `script` element: what is in it is no HTML, and must not end the element."""
    if f"</{name}" in content.lower():
        raise ValueError(f"the content of a {name} element contains its end tag")
    return Markup(f"<{name}>\n{content}</{name}>")
