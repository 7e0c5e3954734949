"""Plans a job while it runs: from traced steps to plans that its session tries.

A job that was started with measured facts has its plan from the begin, and tries the best ones. One
without measures itself in its first steps. Both keep what proved the fastest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from caramel.analyzers.analysis import Analysis
from caramel.core.graph import OpGraph
from caramel.core.plan import Plan
from caramel.models.facts_from_traces import observed_network, observed_timing
from caramel.planning.candidate import Candidate
from caramel.planning.choose import UNFACTORED, Decision, choose
from caramel.planning.compatibility import decides_alike
from caramel.planning.options import Options
from caramel.runtime.stalls.diagnosis import Forecast

LIVE_BUDGET_TASKS = 400_000
"""Simulated tasks while training waits: some three to five seconds."""

WORTH_A_TRIAL = 1.15
"""A further plan is tried if it is predicted to take at most so many times as long as the best."""

WORTH_PLANNING = 0.98
"""A plan made while the job runs is tried if it is predicted to take at most this part of the plain
one's step."""

PLAIN, SEARCHED, PAPER = "plain", "searched", "paper"

FURTHER = ("second", "third", "fourth")
"""What the plans are called that are tried beside the searched and the plain one."""


def expected_of(decision: Decision) -> float | None:
    """The predicted step of a decision's plan."""
    forecast = forecast_of(decision.plan, decision)
    return None if forecast is None else forecast.step_s


def forecast_of(plan: Plan, decision: Decision) -> Forecast | None:
    """What is predicted of any plan for a decision's job; None if nothing is known of times."""
    if decision.outlook is None:
        return None
    prediction = decision.outlook.predict(Candidate.of(plan, "decided"))
    ends_s = {name: times.end_s for name, times in prediction.groups.items()}
    return Forecast(prediction.step_s, ends_s)


def worth_a_trial(decision: Decision) -> dict[str, Plan]:
    """The plans besides the decided one that its session should try, by name.

    The plain plan is always among them, so that a job is never slower than without planning. The
    next is that of the paper's rules, if it may be as fast: it has many small groups where searched
    plans have few, and so does not share the errors of their predictions. Where factors are sent, a
    plan that sends none is tried in any case: what is gained depends on how well products are
    timed, and it is what is left if processors turn out to differ. Then come other searched
    plans, each from another start: what their predictions differ by is less than what predictions
    are wrong by.

    A plan that proved the fastest in an earlier run has only the plain one beside it: since then
    the machines or the network may have changed.
    """
    found = decision.found
    if decides_alike(decision.plan, decision.plain):
        return {}
    if found is None:
        return {PLAIN: decision.plain} if decision.is_kept else {}
    others = [
        (name, plan)
        for scored, (name, plan) in zip(found.others, decision.alternatives, strict=True)
        if name == UNFACTORED
        or (name != PLAIN and scored.step_s <= WORTH_A_TRIAL * found.best.step_s)
    ]
    others.sort(key=lambda each: (each[0] != PAPER, each[0] != UNFACTORED))
    further = zip(FURTHER, (plan for _, plan in others), strict=False)
    return {PLAIN: decision.plain, **dict(further)}


def plan_from_traces(
    traces: Sequence[Sequence[Any]],
    clock_offsets_s: Sequence[float],
    plain: Plan,
    analysis_of: Callable[[Sequence[Any]], Analysis],
    graph: OpGraph,
    options: Options,
    cores: int | None = None,
) -> Decision:
    """What is decided from traced steps of a running job.

    Args:
        traces: for each step the `StepStats` protos of its calls.
        clock_offsets_s: by how much each worker's clock is ahead of the first one's.
        plain: the job's plain plan.
        analysis_of: an analysis of the job that knows some more facts.
        graph: the single-device graph.
        options: what the user wants.
        cores: how many each worker's processor has, if that is known.

    Raises:
        ProfileError: nothing can be learnt from the traces.
    """
    timing = observed_timing(traces, graph, plain.devices, cores)
    network = observed_network(traces, plain.devices, clock_offsets_s)
    live = dataclasses.replace(options, budget_tasks=LIVE_BUDGET_TASKS)
    return choose(plain, analysis_of([timing, network]), live)
