"""The family of plans from which a search starts.

The gradients that are ready first are deferred, just enough of them to fill the forward pass; all
are joined up to some size; and some bytes may be in flight at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from caramel.planning.options import Options
from caramel.planning.search.descent import WORTH, Budget, Improver, Scored
from caramel.planning.search.grouping import Grouping, Shape

DEFERRED_SHARES = tuple(n / 10 for n in range(8))
NEAR_SHARES = tuple(n / 50 for n in range(-4, 5))
GROUP_BYTES = (0, 250_000, 500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)

_STARTS = 3  # limits of what is in flight

Value = Callable[[Scored], float]
"""By what members are compared; the least is the best."""


class Family:
    """Looks for the best members with the same parts of gradients.

    Args:
        improver: predicts them.
        grouping: makes them.
        least_s: what no step falls short of.
        options: which optimizations may be used.
        budget: what may be simulated.
    """

    def __init__(
        self,
        improver: Improver,
        grouping: Grouping,
        least_s: float,
        options: Options,
        budget: Budget,
    ) -> None:
        self._improver, self._grouping, self._least_s = improver, grouping, least_s
        self._options, self._budget = options, budget

    def best(self, value: Value, start: Shape | None = None) -> list[tuple[Shape, Scored]]:
        """The best member for each of several limits of what is in flight, the best first.

        Args:
            value: by what members are compared.
            start: what was the best with other parts; the sizes of groups are those.
        """
        options = self._options
        sizes = (2_000_000, 1_000_000) if options.batching else (0, 0)
        first = start or Shape(0.0, *sizes, self._improver.usual_bytes)
        if not options.scheduling:
            return [self._fitted(self._best_of([first], value), value, sized=start is None)]
        by_limit: list[tuple[Shape, Scored]] = []
        for limit in self._improver.limits:
            shapes = [
                dataclasses.replace(first, in_flight_bytes=limit, deferred_share=share)
                for share in DEFERRED_SHARES
            ]
            if not (by_limit and self._budget.is_over):
                by_limit.append(self._best_of(shapes, value))
        by_limit.sort(key=lambda each: value(each[1]))
        fitted = [self._fitted(each, value, sized=start is None) for each in by_limit[:_STARTS]]
        return sorted(fitted, key=lambda each: value(each[1]))

    def _fitted(
        self, found: tuple[Shape, Scored], value: Value, *, sized: bool
    ) -> tuple[Shape, Scored]:
        """A member with the best sizes of groups, if asked for, and share."""
        if self._options.batching and sized:
            shape = found[0]
            # One size after the other: to try all pairs would cost much of the budget.
            tried = [dataclasses.replace(shape, in_step_bytes=size) for size in GROUP_BYTES]
            shape, _ = found = self._best_of(tried, value, found)
            tried = [dataclasses.replace(shape, deferred_bytes=size) for size in GROUP_BYTES]
            found = self._best_of(tried, value, found)
        if self._options.scheduling:
            shape = found[0]
            shares = [shape.deferred_share + near for near in NEAR_SHARES]
            tried = [dataclasses.replace(shape, deferred_share=share) for share in shares]
            found = self._best_of(tried, value, found)
        return found

    def _best_of(
        self, shapes: Iterable[Shape], value: Value, best: tuple[Shape, Scored] | None = None
    ) -> tuple[Shape, Scored]:
        """The best of some members, and of the best so far."""
        for shape in shapes:
            if best is not None and self._budget.is_over:
                break
            candidate = self._grouping.shaped(shape)
            if best is not None:
                # A member that could not win if it took the least time possible is not simulated.
                least = Scored(candidate, self._least_s)
                if value(least) >= value(best[1]) * (1 - WORTH):
                    continue
            tried = self._improver.score(candidate)
            if best is None or value(tried) < value(best[1]) * (1 - WORTH):
                best = shape, tried
        assert best is not None
        return best
