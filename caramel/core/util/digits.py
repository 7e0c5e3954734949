"""Numbers as short text for people: three digits.

What stands in one column has one unit, that of the largest, and as many decimals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MINUS = "\u2212"
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


def column(values: Sequence[float], unit: str) -> list[str]:
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
