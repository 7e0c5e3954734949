"""Plans that differ in everything a plan decides, for asking whether their predicted order is true.

Each is drawn: how much is deferred and whether that is what is ready first, how large groups are,
how many bytes may be in flight, in which order groups of the step go, into how many parts they are
cut, by which pattern they are aggregated, and whether control edges order the computation.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

from caramel.core.decision import ALL_GATHER, Group
from caramel.core.plan import Plan
from caramel.planning.choose import Decision
from caramel.planning.gates import gates_of

_GROUP_BYTES = (0, 500_000, 2_000_000, 8_000_000)
_IN_FLIGHT = (None, 0, 3_000_000, 12_000_000)
_LARGEST_SHARE = 0.9  # of the bytes that are deferred
_DEPTHS = (1, 1, 2, 4)


def varied(decision: Decision, number: int) -> Plan:
    """The plan of this number; 0 is the plain one.

    Args:
        decision: the plan of the paper, from measured facts.
        number: of the plan; the same gives the same plan.
    """
    plain, draw = decision.plain, random.Random(number)
    if not number:
        return plain
    assert decision.outlook is not None
    ready = decision.outlook.ordered.ready_s
    summed = [group for group in plain.decision.groups if group.pattern != ALL_GATHER]
    summed.sort(key=lambda group: ready.get(plain.parameter(group.members[0]), 0.0))
    moved = _drawn_share(decision, summed, draw)
    rest = [group for group in summed if group not in moved]
    if draw.random() < 0.25:
        rest.reverse()  # what is ready last goes first: gates make the others wait for it
    pattern = draw.choice(sorted(decision.outlook.network.costs))
    groups: list[Group] = []
    for deferred, alone in ((True, moved), (False, rest)):
        first = {group.members[0]: group for group in alone}
        for members in _joined(plain, alone, draw.choice(_GROUP_BYTES)):
            depth, own = draw.choice(_DEPTHS), first[members[0]]
            groups.append(
                dataclasses.replace(
                    own, members=members, deferred=deferred, depth=depth, pattern=pattern
                )
            )
    groups += [group for group in plain.decision.groups if group.pattern == ALL_GATHER]
    groups = [dataclasses.replace(group, name=f"group_{n}") for n, group in enumerate(groups)]
    plan = plain.deciding(groups=tuple(groups))
    in_flight = draw.choice(_IN_FLIGHT)
    transfers = [(g.name, plan.bytes(g)) for g in groups if g.pattern != ALL_GATHER]
    return plan.deciding(
        edges=decision.plan.decision.edges if draw.random() < 0.5 else (),
        gates=() if in_flight is None else gates_of(transfers, in_flight_bytes=in_flight),
    )


def _drawn_share(decision: Decision, groups: Sequence[Group], draw: random.Random) -> list[Group]:
    """Those that are deferred: some share of the bytes, what is ready first or anything."""
    plain = decision.plain
    left = draw.uniform(0, _LARGEST_SHARE) * sum(plain.bytes(group) for group in groups)
    tried = list(groups) if draw.random() < 0.5 else draw.sample(groups, len(groups))
    taken: list[Group] = []
    for group in tried:
        parameters = frozenset(plain.parameter(each.members[0]) for each in (*taken, group))
        if plain.bytes(group) <= left and decision.deferrable(parameters) is None:
            taken.append(group)
            left -= plain.bytes(group)
    return [group for group in groups if group in taken]


def _joined(plain: Plan, groups: Sequence[Group], most_bytes: int) -> Iterator[tuple[str, ...]]:
    """Members of neighbours that are not larger than `most_bytes` together, or of one."""
    members: list[str] = []
    size = 0
    for group in groups:
        if members and size + plain.bytes(group) > most_bytes:
            yield tuple(members)
            members, size = [], 0
        members += group.members
        size += plain.bytes(group)
    if members:
        yield tuple(members)
