"""Which transfers does each op wait for, directly or through others? `dep` of TicTac.

TicTac 2018, section 4.1: "the set of recv ops that the op is directly or transitively dependent
on". The papers leave open whether control edges count; they do here, as an op waits for them just
as long.
"""

from __future__ import annotations

from caramel.planning.ordering.transfer_graph import TransferGraph


def communication_dependencies(graph: TransferGraph) -> dict[str, int]:
    """`dep` of each transfer and each op as a bit set: bit `i` stands for `graph.recvs[i]`.

    A transfer depends on itself. Ops follow those that they depend on.
    """
    depends = {recv.name: 1 << number for number, recv in enumerate(graph.recvs)}
    for op in graph.ops_in_topological_order():
        bits = 0
        for name in op.dependencies:
            bits |= depends[name]
        depends[op.name] = bits
    return depends
