"""Times, sizes and ratios as short text for people: three digits and a unit.

What stands in one column has one unit, that of the largest, and as many decimals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TIMES = "\u00d7"
MINUS = "\u2212"
TO = "\u2013"
_KIB = 1024
_SIZES = ("B", "KiB", "MiB", "GiB")
_SHORT_S = 0.1  # shorter times are told in milliseconds
_SHORT_STEP_S = 0.1  # tables of shorter steps show one digit more
_MOST_DECIMALS = 3  # that are there only for the smaller ones of a column


def three_digits(value: float) -> str:
    """A number with three significant digits, none of those before the point left out."""
    if math.isinf(value):
        return "\u221e" if value > 0 else f"{MINUS}\u221e"
    if value == 0:
        return "0"
    # Rounding may add a digit: 999.6 is 1,000.
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{_decimals(rounded)}f}".replace("-", MINUS)


def _decimals(value: float) -> int:
    """Of a number with three significant digits."""
    return max(0, 2 - math.floor(math.log10(abs(value))))


def seconds_text(seconds: float) -> str:
    """A time: "1.24 s", "0.912 s", "52.3 ms", "8.10 ms"."""
    if 0 < abs(seconds) < _SHORT_S:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds)} s"


def seconds_texts(seconds: Sequence[float]) -> list[str]:
    """Times of one column: "1.840 s", "0.107 s"."""
    longest_s = max(seconds, default=0.0)
    if 0 < longest_s < _SHORT_S:
        return _column([each * 1e3 for each in seconds], "ms")
    return _column(seconds, "s")


def bytes_text(size_bytes: int) -> str:
    """A size: "97.4 MiB", "2.00 KiB", "12 B"."""
    power = _power(size_bytes)
    if power == 0:
        return f"{size_bytes} B"
    return f"{three_digits(size_bytes / _KIB**power)} {_SIZES[power]}"


def bytes_texts(sizes: Sequence[int]) -> list[str]:
    """Sizes of one column: "9.00 MiB", "0.25 MiB"."""
    power = _power(max(sizes, default=0))
    if power == 0:
        return [f"{size} B" for size in sizes]
    return _column([size / _KIB**power for size in sizes], _SIZES[power])


def _power(size_bytes: int) -> int:
    """Of which power of 1,024 a size is told: what rounds to 1,000 of a unit in the next one."""
    if size_bytes < _KIB:
        return 0
    power = 1
    while power + 1 < len(_SIZES) and size_bytes >= 999.5 * _KIB**power:
        power += 1
    return power


def _column(values: Sequence[float], unit: str) -> list[str]:
    """Numbers with as many decimals as the largest of them, and one more if the smallest needs it;
    what would be nothing then is less than the least that can be shown."""
    known = [value for value in values if value > 0 and not math.isinf(value)]
    if not known:
        return [f"{three_digits(value)} {unit}" for value in values]
    largest = float(f"{max(known):.3g}")
    decimals = _decimals(largest)
    if decimals < min(_MOST_DECIMALS, _decimals(min(known))):
        decimals += 1
    least = 10.0**-decimals

    def text(value: float) -> str:
        if math.isinf(value):
            return three_digits(value)
        if 0 < value < least / 2:
            return f"<{least:.{decimals}f}"
        return f"{value:,.{decimals}f}".replace("-", MINUS)

    return [f"{text(value)} {unit}" for value in values]


def ratio_text(ratio: float) -> str:
    """How many times as much: "1.18 x", with a real multiplication sign."""
    return f"{three_digits(ratio)} {TIMES}"


def percent_text(share: float) -> str:
    """A share: "71 %"."""
    return f"{share:.0%}".replace("%", " %").replace("-", MINUS)


def milliseconds(seconds: float, step_s: float, *, signed: bool = False) -> str:
    """A time for a column of them, in milliseconds, with as many decimals as all of its step."""
    decimals = 1 if step_s >= _SHORT_STEP_S else 2
    sign = "+" if signed else ""
    return f"{seconds * 1e3:{sign},.{decimals}f}".replace("-", MINUS)
