"""Where the spans of timelines go in a picture or a viewer.

Steps come one after the other. Spans of one resource that overlap get *lanes* of their own. What is
too thin to be seen is joined with its neighbours to one *bar*.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, get_args

from caramel.core.timeline import Resource, Span, Timeline

RESOURCES: tuple[Resource, ...] = get_args(Resource)

Steps: TypeAlias = Timeline | Sequence[Timeline]
"""One step, or several in order."""


def in_sequence(steps: Steps) -> tuple[Timeline, ...]:
    """Steps right behind each other, the first from 0 on; empty ones are left out."""
    # What passes between traced steps is mostly the tracing itself.
    given = [steps] if isinstance(steps, Timeline) else steps
    until_s = 0.0
    placed = []
    for step in given:
        if step.spans:
            shift_s = until_s - step.begin_s
            placed.append(Timeline(tuple(_moved(span, shift_s) for span in step.spans)))
            until_s = max(span.end_s for span in placed[-1].spans)
    return tuple(placed)


def _moved(span: Span, by_s: float) -> Span:
    begin_s, end_s = span.begin_s + by_s, span.end_s + by_s
    return Span(span.resource, span.name, begin_s, end_s, span.worker, span.bytes)


def _order(span: Span) -> tuple[float, float, str]:
    return span.begin_s, span.end_s, span.name


def lanes(spans: Iterable[Span]) -> tuple[tuple[Span, ...], ...]:
    """Spans in lanes in which none overlaps another; each is in the first lane that is free."""
    found: list[list[Span]] = []
    free: list[int] = []
    # Two heaps: lanes that are free, the first one first, and those in use, by when they end.
    busy: list[tuple[float, int]] = []
    for span in sorted(spans, key=_order):
        while busy and busy[0][0] <= span.begin_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(found))
            found.append([])
        lane = heapq.heappop(free)
        found[lane].append(span)
        heapq.heappush(busy, (span.end_s, lane))
    return tuple(tuple(lane) for lane in found)


# Pictures ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bar:
    """A span, or several neighbours of one lane, as one thing to draw.

    Attributes:
        longest: the span that takes most of it.
        begin_s: of the first.
        end_s: of the last.
        count: how many spans it stands for.
        bytes: of all of them, as far as they are known.
    """

    longest: Span
    begin_s: float
    end_s: float
    count: int = 1
    bytes: int = 0

    @classmethod
    def of(cls, span: Span) -> Bar:
        """The bar of one span."""
        return cls(span, span.begin_s, span.end_s, 1, span.bytes or 0)

    @property
    def length_s(self) -> float:
        """From its begin to its end."""
        return self.end_s - self.begin_s

    def joined(self, other: Bar) -> Bar:
        """Both as one."""
        return Bar(
            max(self.longest, other.longest, key=lambda span: span.end_s - span.begin_s),
            min(self.begin_s, other.begin_s),
            max(self.end_s, other.end_s),
            self.count + other.count,
            self.bytes + other.bytes,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """What one resource of one worker does, in lanes of bars in the order of their begins."""

    worker: int
    resource: Resource
    lanes: tuple[tuple[Bar, ...], ...]

    def joined(self, least_s: float) -> Row:
        """With bars that are shorter than this joined with a neighbour that is as near."""
        joined = tuple(tuple(_joined(lane, least_s)) for lane in self.lanes)
        return Row(self.worker, self.resource, joined)


def rows(timeline: Timeline, most_lanes: int) -> tuple[Row, ...]:
    """A row for every resource that anybody uses, for each worker.

    Args:
        most_lanes: of a row; what would be in a further lane is put into the last one, where what
            overlaps is one bar.
    """
    own: dict[tuple[int, Resource], list[Span]] = {}
    for span in timeline.spans:
        own.setdefault((span.worker, span.resource), []).append(span)
    used = [resource for resource in RESOURCES if any(key[1] == resource for key in own)]
    return tuple(
        Row(worker, resource, _bars(own.get((worker, resource), ()), most_lanes))
        for worker in timeline.workers
        for resource in used
    )


def _bars(spans: Iterable[Span], most_lanes: int) -> tuple[tuple[Bar, ...], ...]:
    separate = lanes(spans)
    # In the last lane spans may overlap: they become one bar.
    first, others = separate[: most_lanes - 1], separate[most_lanes - 1 :]
    last = sorted((span for lane in others for span in lane), key=_order)
    found = [[Bar.of(span) for span in lane] for lane in (*first, last) if lane]
    return tuple(tuple(_joined(lane, 0.0)) for lane in found)


def _joined(bars: Iterable[Bar], least_s: float) -> Iterator[Bar]:
    """Neighbours that overlap, or are near and one of them too thin, as one."""
    last: Bar | None = None
    for bar in bars:
        if last is not None and not _are_one(last, bar, least_s):
            yield last
            last = None
        last = bar if last is None else last.joined(bar)
    if last is not None:
        yield last


def _are_one(first: Bar, second: Bar, least_s: float) -> bool:
    gap_s = second.begin_s - first.end_s
    is_thin = min(first.length_s, second.length_s) < least_s
    return gap_s < 0 or (is_thin and gap_s < least_s)
