"""In which order do workers send gradients to their servers?

Where gradients get ready faster than the link carries them, some have to wait. Those go first whose
variables are then the longest on their way back to the workers for the next step, which begins when
all are there: so the other direction of the link is not left alone with a long transfer in the end
(Schrage's rule for jobs with ready times and delivery times). Of equals those go first that are
needed first in the next step. A link is never idle while anything is ready.

A gradient waits for nothing where it comes in this order anyway. Of sparse gradients rows travel,
and nobody knows how many before: they go when they are ready.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping, Sequence

from caramel.core.decision import Gate, Group
from caramel.core.patterns import SERVER
from caramel.core.plan import Plan
from caramel.planning.gates import gates_of
from caramel.planning.serving.ahead import Ahead, choose_ahead
from caramel.planning.serving.course import Begin, Begins, Push


def order_pushes(
    begins: Begins, may_go_ahead: Sequence[str], in_flight_bytes: int
) -> tuple[Ahead, Plan]:
    """What to pull ahead if gradients are ordered, and the plan in which they are.

    Args:
        begins: of the plan without an order of gradients.
        may_go_ahead: the variables that may be pulled ahead.
        in_flight_bytes: that may be on their way on a channel; with 0 there is exactly one order.
    """
    plan = begins.plan
    sizes = {g.name: plan.bytes(g) for g in plan.decision.groups if _may_wait(plan, g)}
    needed = {name: place for place, name in enumerate(begins.order)}

    def gates(begin: Begin) -> list[Gate]:
        return gated(begin.pushes, sizes, needed, in_flight_bytes)[1]

    ahead = choose_ahead(begins, may_go_ahead, gates)
    begin = begins(ahead.variables)
    sequence, own = gated(begin.pushes, sizes, needed, in_flight_bytes)
    return ahead, plan.deciding(groups=_in_sequence(plan, begin.pushes, sequence), gates=tuple(own))


def _may_wait(plan: Plan, group: Group) -> bool:
    """Whether a gradient may wait, and others for it."""
    is_sparse = plan.gradient(group.members[0]).indices is not None
    return group.pattern == SERVER and not is_sparse and plan.elements(group) > 0


def gated(
    pushes: Sequence[Push],
    sizes: Mapping[str, int],
    needed: Mapping[str, int],
    in_flight_bytes: int,
) -> tuple[list[str], list[Gate]]:
    """In which order gradients go, and what they wait for so that they do.

    Args:
        pushes: all gradients, those first that are ready first.
        sizes: bytes of those that may wait.
        needed: the places of variables among what the next step needs.
        in_flight_bytes: see `order_pushes`.
    """
    found: list[tuple[float, str]] = []
    gates: list[Gate] = []
    for server in sorted({push.server for push in pushes}):
        own = [push for push in pushes if push.server == server and push.group in sizes]
        carried = carry(own, needed)
        found += [(end_s, own[number].group) for number, end_s in carried]
        named = [(own[number].group, sizes[own[number].group]) for number, _ in carried]
        waits = {g.group: g.after for g in gates_of(named, in_flight_bytes=in_flight_bytes)}
        if in_flight_bytes:
            waits = _useful(own, carried, waits)
        gates += [Gate(name, after) for name, after in waits.items()]
    return [name for _, name in sorted(found)], gates


def carry(pushes: Sequence[Push], needed: Mapping[str, int]) -> list[tuple[int, float]]:
    """The numbers of a channel's gradients in the order in which they go, and when each arrives."""
    urgency = [(-push.back_s, min(needed.get(n, 0) for n, _ in push.members)) for push in pushes]
    found: list[tuple[int, float]] = []
    ready: list[tuple[tuple[float, int], int]] = []
    clock_s, following = 0.0, 0
    while len(found) < len(pushes):
        if not ready:
            clock_s = max(clock_s, pushes[following].ready_s)
        while following < len(pushes) and pushes[following].ready_s <= clock_s:
            heapq.heappush(ready, (urgency[following], following))
            following += 1
        _, number = heapq.heappop(ready)
        clock_s += pushes[number].seconds
        found.append((number, clock_s))
    return found


def _useful(
    pushes: Sequence[Push], carried: Sequence[tuple[int, float]], waits: Mapping[str, str]
) -> dict[str, str]:
    """What some gradients wait for, without those that are not ready before all that goes before
    them has been given to the channel."""
    arrives_s = {pushes[number].group: end_s for number, end_s in carried}
    found: dict[str, str] = {}
    last: tuple[float, int] = (0.0, -1)
    for number, _ in carried:
        push = pushes[number]
        given = (push.ready_s, number)
        if given < last and push.group in waits:
            found[push.group] = waits[push.group]
            given = (max(push.ready_s, arrives_s[waits[push.group]]), number)
        last = max(last, given)
    return found


def _in_sequence(plan: Plan, pushes: Sequence[Push], sequence: Sequence[str]) -> tuple[Group, ...]:
    """The groups of a plan in the order in which they go, with the reasons, and then the others."""
    ordered = set(sequence)
    ready = [push.group for push in pushes if push.group in ordered]
    ahead = {push.group for push in pushes if push.ahead}
    groups = []
    for place, name in enumerate(sequence):
        first = ready.index(name)
        why = "comes back for the next step at once" if name in ahead else "does not come back yet"
        reason = "" if place == first else f"ready as number {first + 1}; {why}"
        groups.append(dataclasses.replace(plan.group(name), reason=reason))
    return (*groups, *(group for group in plan.decision.groups if group.name not in ordered))
