"""What a user may choose about planning."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Literal, get_args

from caramel.core.calibration import Calibration
from caramel.core.errors import PlanError
from caramel.core.patterns import check_pattern
from caramel.planning.pattern_choice import AUTO

Planner = Literal["search", "paper", "plain"]


@dataclass(frozen=True)
class Options:
    """Who plans, and which optimizations of the Caramel paper may be used.

    Attributes:
        serialization: control edges let gradients get ready in one order (section 4.1).
        batching: small gradients are aggregated together (4.2).
        scheduling: transfers are planned, some of them for the next forward pass (4.3).
        adaptive_depth: large groups are split (4.4).
        pattern: one of `core.patterns.PATTERNS`, or "auto" for the fastest of each group.
        in_flight_bytes: of groups that may be on their way at a time (`gates`);
            None for the planner's choice.
        budget_tasks: simulated tasks in a search; to look for factors takes up to ten small ones
            besides.
        factors: gradients may be sent by their factors (`search.factoring`), if no pattern is
            asked for.
        planner: "search" takes what is predicted to be the fastest, "paper" follows the rules of
            the paper, "plain" plans nothing.

    Raises:
        PlanError: an unknown pattern or planner, or less than no bytes.
    """

    serialization: bool = True
    batching: bool = True
    scheduling: bool = True
    adaptive_depth: bool = True
    pattern: str = AUTO
    in_flight_bytes: int | None = None
    planner: Planner = "search"
    budget_tasks: int = 900_000  # some five to ten seconds
    factors: bool = True

    def __post_init__(self) -> None:
        limit = self.in_flight_bytes
        if limit is not None and not (isinstance(limit, Integral) and limit >= 0):
            raise PlanError(f"in_flight_bytes must be a number of bytes, at least 0, not {limit!r}")
        if self.planner not in get_args(Planner):
            known = ", ".join(f"'{name}'" for name in get_args(Planner))
            raise PlanError(f"planner must be one of {known}, not {self.planner!r}")
        if self.pattern != AUTO:
            check_pattern(self.pattern, AUTO)

    def gated_bytes(self, calibration: Calibration) -> int:
        """Bytes in flight, by default as many as were best on a test bed."""
        given = self.in_flight_bytes
        return calibration.in_flight_bytes if given is None else given

    @property
    def sends_factors(self) -> bool:
        """Whether gradients may be sent by their factors."""
        return self.factors and self.pattern == AUTO and self.planner == "search"

    @property
    def plans(self) -> bool:
        """Whether anything is planned; with every optimization off the plan is the plain one."""
        flags = (self.serialization, self.batching, self.scheduling, self.adaptive_depth)
        return self.planner != "plain" and any(flags)


DEFAULT = Options()
