"""When can each parameter be aggregated without blocking computation? The Caramel paper, 3.3.1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.analyzers.units import Units, targets_in_order, units_of_step
from caramel.core import op_types
from caramel.core.facts import GradientFrontier, LoopFrames, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.time_facts import ActivationOrder, TimingTable, TransferWindows, Window

_HANDS_ON = op_types.PASS_THROUGH | {"ReadVariableOp"}


def transfer_windows(
    graph: OpGraph,
    job: TrainingJob,
    frontier: GradientFrontier,
    frames: LoopFrames,
    access: StateAccess,
    order: ActivationOrder,
    timing: TimingTable,
) -> TransferWindows:
    """The window of every parameter, in seconds from the begin of a step.

    It starts when the gradient is complete, and ends when the next step first computes with the
    parameter. One device computes in the planned order: first all that the first gradient needs,
    then what the second needs besides, and so on, and last what no gradient needs.

    A parameter that nothing reads is needed when the step ends. Ops without a time take none.
    """
    units = units_of_step(graph, job, frames)
    targets = targets_in_order(frontier, order)
    parts = units.by_target(list(targets.values()))
    seconds = [sum(timing.seconds.get(name, 0.0) for name in names) for names in units.ops]
    begin_s, part_ends_s = _schedule(parts, seconds)
    computation_s = part_ends_s[-1]
    users = users_of(graph, units, access, targets, seconds)
    windows = {
        name: Window(
            ready_s=ready_s,
            needed_s=min(
                (begin_s[unit] for unit in users[name]),
                default=computation_s,
            ),
        )
        for name, ready_s in zip(targets, part_ends_s, strict=False)
    }
    forward = units.ancestors([job.loss.op])
    return TransferWindows(
        windows, computation_s, _forward_end_s(parts[:-1], forward, begin_s, seconds)
    )


def group_window(windows: TransferWindows, members: Iterable[str]) -> Window:
    """When a group can be aggregated: the intersection of its members' windows."""
    own = [windows.windows[name] for name in members]
    return Window(max(w.ready_s for w in own), min(w.needed_s for w in own))


def _schedule(
    parts: Sequence[Sequence[int]], seconds: Sequence[float]
) -> tuple[dict[int, float], list[float]]:
    """When each unit begins and each part ends, one after the other."""
    clock_s = 0.0
    begin_s: dict[int, float] = {}
    ends_s = []
    for part in parts:
        for unit in part:
            begin_s[unit] = clock_s
            clock_s += seconds[unit]
        ends_s.append(clock_s)
    return begin_s, ends_s


def users_of(
    graph: OpGraph,
    units: Units,
    access: StateAccess,
    variables: Iterable[str],
    seconds: Sequence[float],
) -> dict[str, set[int]]:
    """For each variable the first units that take time for its value, its own updates left out.

    Ops that hand a value on, or that take no time, are followed to what waits for them.
    """
    names = list(variables)
    bit = {name: 1 << number for number, name in enumerate(names)}
    users: dict[str, set[int]] = {name: set() for name in names}
    handed_on = [0] * len(units.ops)  # for each unit the variables whose values go on from it
    for unit in units.order:
        reached = 0
        for source in units.sources[unit]:
            reached |= handed_on[source]
        for op in units.ops[unit]:
            for name in access.reads.get(op, frozenset()) - access.writes.get(op, frozenset()):
                reached |= bit.get(name, 0)
        is_single = len(units.ops[unit]) == 1
        # What only hands a value on does not compute with it, although it takes time.
        if seconds[unit] > 0 and not (is_single and graph[units.ops[unit][0]].kind in _HANDS_ON):
            while reached:
                lowest = reached & -reached
                users[names[lowest.bit_length() - 1]].add(unit)
                reached ^= lowest
        else:
            handed_on[unit] = reached
    return users


def _forward_end_s(
    parts: Sequence[Sequence[int]],
    forward: set[int],
    begin_s: dict[int, float],
    seconds: Sequence[float],
) -> float:
    """When the forward pass ends: with the last of it that the most demanding gradient needs.

    That is the first gradient, but for those that need next to nothing. What is left of the forward
    pass for later ones are side branches and regularisers.
    """
    own = [[unit for unit in part if unit in forward and seconds[unit] > 0] for part in parts]
    most = max(own, key=lambda part: sum(seconds[unit] for unit in part), default=[])
    return max((begin_s[unit] + seconds[unit] for unit in most), default=0.0)
