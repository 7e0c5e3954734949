"""Did you mean ...? For messages about names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Names that are much like one that does not exist, for messages; empty if there are none."""
    import difflib  # here, since only errors need it

    close = difflib.get_close_matches(name, list(known), n=3)
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""
