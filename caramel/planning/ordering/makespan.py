"""How long does a step take with an order? Without computing op by op, for searching.

A worker never stands still while an op is ready, and only transfers release ops. So it does not
matter which ready op it computes first ("the order of the computation ops does not impact the
makespan", execution-ordering, section 2.1): what counts is how much work each arrival releases. Ops
that depend on the same transfers are released together, by the last of them. The result is that of
`executor.execute` for every graph and order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from caramel.planning.ordering.dependencies import communication_dependencies
from caramel.planning.ordering.time_oracle import PICOSECONDS, TimeOracle
from caramel.planning.ordering.transfer_graph import TransferGraph


class _Release(NamedTuple):
    """Work that is released at one moment.

    Attributes:
        work: picoseconds that computing it takes.
        after: what it waits for: numbers of transfers, and, counted on from the last one of them,
            of releases before it.
    """

    work: int
    after: tuple[int, ...]


class Makespan:
    """The makespan of a worker's step as a function of the order of its transfers.

    Raises:
        ProfileError: The time of a transfer is unknown.
    """

    def __init__(self, graph: TransferGraph, time: TimeOracle) -> None:
        self._graph = graph
        self._transfers = [
            (recv.channel, time.transfer_picoseconds(recv.name)) for recv in graph.recvs
        ]
        self._releases = _releases(graph, time)
        self._least = max(_loads(graph, time).values())

    def __call__(self, order: Sequence[str]) -> float:
        """Seconds from the begin to the last arrival or the end of the last op.

        Raises:
            PlanError: The order does not name each transfer once.
        """
        return self.picoseconds(self._graph.numbers_of(order)) / PICOSECONDS

    @property
    def least_picoseconds(self) -> int:
        """The makespan of no order is less: one resource is busy all the time."""
        return self._least

    def picoseconds(self, numbers: Sequence[int]) -> int:
        """The makespan of an order of the numbers of all transfers, which are not checked."""
        free: dict[str, int] = defaultdict(int)
        moments = [0] * len(numbers)  # of arrivals, then of releases
        for number in numbers:
            channel, duration = self._transfers[number]
            moments[number] = free[channel] = free[channel] + duration
        released: list[tuple[int, int]] = []
        for work, after in self._releases:
            moment = 0
            for number in after:
                if moments[number] > moment:
                    moment = moments[number]
            moments.append(moment)
            released.append((moment, work))
        end = 0
        for moment, work in sorted(released):
            end = max(end, moment) + work
        return max(end, *free.values(), 0)


def resource_loads_s(graph: TransferGraph, time: TimeOracle) -> dict[str | None, float]:
    """Seconds that each resource is busy in a step: each channel, and computing under None."""
    return {name: load / PICOSECONDS for name, load in _loads(graph, time).items()}


def _loads(graph: TransferGraph, time: TimeOracle) -> dict[str | None, int]:
    loads: dict[str | None, int] = {None: sum(time.op_picoseconds(op.name) for op in graph.ops)}
    for recv in graph.recvs:
        loads[recv.channel] = loads.get(recv.channel, 0) + time.transfer_picoseconds(recv.name)
    return loads


def _releases(graph: TransferGraph, time: TimeOracle) -> list[_Release]:
    """Each after those that it waits for.

    What the first op of a release waits for was received, or released before. Together these are
    all transfers that the other ops of the release depend on.
    """
    depends = communication_dependencies(graph)
    numbers = {recv.name: number for number, recv in enumerate(graph.recvs)}
    after: dict[int, tuple[int, ...]] = {}
    work: dict[int, int] = defaultdict(int)
    places: dict[int, int] = {}
    for op in graph.ops_in_topological_order():
        bits = depends[op.name]
        if bits not in places:
            places[bits] = len(graph.recvs) + len(places)
            after[bits] = tuple({numbers[name] for name in op.dependencies})
        numbers[op.name] = places[bits]
        work[bits] += time.op_picoseconds(op.name)
    return [_Release(work[bits], after[bits]) for bits in places]
