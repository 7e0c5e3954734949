"""Which plans besides the decided one should a session try?"""

from __future__ import annotations

from caramel.core.plan import Plan
from caramel.planning.choose import UNFACTORED, Decision
from caramel.planning.compatibility import decides_alike

WORTH_A_TRIAL = 1.15
"""A further plan is tried if it is predicted to take at most so many times as long as the best."""

PLAIN, PAPER = "plain", "paper"

FURTHER = ("second", "third", "fourth")
"""What the plans are called that are tried beside the searched and the plain one."""


def worth_a_trial(decision: Decision) -> dict[str, Plan]:
    """The plans besides the decided one that its session should try, by name.

    The plain plan is always among them, so that a job is never slower than without planning.
    """
    found = decision.found
    if decides_alike(decision.plan, decision.plain):
        return {}
    # A plan that proved the fastest in an earlier run: since then the machines or the network may
    # have changed.
    if found is None:
        return {PLAIN: decision.plain} if decision.is_kept else {}
    # Searched plans from other starts: what their predictions differ by is less than what
    # predictions are wrong by. A plan without factors is tried in any case: what factors gain
    # depends on how well products are timed, and it is what is left if processors differ.
    others = [
        (name, plan)
        for scored, (name, plan) in zip(found.others, decision.alternatives, strict=True)
        if name == UNFACTORED
        or (name != PLAIN and scored.step_s <= WORTH_A_TRIAL * found.best.step_s)
    ]
    # The paper's plan first: it has many small groups where searched plans have few, and so does
    # not share the errors of their predictions.
    others.sort(key=lambda each: (each[0] != PAPER, each[0] != UNFACTORED))
    further = zip(FURTHER, (plan for _, plan in others), strict=False)
    return {PLAIN: decision.plain, **dict(further)}
