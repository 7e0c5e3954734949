"""Timing-aware communication scheduling (TicTac 2018, Algorithm 3; the same in 2019).

While transfers are outstanding, their properties are computed, and the minimum of the comparator is
the next one. With several channels, each carries its part of the order, as in the authors'
implementation.

Where the papers contradict themselves or leave something open:

- Lines 2 to 5 of Algorithm 3 as printed, in both texts, say that A goes first if
  min(P_A, M_B) < min(P_B, M_A). That is equation 6 (2 in 2019) with both sides exchanged; it would
  choose the bad order of Figure 1, and on random graphs does worse than random orders. Equation 6
  follows from the makespans above it, and the authors' implementation agrees with it. So A goes
  first if min(P_B, M_A) < min(P_A, M_B).
- "It is easy to prove that this function is transitive": it is not. A transfer with M = P ties with
  all whose M and P are not less, and ties are broken by M+, so that A can precede B, B precede C,
  and C precede A. The next transfer is therefore defined without sorting, as the first of these
  that leaves any, and then by the order of definition:

  1. those that no other outstanding transfer precedes, which are the minima of the comparator;
  2. of those that none precedes by equation 6 alone, the ones with the least M+.

  Equation 6 is Johnson's rule, which has no cycles, so 2 always leaves one.
"""

from __future__ import annotations

from collections.abc import Mapping

from caramel.planning.ordering.properties import Outstanding, Properties
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import TransferGraph


def precedes(a: Properties, b: Properties) -> bool:
    """The comparator: case 1 is equation 6, case 2 breaks its ties by M+."""
    first, second = min(b.p, a.m), min(a.p, b.m)
    return first < second if first != second else a.m_plus < b.m_plus


def tac(graph: TransferGraph, time: TimeOracle) -> tuple[str, ...]:
    """The order of the transfers."""
    order = []
    outstanding = Outstanding(graph, time)
    while outstanding:
        number = next_transfer(outstanding.properties())
        outstanding.arrive(number)
        order.append(graph.recvs[number].name)
    return tuple(order)


def next_transfer(outstanding: Mapping[int, Properties]) -> int:
    """The key of the transfer that goes next, of those in the order of definition."""
    unpreceded = _unpreceded_by_overlap(outstanding)
    least = min(outstanding[number].m_plus for number in unpreceded)
    # Among these alone equation 6 ties, so a minimum of the comparator is one with the least M+.
    candidates = [number for number in unpreceded if outstanding[number].m_plus == least]
    for number in candidates:
        own = outstanding[number]
        if not any(precedes(other, own) for other in outstanding.values()):
            return number
    return candidates[0]


def _unpreceded_by_overlap(outstanding: Mapping[int, Properties]) -> list[int]:
    """Those that none precedes by equation 6, found in one pass as Johnson's rule finds the first.

    Transfers that are shorter than what they let be computed go before the others, the shortest
    first; of the others the one with the most to compute. M = P ties with all that are not less.
    """
    shortest = min((own.m for own in outstanding.values() if own.m < own.p), default=None)
    if shortest is not None:
        return [i for i, own in outstanding.items() if own.m <= own.p and own.m <= shortest]
    most = max(own.p for own in outstanding.values())
    return [i for i, own in outstanding.items() if own.p in (own.m, most)]
