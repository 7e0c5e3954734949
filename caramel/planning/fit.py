"""Does a plan that was made elsewhere fit the job it is used for?"""

from __future__ import annotations

import dataclasses

from caramel.errors import PlanError
from caramel.plan import Plan

DECIDED = ("parts", "groups", "edges", "gates")
"""What a plan decides; everything else follows from that and from the job."""

# Follow from what is decided and need not be given.
_DERIVED = ("deferral", "input_reads", "held", "evaluation", "marks")


def check_fit(plan: Plan, expected: Plan) -> None:
    """Raise unless `plan` is a plan for the same job on the same workers as `expected`.

    Args:
        expected: any plan that was made from the facts of the job.

    Raises:
        PlanError: says what differs.
    """
    for field in dataclasses.fields(Plan):
        given, wanted = getattr(plan, field.name), getattr(expected, field.name)
        if field.name not in (*DECIDED, *_DERIVED) and given != wanted:
            raise PlanError(
                f"the plan does not fit the job: its {field.name} are {_difference(given, wanted)}"
            )


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
