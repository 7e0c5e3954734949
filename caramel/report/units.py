"""Times and ratios as short text for people: three digits and a unit (sizes: `core.util.sizes`)."""

from __future__ import annotations

from collections.abc import Sequence

from caramel.core.util.digits import MINUS, column, three_digits

TIMES = "\u00d7"
TO = "\u2013"
_SHORT_S = 0.1  # shorter times are told in milliseconds
_SHORT_STEP_S = 0.1  # tables of shorter steps show one digit more


def seconds_text(seconds: float) -> str:
    """A time: "1.24 s", "0.912 s", "52.3 ms", "8.10 ms"."""
    if 0 < abs(seconds) < _SHORT_S:
        return f"{three_digits(seconds * 1e3)} ms"
    return f"{three_digits(seconds)} s"


def seconds_texts(seconds: Sequence[float]) -> list[str]:
    """Times of one column: "1.840 s", "0.107 s"."""
    longest_s = max(seconds, default=0.0)
    if 0 < longest_s < _SHORT_S:
        return column([each * 1e3 for each in seconds], "ms")
    return column(seconds, "s")


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
