"""What a controller does with the next steps: leaves them to one plan, traces them, waits until it
pays to plan or to try plans, or tries them.

Which method leads from one phase to another is said in `caramel.runtime.control.controller`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from caramel.runtime.control.trials import Trials
from caramel.runtime.steps.feeds import SplitFeeds


@dataclass(frozen=True, slots=True)
class Settled:
    """One plan does all steps, until the drift monitor wants another one.

    Attributes:
        trials: the last ones, which are over; None if there were none, or if they do not count.
    """

    trials: Trials | None = None


@dataclass(slots=True)
class Tracing:
    """Steps of one plan are traced, to plan from them.

    Attributes:
        trials: as before.
        traces: of each traced step the `StepStats` protos of its calls.
        examples: how many a worker had in the last of them; None if no batch was fed.
    """

    trials: Trials | None
    traces: list[list[Any]] = field(default_factory=list)
    examples: int | None = None

    def add(self, traces: Sequence[Any], feeds: SplitFeeds) -> None:
        """A step that was traced, and what it was fed."""
        self.traces.append([metadata.step_stats for metadata in traces])
        self.examples = feeds.examples[0] if feeds.examples else None


@dataclass(frozen=True, slots=True)
class Measured:
    """One plan does all steps until there were so many that it pays to plan from those that were
    traced.

    Attributes:
        trials: as before.
        tracing: what was traced.
        clock_offsets_s: by how much each worker's clock was ahead of the first one's.
        begins: after how many steps of the session.
    """

    trials: Trials | None
    tracing: Tracing
    clock_offsets_s: Sequence[float]
    begins: float = 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """One plan does all steps until there were so many that it pays to try others.

    Attributes:
        trials: as before.
        names: of the plans that are tried then, beginning with the one that runs.
        begins: after how many steps of the session.
        expected_s: what a step of the best of them is predicted to take, in seconds.
    """

    trials: Trials | None
    names: tuple[str, ...]
    begins: float
    expected_s: float | None


@dataclass(frozen=True, slots=True)
class Trying:
    """Plans take turns.

    Attributes:
        trials: these; when they are over, the next step begins with that.
        are_made: whether the graphs of all these plans are there. That they are not is found out
            when it is the turn of one without a graph.
    """

    trials: Trials
    are_made: bool = False


Phase = Settled | Tracing | Measured | Waiting | Trying
