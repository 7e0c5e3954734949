"""Prints a plan as a table: what is aggregated together, when, how, and why."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from caramel.analyzers.windows import group_window
from caramel.core.decision import Group
from caramel.core.plan import Plan
from caramel.core.time_facts import TransferWindows
from caramel.core.util.sizes import bytes_texts


def show_plan(plan: Plan, windows: TransferWindows | None, console: Console) -> None:
    """Print a row for each group, in the order of the plan.

    Args:
        windows: when each parameter can be aggregated; those columns are left out if None.
    """
    table = Table(title=_title(plan))
    table.add_column("group")
    for column in ("parameters", "size", "depth", *(("ready ms", "needed ms") if windows else ())):
        table.add_column(column, justify="right")
    for column in ("pattern", "when", "waits for", "why"):
        table.add_column(column)
    waits: dict[str, list[str]] = {}
    for gate in plan.decision.gates:
        waits.setdefault(gate.group, []).append(gate.after)
    sizes = bytes_texts([plan.bytes(group) for group in plan.decision.groups])
    for group, size in zip(plan.decision.groups, sizes, strict=True):
        sparse = plan.gradient(group.members[0]).indices is not None
        table.add_row(
            group.name,
            "part" if plan.part(group.members[0]) else str(len(group.members)),
            "rows" if sparse else size,
            str(group.depth),
            *(_window(plan, group, windows) if windows else ()),
            group.pattern,
            "deferred" if group.deferred else "in-step",
            ", ".join(waits.get(group.name, ())),
            group.reason,
        )
    console.print(table)


def _title(plan: Plan) -> str:
    own = plan.decision
    deferred = sum(group.deferred for group in own.groups)
    split = len(own.parts_of)
    parts = f"{split} of the gradients in {len(own.parts)} parts; " if split else ""
    return (
        f"{plan.workers} workers, {len(plan.job.gradients)} gradients in {len(own.groups)} groups, "
        f"{deferred} deferred; {parts}{len(own.edges)} control edges, {len(own.gates)} gates"
    )


def _window(plan: Plan, group: Group, windows: TransferWindows) -> tuple[str, str]:
    """When the last gradient of a group is ready and its first parameter is needed."""
    window = group_window(windows, map(plan.parameter, group.members))
    return f"{window.ready_s * 1e3:.2f}", f"{window.needed_s * 1e3:.2f}"
