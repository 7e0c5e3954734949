"""The properties M, P and M+ of the transfers that are outstanding (TicTac, Algorithm 1).

Algorithm 1 goes through all ops whenever a transfer has arrived. Here ops that wait for the same
outstanding transfers are one entry, and an arrival changes those entries only that wait for it,
some of which become equal. A network of hundreds of parameters has a few hundred entries instead of
thousands of ops.

What the papers leave open:

- Where no op waits for this transfer and another one, M+ stays infinite, as line 7 sets it.
- M adds up all outstanding transfers that an op waits for, whichever channels carry them: line 3
  has one sum, and so does the authors' implementation.
- Ops that take no time count for M+ like others: line 15 does not look at their time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from caramel.planning.ordering.dependencies import communication_dependencies
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import TransferGraph


@dataclass(frozen=True, slots=True)
class Properties:
    """Of one outstanding transfer, in picoseconds; named as in the papers.

    Attributes:
        m: communication time, which is its own.
        p: directly-dependent compute load: of the ops that wait for this transfer only.
        m_plus: impending communication load: the least M of the ops that wait for this transfer
            and at least one other; infinite if there is none.
    """

    m: int
    p: int
    m_plus: float


@dataclass(slots=True)
class _Waiting:
    """Ops that wait for the same outstanding transfers: what they compute, and their M."""

    work: int
    m: int


class Outstanding:
    """The transfers that have not arrived yet (R of Algorithm 1), by their place in the graph."""

    def __init__(self, graph: TransferGraph, time: TimeOracle) -> None:
        self._m = [time.transfer_picoseconds(recv.name) for recv in graph.recvs]
        self._bits = (1 << len(graph.recvs)) - 1
        self._waiting: dict[int, _Waiting] = {}
        depends = communication_dependencies(graph)
        for op in graph.ops:
            bits = depends[op.name]
            if bits not in self._waiting:
                self._waiting[bits] = _Waiting(0, sum(self._m[i] for i in _numbers(bits)))
            self._waiting[bits].work += time.op_picoseconds(op.name)
        self._waiting.pop(0, None)

    def __bool__(self) -> bool:
        return self._bits != 0

    def arrive(self, number: int) -> None:
        """A transfer has arrived: ops no longer wait for it."""
        bit = 1 << number
        self._bits &= ~bit
        for bits in [bits for bits in self._waiting if bits & bit]:
            waiting = self._waiting.pop(bits)
            waiting.m -= self._m[number]
            same = self._waiting.setdefault(bits & ~bit, waiting)
            if same is not waiting:
                same.work += waiting.work
        self._waiting.pop(0, None)

    def properties(self) -> dict[int, Properties]:
        """The properties of each outstanding transfer, in the order of definition."""
        p: dict[int, int] = {}
        m_plus: dict[int, int] = {}
        undecided = self._bits
        for bits, waiting in sorted(self._waiting.items(), key=lambda item: item[1].m):
            if bits & (bits - 1) == 0:
                p[bits.bit_length() - 1] = waiting.work
                continue
            # By ascending M: the first entry that has a transfer is the one with the least M.
            m_plus.update(dict.fromkeys(_numbers(bits & undecided), waiting.m))
            undecided &= ~bits
        return {
            i: Properties(self._m[i], p.get(i, 0), m_plus.get(i, math.inf))
            for i in _numbers(self._bits)
        }


def _numbers(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
