"""Times, sizes and ratios as short text for people: three digits and a unit."""

from __future__ import annotations

import math

TIMES = "\u00d7"
MINUS = "\u2212"
TO = "\u2013"
_KIB = 1024
_SHORT_STEP_S = 0.1  # tables of shorter steps show one digit more


def three_digits(value: float) -> str:
    """A number with three significant digits, none of those before the point left out."""
    if math.isinf(value):
        return "\u221e" if value > 0 else f"{MINUS}\u221e"
    if value == 0:
        return "0"
    # Rounding may add a digit: 999.6 is 1,000.
    rounded = float(f"{value:.3g}")
    decimals = max(0, 2 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}".replace("-", MINUS)


def seconds_text(seconds: float) -> str:
    """A time: "1.24 s", "0.912 s", "52.3 ms", "8.10 ms"."""
    if 0 < abs(seconds) < 0.1:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds)} s"


def bytes_text(size_bytes: int) -> str:
    """A size: "97.4 MiB", "2.00 KiB", "12 B"."""
    if size_bytes < _KIB:
        return f"{size_bytes} B"
    units = ("KiB", "MiB", "GiB")
    power = 1
    # What rounds to 1,000 of a unit is shown in the next one.
    while power < len(units) and size_bytes >= 999.5 * _KIB**power:
        power += 1
    return f"{three_digits(size_bytes / _KIB**power)} {units[power - 1]}"


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
