"""What a session can tell of itself, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from caramel.core.orders import Orders
from caramel.runtime.control.trials import TrialState
from caramel.runtime.recovery.record import RecoveryRecord
from caramel.runtime.stalls.diagnosis import Stall


@dataclass(frozen=True, slots=True)
class Metrics:
    """How training goes.

    Attributes:
        steps: training steps done in this session.
        plan: the name of the plan that did the last one, or will do the first.
        recent_step_s: how long the last steps took that were not traced, the latest last. A step is
            the call alone, without what the program does in between; its deferred part counts in
            the next step.
        trials: which plans are tried, and what is known of them; None if none are.
        expected_s: how long a step should take: as in the trials, as steps took before, or as
            predicted; None if nothing is known.
        drift: the usual step of late over the expected one; None before there were enough steps.
        stalls: the latest steps that waited much longer than expected, and what for.
        whole_feeds: placeholders whose value every worker gets whole, because the graph shows that
            they do not go with the examples; those in `replicated_feeds` are left out.
        orders: with parameter servers, what the steps that were traced last tell of the order in
            which workers received parameters; None before any were traced. A job traces some of its
            first steps to plan from them, and `Session.trace` does.
        recoveries: each time that the session went on after the loss of a worker, or with workers
            that had come back.
    """

    steps: int
    plan: str
    recent_step_s: tuple[float, ...]
    trials: TrialState | None
    expected_s: float | None = None
    drift: float | None = None
    stalls: tuple[Stall, ...] = ()
    whole_feeds: tuple[str, ...] = ()
    orders: Orders | None = None
    recoveries: tuple[RecoveryRecord, ...] = ()
