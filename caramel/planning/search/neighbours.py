"""Which candidates differ from one by a change of a single group?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator

from caramel.core.decision import Group
from caramel.core.patterns import PATTERNS
from caramel.planning.depth import LARGEST_DEPTH
from caramel.planning.options import Options
from caramel.planning.pattern_choice import AUTO
from caramel.planning.search.grouping import Grouping

Change = Callable[[list[Group], int], Iterator[list[Group]]]
"""From groups and the number of one of them to groups in which that one is changed."""

_FEW = 16  # groups


class Neighbours:
    """Changes one group of a candidate in every way that may make its step shorter.

    Args:
        grouping: what may be joined and deferred.
        options: which optimizations may be used.
        patterns: those that the network model knows.
    """

    def __init__(self, grouping: Grouping, options: Options, patterns: Collection[str]) -> None:
        self._grouping, self._options = grouping, options
        self._patterns = patterns

    @property
    def changes(self) -> tuple[Change, ...]:
        """All that the options allow, in the order in which they are to be tried."""
        options = self._options
        changes: list[Change] = []
        if options.scheduling:
            changes += [self.other_side, self._exchange, self._earlier]
        if options.batching:
            changes += [self._join, self._split]
        if options.adaptive_depth:
            changes.append(self._cut)
        return (*changes, self._by)

    def other_side(self, groups: list[Group], number: int) -> Iterator[list[Group]]:
        """Defer it, or do not."""
        group = groups[number]
        if not group.is_summed:
            return
        rest = [*groups[:number], *groups[number + 1 :]]
        deferred = [n for g in (group, *rest) if g.deferred or g is group for n in g.members]
        changed = dataclasses.replace(group, deferred=not group.deferred)
        if changed.deferred and not self._grouping.may_defer(deferred):
            return
        yield self._grouping.inserted(rest, changed)

    def _exchange(self, groups: list[Group], number: int) -> Iterator[list[Group]]:
        """Defer it in place of another one, or the other way round; only where there are few."""
        # There are as many exchanges as pairs.
        if len(groups) > _FEW:
            return
        for other in range(number + 1, len(groups)):
            if groups[other].deferred != groups[number].deferred:
                for once in self.other_side(groups, number):
                    position = next(
                        n for n, g in enumerate(once) if g.members == groups[other].members
                    )
                    yield from self.other_side(once, position)

    def _earlier(self, groups: list[Group], number: int) -> Iterator[list[Group]]:
        """Send it before the one before."""
        if number and groups[number - 1].deferred == groups[number].deferred:
            swapped = [groups[number], groups[number - 1]]
            yield [*groups[: number - 1], *swapped, *groups[number + 1 :]]

    def _join(self, groups: list[Group], number: int) -> Iterator[list[Group]]:
        """Join it with the next one."""
        if number + 1 >= len(groups):
            return
        first, second = groups[number], groups[number + 1]
        may_join = self._grouping.may_join(first.members, second.members)
        may_join = may_join and first.is_summed and second.is_summed
        if first.deferred == second.deferred and may_join:
            joined = dataclasses.replace(first, members=first.members + second.members)
            yield [*groups[:number], joined, *groups[number + 2 :]]

    def _split(self, groups: list[Group], number: int) -> Iterator[list[Group]]:
        """Split it into halves."""
        halves = self._grouping.halves(groups[number])
        if halves is not None:
            yield [*groups[:number], *halves, *groups[number + 1 :]]

    def _cut(self, groups: list[Group], number: int) -> Iterator[list[Group]]:
        """Cut it into twice or half as many parts."""
        group = groups[number]
        if not group.is_summed:
            return
        for depth in (group.depth * 2, group.depth // 2):
            if 1 <= depth <= LARGEST_DEPTH:
                changed = dataclasses.replace(group, depth=depth)
                yield [*groups[:number], changed, *groups[number + 1 :]]

    def _by(self, groups: list[Group], number: int) -> Iterator[list[Group]]:
        """Aggregate it by another pattern."""
        group = groups[number]
        if self._options.pattern != AUTO or not group.is_summed:
            return
        for pattern in PATTERNS:
            if pattern != group.pattern and pattern in self._patterns:
                changed = dataclasses.replace(group, pattern=pattern)
                yield [*groups[:number], changed, *groups[number + 1 :]]
