"""Prints a plan as a table: what is aggregated together, when, how, and why."""

from __future__ import annotations

from rich.console import Console

from caramel.analyzers.windows import group_window
from caramel.core.decision import Group
from caramel.core.plan import Plan
from caramel.core.time_facts import TransferWindows
from caramel.core.util.sizes import bytes_texts, counted
from caramel.report.columns import WIDE, print_reasons, text_table


def show_plan(plan: Plan, windows: TransferWindows | None, console: Console) -> None:
    """Print a row for each group, in the order of the plan.

    Args:
        windows: when each parameter can be aggregated; those columns are left out if None.
    """
    wide = console.width >= WIDE
    columns = ["group", "parameters|", "size|", "depth|"]
    columns += ["ready ms|", "needed ms|"] if windows else []
    columns += ["pattern", "when", "waits for", *(["why"] if wide else [])]
    waits: dict[str, list[str]] = {}
    for gate in plan.decision.gates:
        waits.setdefault(gate.group, []).append(gate.after)
    rows = []
    sizes = bytes_texts([plan.bytes(group) for group in plan.decision.groups])
    for group, size in zip(plan.decision.groups, sizes, strict=True):
        sparse = plan.gradient(group.members[0]).indices is not None
        rows.append(
            [
                group.name,
                "part" if plan.part(group.members[0]) else str(len(group.members)),
                "rows" if sparse else size,
                str(group.depth),
                *(_window(plan, group, windows) if windows else ()),
                group.pattern,
                "deferred" if group.deferred else "in-step",
                ", ".join(waits.get(group.name, ())),
                *([group.reason] if wide else []),
            ]
        )
    console.print(_title(plan), style="bold", highlight=False)
    console.print(text_table(columns, rows, whole=("pattern", "when")))
    if not wide:
        print_reasons(((group.name, group.reason) for group in plan.decision.groups), console)


def _title(plan: Plan) -> str:
    own = plan.decision
    deferred = sum(group.deferred for group in own.groups)
    split = len(own.parts_of)
    parts = f"{split} of the gradients in {len(own.parts)} parts; " if split else ""
    return (
        f"{counted(plan.workers, 'worker')}, {counted(len(plan.job.gradients), 'gradient')} in "
        f"{counted(len(own.groups), 'group')}, {deferred} deferred; {parts}"
        f"{counted(len(own.edges), 'control edge')}, {counted(len(own.gates), 'gate')}"
    )


def _window(plan: Plan, group: Group, windows: TransferWindows) -> tuple[str, str]:
    """When the last gradient of a group is ready and its first parameter is needed."""
    window = group_window(windows, map(plan.parameter, group.members))
    return f"{window.ready_s * 1e3:.2f}", f"{window.needed_s * 1e3:.2f}"
