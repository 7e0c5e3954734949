"""How often something that has ended is started again, and after which time."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
_LASTING_S = 3600.0  # what has run so long is counted anew


@dataclass(slots=True)
class Restarts:
    """How often something may still be started again, and after which time.

    Attributes:
        most: how often in a row; a run of an hour begins a new row.
        done: how often it was by now.
    """

    most: int
    done: int = field(default=0, init=False)

    def ended(self, ran_s: float) -> None:
        """It has ended, after it had run so long."""
        if ran_s >= _LASTING_S:
            self.done = 0

    @property
    def are_left(self) -> bool:
        """Whether it may be started again."""
        return self.done < self.most

    @property
    def wait_s(self) -> float:
        """How long to wait before the next start."""
        return float(min(FIRST_WAIT_S * 2**self.done, LONGEST_WAIT_S))
