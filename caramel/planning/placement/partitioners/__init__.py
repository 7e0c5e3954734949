"""From a problem to the device of each vertex: one file for each way.

================= ==================================================================================
`hashing`         hash: random devices, the fast ones more often (section 3.1)
`batch_split`     the highest ranks to the fastest devices, by their share (section 3.2.1)
`critical_path`   the longest path to the fastest device (section 3.2.2)
`mite`            by memory, importance, traffic and execution time (section 3.3.1)
`dfs`             depth first, by traffic and execution time (section 3.3.2)
`heft`            by upward rank to where it ends first (section 5.1; Topcuoglu and others 2002)
`cpop`            the critical path on one device, the rest where it ends first (the same authors)
`peft`            where it ends first if what follows counts (Arabnejad and Barbosa 2014)
`scores`          what `mite` and `dfs` count of each device for a group
================= ==================================================================================

Sections are those of the paper of `placement`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from caramel.core.errors import PlanError
from caramel.planning.placement.partitioners.batch_split import batch_split
from caramel.planning.placement.partitioners.cpop import cpop
from caramel.planning.placement.partitioners.critical_path import critical_path
from caramel.planning.placement.partitioners.dfs import dfs
from caramel.planning.placement.partitioners.hashing import hashed
from caramel.planning.placement.partitioners.heft import heft
from caramel.planning.placement.partitioners.mite import mite
from caramel.planning.placement.partitioners.peft import peft
from caramel.planning.placement.problem import Problem


class Partitioner(Protocol):
    """Places a problem."""

    def __call__(self, problem: Problem, *, share: float = 1.0, seed: int = 0) -> tuple[int, ...]:
        """The device of each vertex. The same arguments give the same placement.

        Args:
            problem: what is to be placed.
            share: of the bytes that a group puts out, how many count as memory that it needs.
            seed: of random choices, for those that make any.
        """


PARTITIONERS: Mapping[str, Partitioner] = {
    "hash": hashed,
    "batch_split": batch_split,
    "critical_path": critical_path,
    "mite": mite,
    "dfs": dfs,
    "heft": heft,
    "peft": peft,
    "cpop": cpop,
}


def partitioner_of(name: str) -> Partitioner:
    """The partitioner of a name.

    Raises:
        PlanError: there is none.
    """
    if name not in PARTITIONERS:
        raise PlanError(f"there is no partitioner '{name}'; there are {', '.join(PARTITIONERS)}")
    return PARTITIONERS[name]
