"""The heuristic of the execution-ordering paper: Order(read), its equation 3.

    Order(read) = min{|Dep(op)| for op in G if read in Dep(op), |Dep(op)| > 1}

"prioritizes read ops that are connected to computation ops with less dependencies". The paper does
not say what the minimum is where no op depends on a read and another one: it is infinite here.
Equal ones go in the order of definition.

This is TIC by another path: with every transfer taking 1, M of an op is |Dep(op)|, and M+ is the
minimum above. So both give the same order for every graph, which a test shows.
"""

from __future__ import annotations

import math

from caramel.planning.ordering.dependencies import communication_dependencies
from caramel.planning.ordering.tic import by_priority
from caramel.planning.ordering.transfer_graph import TransferGraph


def execution_order_priorities(graph: TransferGraph) -> dict[str, float]:
    """Order(read) of each transfer."""
    depended_on = set(communication_dependencies(graph).values())
    return {
        recv.name: min(
            (
                bits.bit_count()
                for bits in depended_on
                if bits >> number & 1 and bits.bit_count() > 1
            ),
            default=math.inf,
        )
        for number, recv in enumerate(graph.recvs)
    }


def execution_order(graph: TransferGraph) -> tuple[str, ...]:
    """The order of the transfers; with several channels, each carries its part of it."""
    return by_priority(graph, execution_order_priorities(graph))
