"""The plan of the Caramel paper: batching, transfer scheduling, adaptive depth (sections 4.2-4.4).

Each optimization can be left out; with none of them the plan is the plain one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

from caramel.analyzers.windows import group_window
from caramel.core.calibration import DEFAULT
from caramel.core.decision import ALL_GATHER, Edge, Gate, Group
from caramel.core.errors import PlanError
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient
from caramel.core.time_facts import ActivationOrder, NetworkModel, TransferWindows
from caramel.planning.depth import depth_of
from caramel.planning.gates import gates_of
from caramel.planning.paper.batching import ReadyGradient, batches
from caramel.planning.paper.packing import Placement, Transfer, pack
from caramel.planning.pattern_choice import AUTO, pattern_of, seconds_of


def paper_plan(
    plain: Plan,
    *,
    order: ActivationOrder,
    windows: TransferWindows,
    network: NetworkModel,
    edges: Sequence[Edge] = (),
    batching: bool = True,
    scheduling: bool = True,
    adaptive_depth: bool = True,
    pattern: str = AUTO,
    deferrable: Callable[[frozenset[str]], str | None] = lambda parameters: None,
    moved_updates: Callable[[frozenset[str]], Iterable[str]] = lambda parameters: (),
    in_flight_bytes: int = DEFAULT.in_flight_bytes,
    pair_bytes: int = DEFAULT.pair_bytes,
) -> Plan:
    """The plain plan with other groups and with gates and control edges.

    Groups are named in the order of their transfer, the deferred ones first.

    Args:
        plain: the plan to improve. Its gathered groups stay as they are.
        order: in which gradients get ready.
        windows: when each parameter can be aggregated.
        network: what aggregations take.
        edges: the control edges that enforce the order; none if that is left out.
        batching: join small gradients.
        scheduling: defer what does not fit the backward pass, and let transfers go in order.
        adaptive_depth: split large groups into parts.
        pattern: one of `core.patterns.PATTERNS`, or "auto" for the fastest of each group.
        deferrable: why the gradients of these parameters cannot be deferred together, or None.
        moved_updates: variables whose updates move with these parameters' gradients. A group is
            needed before the first of them is read.
        in_flight_bytes: see `planning.gates`.
        pair_bytes: see `planning.depth`.

    Raises:
        PlanError: a fact does not cover a gradient or a pattern of the plan.
    """
    plain = plain.deciding(edges=tuple(edges))
    if not plain.decision.groups:
        return plain
    if not (batching or scheduling or adaptive_depth or pattern == AUTO):
        return plain.deciding(groups=_with_pattern(plain.decision.groups, pattern))
    planner = _Planner(plain, order, windows, network, pattern, pair_bytes)
    members = planner.batches() if batching else planner.singles()
    if scheduling:
        placed = planner.scheduled(members, deferrable, moved_updates)
    else:
        placed = planner.unscheduled(members)
    groups = tuple(
        planner.group(number, placement, in_flight_bytes if adaptive_depth else None)
        for number, placement in enumerate(placed)
    )
    gates = planner.gates(groups, in_flight_bytes) if scheduling else ()
    return plain.deciding(groups=groups, gates=gates)


class _Planner:
    """One plan and the facts about it."""

    def __init__(
        self,
        plain: Plan,
        order: ActivationOrder,
        windows: TransferWindows,
        network: NetworkModel,
        pattern: str,
        pair_bytes: int,
    ) -> None:
        self._windows, self._network, self._pattern = windows, network, pattern
        self._pair_bytes = pair_bytes
        self._plain_groups = {
            name: group for group in plain.decision.groups for name in group.members
        }
        self._gathered = frozenset(
            name for name, group in self._plain_groups.items() if group.pattern == ALL_GATHER
        )
        gradients = {gradient.parameter: gradient for gradient in plain.job.gradients}
        _check_facts(gradients, order, windows)
        # What is gathered depends on the rows of a step; nothing is known of it.
        self._sizes = {
            name: 0 if name in self._gathered else gradient.bytes
            for name, gradient in gradients.items()
        }
        self._gradients = {name: gradients[name] for name in order.parameters if name in gradients}

    # Which gradients go together

    def singles(self) -> tuple[tuple[str, ...], ...]:
        """Each gradient alone, in activation order."""
        return tuple((name,) for name in self._gradients)

    def batches(self) -> tuple[tuple[str, ...], ...]:
        """Small gradients joined."""
        ready = [
            ReadyGradient(
                parameter=name,
                size_bytes=self._sizes[name],
                ready_s=self._windows.windows[name].ready_s,
                dtype=f"{gradient.spec.dtype} {gradient.weight}",
                alone=gradient.indices is not None or not self._sizes[name],
            )
            for name, gradient in self._gradients.items()
        ]
        return batches(ready, threshold_bytes=self._network.threshold_bytes, seconds=self._seconds)

    # When they go

    def scheduled(
        self,
        groups: Iterable[tuple[str, ...]],
        deferrable: Callable[[frozenset[str]], str | None],
        moved_updates: Callable[[frozenset[str]], Iterable[str]],
    ) -> tuple[Placement, ...]:
        """Groups in planned order, some deferred."""
        windows = self._windows.windows

        def refusal(parameters: frozenset[str]) -> str | None:
            gathered = sorted(parameters & self._gathered)
            return f"rows of '{gathered[0]}' are gathered" if gathered else deferrable(parameters)

        def needed_s(transfer: Transfer) -> float:
            moved = moved_updates(frozenset(transfer.members))
            first_s = min((windows[v].needed_s for v in moved if v in windows), default=None)
            return transfer.needed_s if first_s is None else min(first_s, transfer.needed_s)

        packing = pack(
            [self._transfer(members, self._seconds) for members in groups],
            computation_s=self._windows.computation_s,
            refusal=refusal,
            needed_s=needed_s,
        )
        return packing.placements

    def unscheduled(self, groups: Iterable[tuple[str, ...]]) -> tuple[Placement, ...]:
        """Groups in the order in which they are ready, sent at once."""
        transfers = [self._transfer(members, lambda size_bytes: 0.0) for members in groups]
        return tuple(
            Placement(t, False, t.ready_s, f"sent when ready: {t.ready_s:.4f} s")
            for t in sorted(transfers, key=lambda transfer: transfer.ready_s)
        )

    def _transfer(self, members: tuple[str, ...], seconds: Callable[[int], float]) -> Transfer:
        size_bytes = sum(self._sizes[name] for name in members)
        window = group_window(self._windows, members)
        return Transfer(members, size_bytes, seconds(size_bytes), window.ready_s, window.needed_s)

    def _seconds(self, size_bytes: int) -> float:
        return seconds_of(size_bytes, self._network, self._pattern)

    # What is in the plan

    def group(self, number: int, placement: Placement, beside_bytes: int | None) -> Group:
        """A group of the plan.

        Args:
            beside_bytes: what else is on its way at the same time; None to leave the depth alone.
        """
        members, size_bytes = placement.transfer.members, placement.transfer.size_bytes
        plain = dataclasses.replace(
            # With the `shift` of the first member: equal groups are added up in the same order
            # whatever else is planned.
            self._plain_groups[members[0]],
            name=f"group_{number}",
            members=members,
            deferred=placement.deferred,
        )
        reasons = [placement.reason]
        if plain.pattern == ALL_GATHER:
            return dataclasses.replace(plain, reason=f"rows are gathered; {placement.reason}")
        pattern = pattern_of(size_bytes, self._network, self._pattern)
        depth = plain.depth
        if beside_bytes is not None:
            depth = depth_of(
                size_bytes,
                self._network,
                beside_bytes=beside_bytes,
                pair_bytes=self._pair_bytes,
            )
        if len(members) > 1:
            reasons.append(f"{len(members)} small gradients joined while others are on the wire")
        if self._pattern == AUTO:
            reasons.append(f"{pattern} is the fastest ({self._seconds(size_bytes):.4f} s)")
        return dataclasses.replace(
            plain,
            pattern=pattern,
            depth=depth,
            reason="; ".join(reasons),
        )

    def gates(self, groups: Sequence[Group], in_flight_bytes: int) -> tuple[Gate, ...]:
        """The order of the groups, which begin with the deferred ones."""
        sized = [(group.name, sum(self._sizes[name] for name in group.members)) for group in groups]
        return gates_of([each for each in sized if each[1]], in_flight_bytes=in_flight_bytes)


def _with_pattern(groups: Sequence[Group], pattern: str) -> tuple[Group, ...]:
    return tuple(
        group if group.pattern == ALL_GATHER else dataclasses.replace(group, pattern=pattern)
        for group in groups
    )


def _check_facts(
    gradients: Mapping[str, AggregatedGradient], order: ActivationOrder, windows: TransferWindows
) -> None:
    for fact, known in (
        ("activation order", frozenset(order.parameters)),
        ("transfer window", frozenset(windows.windows)),
    ):
        missing = sorted(gradients.keys() - known)
        if missing:
            raise PlanError(f"there is no {fact} of parameter '{missing[0]}'")
