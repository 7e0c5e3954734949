"""Timing-independent communication scheduling (TicTac 2018, Algorithm 2; the same in 2019).

Transfers that block computation least come first: the priority of a transfer is its M+ by the
general oracle, the least number of transfers that an op needs which waits for this one and at least
one other. A lower number goes first.

The papers let equal priorities go in any order; here they go in the order of definition, so that
every worker has the same order. In the papers' Figure 1 that is the case: M+ is 2 for both.
"""

from __future__ import annotations

from collections.abc import Mapping

from caramel.planning.ordering.properties import Outstanding
from caramel.planning.ordering.time_oracle import PICOSECONDS, general_oracle
from caramel.planning.ordering.transfer_graph import TransferGraph


def tic_priorities(graph: TransferGraph) -> dict[str, float]:
    """The priority of each transfer, infinite where no op waits for it and another one."""
    properties = Outstanding(graph, general_oracle(graph)).properties()
    return {graph.recvs[i].name: own.m_plus / PICOSECONDS for i, own in properties.items()}


def tic(graph: TransferGraph) -> tuple[str, ...]:
    """The order of the transfers; with several channels, each carries its part of it."""
    return by_priority(graph, tic_priorities(graph))


def by_priority(graph: TransferGraph, priorities: Mapping[str, float]) -> tuple[str, ...]:
    """The transfers by ascending priority number, equal ones in the order of definition."""
    return tuple(sorted((recv.name for recv in graph.recvs), key=lambda name: priorities[name]))
