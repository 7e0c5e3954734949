"""Sizes, counts and times, as people write and read them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from numbers import Real

from caramel.core.errors import PlanError
from caramel.core.util.digits import column, three_digits

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
_STEP = 1000  # as of rates of networks, and of sizes in the field: not 1,024
_SHOWN = ("B", "kB", "MB", "GB", "TB")
_WHOLE = re.compile(r"\s*[0-9]{1,18}\s*", re.ASCII)
_SIZE = re.compile(r"\s*([0-9.]{1,18})\s*([a-zA-Z]*)\s*")


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


def bytes_text(size_bytes: float) -> str:
    """A size: "97.4 MB", "2.00 kB", "12 B"."""
    power = _power(size_bytes)
    if power == 0:
        return f"{size_bytes:.0f} B"
    return f"{three_digits(size_bytes / _STEP**power)} {_SHOWN[power]}"


def bytes_texts(sizes: Sequence[float]) -> list[str]:
    """Sizes of one column: "9.00 MB", "0.25 MB"."""
    power = _power(max(sizes, default=0))
    if power == 0:
        return [f"{size:.0f} B" for size in sizes]
    return column([size / _STEP**power for size in sizes], _SHOWN[power])


def _power(size_bytes: float) -> int:
    """Of which power of 1,000 a size is told: what rounds to 1,000 of a unit in the next one."""
    if size_bytes < _STEP:
        return 0
    power = 1
    while power + 1 < len(_SHOWN) and size_bytes >= 999.5 * _STEP**power:
        power += 1
    return power


def counted(count: int, what: str) -> str:
    """A number of things: "1 worker", "1,234 ops"."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def seconds_told(seconds: float) -> str:
    """A time within a sentence: "3.000 s", "3.60 ms"."""
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1e3:.2f} ms"
