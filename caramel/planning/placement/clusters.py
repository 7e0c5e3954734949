"""Groups that exchange many bytes, joined: a coarser problem, for a search.

The two groups that exchange most bytes are joined, again and again, until as few are left as there
shall be. What is joined must fit on one device. *Even* clusters may not have much more work than
the others, since else all would end up in one; only if too many are left, they may have more.
Others may have all that has room in a part of a device's memory: what a slow network asks for.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace

from caramel.planning.placement.filling import Filling
from caramel.planning.placement.problem import Problem

_WORK = 2.0  # times the mean work of a cluster, that one may have


def clustered(
    problem: Problem, count: int, *, share: float = 1.0, room: float | None = None
) -> Problem:
    """The problem in which groups are joined until there are `count`, or no two may be joined.

    Ties: the pair of the lowest groups.

    Args:
        problem: what is to be placed.
        count: how many groups shall be left.
        share: of the bytes that a group puts out, how many count as memory that it needs.
        room: the part of a device's memory that a cluster may have; None for even clusters.
    """
    joining = _Joining(problem, count, share, room)
    return replace(problem, together=(*problem.together, *joining.joined()))


class _Joining:
    def __init__(self, problem: Problem, count: int, share: float, room: float | None) -> None:
        self._problem, self._count = problem, count
        self._members = [list(members) for members in problem.groups]
        self._needs = list(Filling(problem, share).needs)
        self._work = list(problem.group_operations)
        self._left = len(self._members)
        self._all_work = math.fsum(self._work)
        self._most_work = _WORK * self._all_work / count if room is None else math.inf
        self._room = [(room or 1.0) * device.memory_bytes for device in problem.devices]
        self._allowed = [frozenset(allowed) for allowed in problem.allowed]
        # Bytes between groups, both ways.
        self._near: list[dict[int, float]] = [{} for _ in problem.groups]
        for group, numbers in enumerate(problem.group_inputs):
            for number in numbers:
                other = problem.group_of[problem.tensors[number].source]
                size = self._near[group].get(other, 0.0) + problem.tensors[number].bytes
                self._near[group][other] = self._near[other][group] = size

    def joined(self) -> list[tuple[int, ...]]:
        """Members of each cluster of several groups."""
        self._join_nearest()
        while self._left > self._count and self._most_work < self._all_work:
            # What is left over are small groups between clusters that are full.
            self._most_work *= 2
            self._join_nearest()
        return [tuple(members) for members in self._members if members]

    def _join_nearest(self) -> None:
        """Join the pair that exchanges most bytes, until none is left that may be joined."""
        heap = [
            (-size, group, other)
            for group, near in enumerate(self._near)
            for other, size in near.items()
            if group < other
        ]
        heapq.heapify(heap)
        while heap and self._left > self._count:
            size, group, other = heapq.heappop(heap)
            # Entries of what has been joined since are out of date.
            if self._near[group].get(other) == -size and self._may_join(group, other):
                for third in self._join(group, other):
                    pair = min(group, third), max(group, third)
                    heapq.heappush(heap, (-self._near[group][third], *pair))

    def _may_join(self, group: int, other: int) -> bool:
        if self._work[group] + self._work[other] > self._most_work:
            return False
        need = self._needs[group] + self._needs[other]
        allowed = self._allowed[group] & self._allowed[other]
        return any(self._room[device] >= need for device in allowed)

    def _join(self, group: int, other: int) -> list[int]:
        """Put the second group into the first; returns those that now exchange more with it."""
        self._members[group] += self._members[other]
        self._members[other] = []
        self._left -= 1
        self._needs[group] += self._needs[other]
        self._work[group] += self._work[other]
        self._allowed[group] &= self._allowed[other]
        near, joined = self._near[group], self._near[other]
        del near[other], joined[group]
        for third, size in joined.items():
            del self._near[third][other]
            near[third] = self._near[third][group] = near.get(third, 0.0) + size
        self._near[other] = {}
        return list(joined)
