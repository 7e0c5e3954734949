"""Sizes, counts and times, as people write and read them."""

from __future__ import annotations

import math
import re
from numbers import Real

from caramel.core.errors import PlanError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_WHOLE = re.compile(r"\s*[0-9]{1,18}\s*", re.ASCII)
_SIZE = re.compile(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*")


def parse_bytes(given: object, what: str) -> float:
    """The bytes of a size: a number, or text like "2GiB" or "500 MB".

    Args:
        given: the size.
        what: what it is of, for messages.

    Raises:
        PlanError: it is no size, or not more than 0.
    """
    found = math.nan
    if isinstance(given, Real) and not isinstance(given, bool):
        found = float(given)
    elif isinstance(given, str) and (match := _SIZE.fullmatch(given)):
        number, unit = match.groups()
        if unit.upper() in _UNITS and number.count(".") <= 1 and number != ".":
            found = float(number) * _UNITS[unit.upper()]
    if not found > 0:
        raise PlanError(
            f"{what} must be a number of bytes, more than 0, or text like '2GiB' or '500MB', not "
            f"{given!r}"
        )
    return found


def parse_whole(text: str) -> int | None:
    """The whole number that a text is, without a sign; None if it is none, or has too many digits
    to mean anything."""
    return int(text) if _WHOLE.fullmatch(text) else None


def megabytes(size_bytes: float) -> str:
    """A size in few characters: "97.4 MB", "0.02 MB"."""
    size = size_bytes / 1e6
    return f"{size:,.2f} MB" if size < 1 else f"{size:,.1f} MB"


def counted(count: int, what: str) -> str:
    """A number of things: "1 worker", "1,234 ops"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def seconds_told(seconds: float) -> str:
    """A time within a sentence: "3.000 s", "3.60 ms"."""
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1e3:.2f} ms"
