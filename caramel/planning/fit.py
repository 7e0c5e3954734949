"""Does a plan that was made elsewhere fit the job it is used for?"""

from __future__ import annotations

import dataclasses

from caramel.errors import PlanError
from caramel.facts import LoopFrames
from caramel.graph import OpGraph
from caramel.plan import Plan

DECIDED = ("parts", "groups", "edges", "gates")
"""What a plan decides; everything else follows from that and from the job."""

# Follow from what is decided and need not be given.
_DERIVED = ("deferral", "input_reads", "held", "evaluation", "marks", "summed")


def decides_alike(plan: Plan, other: Plan) -> bool:
    """Whether two plans for the same job do the same, whatever reasons they give."""
    return all(_decided(plan, name) == _decided(other, name) for name in DECIDED)


def _decided(plan: Plan, name: str) -> object:
    if name == "groups":
        return [dataclasses.replace(group, reason="") for group in plan.groups]
    return tuple(getattr(plan, name))


def check_fit(plan: Plan, expected: Plan) -> None:
    """Raise unless `plan` is a plan for the same job on the same workers as `expected`.

    Args:
        expected: any plan that was made from the facts of the job.

    Raises:
        PlanError: says what differs.
    """
    for field in dataclasses.fields(Plan):
        given, wanted = (_told(each, field.name) for each in (plan, expected))
        if field.name not in (*DECIDED, *_DERIVED) and given != wanted:
            raise PlanError(
                f"the plan does not fit the job: its {field.name} are {_difference(given, wanted)}"
            )


def _told(plan: Plan, name: str) -> object:
    """What a plan says of its job; gradients without their factors, which follow from the job."""
    if name == "gradients":
        return tuple(dataclasses.replace(gradient, factors=None) for gradient in plan.gradients)
    value: object = getattr(plan, name)
    return value


def check_edges(plan: Plan, graph: OpGraph, frames: LoopFrames) -> None:
    """Raise if a control edge crosses the border of a loop; TensorFlow would not run such a graph.

    Args:
        graph: the single-device graph. Edges between ops that it does not have are left alone.
        frames: in which loop each of its ops is.

    Raises:
        PlanError: says which edge.
    """
    for edge in plan.edges:
        if edge.before not in graph or edge.after not in graph:
            continue
        # An op waits in the loop of what it reads, which for `Enter` and `Exit` is not their own.
        around = [frames.frame.get(source, "") for source in graph[edge.after].sources]
        waits_in, begins_in = max(around, key=len, default=""), frames.frame.get(edge.before, "")
        if waits_in != begins_in:
            raise PlanError(
                f"an edge of the plan, '{edge.before}' -> '{edge.after}', crosses the border of a "
                f"loop: it begins {_in_loop(begins_in)} and ends {_in_loop(waits_in)}"
            )


def _in_loop(frame: str) -> str:
    return f"inside that of '{frame}'" if frame else "outside"


def _difference(given: object, wanted: object) -> str:
    """Where two values differ, in few words."""
    if isinstance(given, tuple) and isinstance(wanted, tuple) and not hasattr(given, "_fields"):
        missing = [value for value in wanted if value not in given]
        unknown = [value for value in given if value not in wanted]
        if missing or unknown:
            parts = [
                f"{what} {values[0]}"
                for what, values in (("lacking", missing), ("with an unknown", unknown))
                if values
            ]
            return ", ".join(parts)
        return "in another order"
    return f"{given!r}, but the job's {wanted!r}"
