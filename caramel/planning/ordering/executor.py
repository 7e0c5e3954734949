"""Executes a worker's step in thought: one computing resource, and a channel for each server.

Each channel carries its transfers one after the other in the given order. The worker computes one
op at a time, in the order in which they get ready, meanwhile. This is the model of TicTac 2018,
section 3.1; its time is the makespan.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence

from caramel.core.timeline import Span, Timeline
from caramel.planning.ordering.time_oracle import PICOSECONDS, TimeOracle
from caramel.planning.ordering.transfer_graph import TransferGraph


def execute(graph: TransferGraph, time: TimeOracle, order: Sequence[str]) -> Timeline:
    """When each transfer is received and each op computed; `step_s` is the makespan.

    Ops that get ready at the same moment are computed in the order of definition.

    Raises:
        PlanError: The order does not name each transfer once.
        ProfileError: The time of a transfer is unknown.
    """
    received = list(_receive(graph, time, order))
    computed = _compute(graph, time, {name: end for name, _, end in received})
    return Timeline(
        (
            *(Span("receive", *_in_seconds(*span)) for span in received),
            *(Span("compute", *_in_seconds(*span)) for span in computed),
        )
    )


def _in_seconds(name: str, begin: int, end: int) -> tuple[str, float, float]:
    return name, begin / PICOSECONDS, end / PICOSECONDS


def _receive(
    graph: TransferGraph, time: TimeOracle, order: Sequence[str]
) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of each transfer."""
    free: dict[str, int] = defaultdict(int)
    for number in graph.numbers_of(order):
        recv = graph.recvs[number]
        begin = free[recv.channel]
        free[recv.channel] += time.transfer_picoseconds(recv.name)
        yield recv.name, begin, free[recv.channel]


def _compute(
    graph: TransferGraph, time: TimeOracle, ends: dict[str, int]
) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of each op; `ends` has when each transfer ends."""
    ends = dict(ends)
    missing = {number: len(set(op.dependencies)) for number, op in enumerate(graph.ops)}
    followers: dict[str, list[int]] = defaultdict(list)
    for number, op in enumerate(graph.ops):
        for name in set(op.dependencies):
            followers[name].append(number)
    ready: list[tuple[int, int]] = [(0, number) for number, count in missing.items() if not count]

    def end(name: str) -> None:
        for number in followers[name]:
            missing[number] -= 1
            if not missing[number]:
                heapq.heappush(
                    ready, (max(ends[d] for d in graph.ops[number].dependencies), number)
                )

    for name in list(ends):
        end(name)
    free = 0
    while ready:
        moment, number = heapq.heappop(ready)
        op = graph.ops[number]
        begin = max(free, moment)
        free = ends[op.name] = begin + time.op_picoseconds(op.name)
        yield op.name, begin, free
        end(op.name)
