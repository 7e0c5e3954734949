"""What a session can tell of itself, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from caramel.core.orders import Orders
from caramel.core.util.rows import Row, html_table, text_table
from caramel.core.util.sizes import counted
from caramel.runtime.control.trials import TrialState
from caramel.runtime.recovery.record import RecoveryRecord
from caramel.runtime.stalls.diagnosis import Stall


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent on anything but ordinary steps, in seconds.

    Attributes:
        building_s: for the model: facts, a plan if it has a profile, and the graph.
        opening_s: for the session: reaching the workers, placing the graph, initial values.
        first_step_s: for the first step, in which TensorFlow prepares the graph; None before it.
        planning_s: for how long steps waited since then while plans were found and made.
    """

    building_s: float = 0.0
    opening_s: float = 0.0
    first_step_s: float | None = None
    planning_s: float = 0.0

    def __str__(self) -> str:
        told = f"model {self.building_s:.1f} s, session {self.opening_s:.1f} s"
        if self.first_step_s is not None:
            told += f", first step {self.first_step_s:.1f} s"
        return told + (f", planning since then {self.planning_s:.1f} s" if self.planning_s else "")


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
        spent: what was spent before the first step, and on planning since.
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
    spent: Spent = Spent()

    @property
    def usual_step_s(self) -> float | None:
        """The median of the last steps, in seconds; None before any were timed."""
        return median(self.recent_step_s) if self.recent_step_s else None

    def rows(self) -> Iterator[Row]:
        """What there is to tell, in words: names and values."""
        yield "steps", f"{self.steps:,}"
        yield "plan", self.plan
        if (usual_s := self.usual_step_s) is not None:
            yield "step", f"{_ms(usual_s)} (median of {counted(len(self.recent_step_s), 'step')})"
        if self.expected_s is not None:
            yield "expected", _ms(self.expected_s)
        if self.drift is not None:
            yield "drift", f"{self.drift:.2f} times the expected step"
        if self.spent != Spent():
            yield "spent", str(self.spent)
        if self.trials is not None:
            yield "trials", _told(self.trials)
        for stall in self.stalls[-1:]:
            yield "last stall", stall.text
        if self.recoveries:
            last = self.recoveries[-1]
            there = counted(last.workers, "worker")
            there += f" and {counted(last.servers, 'parameter server')}" if last.servers else ""
            told = f"{last.reason}; {counted(last.repeated, 'step')} done again, {there} since"
            yield "recoveries", f"{len(self.recoveries)}, the last: {told}"
        if self.whole_feeds:
            yield "fed whole", ", ".join(self.whole_feeds)

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def _told(trials: TrialState) -> str:
    """How far trials are, and the medians."""
    medians = ", ".join(
        f"'{plan.name}' " + ("untimed" if plan.median_s is None else _ms(plan.median_s))
        for plan in trials.plans
    )
    state = f"'{trials.turn}' was kept" if trials.is_over else f"round {trials.round}"
    return f"{state}: {medians}"
