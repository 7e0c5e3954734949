"""When does a pause of training pay? What it costs, against what each later step saves."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Payback:
    """What a pause of training costs, and what it may bring.

    Attributes:
        pause_s: for how long training pauses, in seconds.
        saved_s: what each step after it saves at most, as far as that can be predicted, in seconds.
    """

    pause_s: float
    saved_s: float

    @property
    def steps(self) -> float:
        """After how many steps that is even; infinitely many if nothing is saved."""
        return math.ceil(self.pause_s / self.saved_s) if self.saved_s > 0 else math.inf
