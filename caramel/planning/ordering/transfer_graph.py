"""A worker's part of a step: which transfers it receives, and which ops wait for which of them.

This is the DAG that TicTac orders (2018, sections 2.2 and 3.1): what a worker receives are its
roots, computation hangs on them. What a transfer itself waits for on the server is no part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from caramel.core.errors import GraphError, PlanError


@dataclass(frozen=True, slots=True)
class Recv:
    """A parameter that a worker receives.

    Attributes:
        name: unique among transfers and ops.
        channel: what carries it, one transfer at a time: one channel for each server.
    """

    name: str
    channel: str = "server"


@dataclass(frozen=True, slots=True)
class Op:
    """What a worker computes.

    Attributes:
        name: unique among transfers and ops.
        dependencies: names of the ops and transfers that it waits for. Control edges count: it
            waits for them as well.
    """

    name: str
    dependencies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransferGraph:
    """The transfers and ops of a worker's step.

    Attributes:
        recvs: in the order of definition, which breaks ties.
        ops: in the order of definition, which need not be that of their dependencies.

    Raises:
        GraphError: A name is given twice, an op waits for something that does not exist, or for
            itself.
    """

    recvs: tuple[Recv, ...]
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        counts = Counter([*(recv.name for recv in self.recvs), *(op.name for op in self.ops)])
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            raise GraphError(f"names of transfers and ops are given more than once: {twice}")
        for op in self.ops:
            unknown = [name for name in op.dependencies if name not in counts]
            if unknown:
                raise GraphError(f"op '{op.name}' waits for {unknown}, which do not exist")
        try:
            self.ops_in_topological_order()
        except CycleError as error:
            raise GraphError(f"ops wait for each other: {' -> '.join(error.args[1])}") from None

    def ops_in_topological_order(self) -> list[Op]:
        """Each op after those that it waits for."""
        ops = {op.name: op for op in self.ops}
        sorter = TopologicalSorter(
            {op.name: [name for name in op.dependencies if name in ops] for op in self.ops}
        )
        return [ops[name] for name in sorter.static_order()]

    def numbers_of(self, order: Sequence[str]) -> list[int]:
        """The places in `recvs` of an order of all transfers.

        Raises:
            PlanError: It names another set of transfers, or one of them twice.
        """
        numbers = {recv.name: number for number, recv in enumerate(self.recvs)}
        if sorted(order) != sorted(numbers):
            missing, foreign = set(numbers) - set(order), set(order) - set(numbers)
            raise PlanError(
                f"an order names each of {len(numbers)} transfers once; of {len(order)} given, "
                f"{sorted(foreign)} are unknown; missing are {sorted(missing)}"
            )
        return [numbers[name] for name in order]
