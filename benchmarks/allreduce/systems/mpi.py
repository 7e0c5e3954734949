"""``Allreduce`` of mpi4py on MPICH, in place in a NumPy array, and a multiplication in place.

`benchmarks.peers.mpi` says why MPICH needs the variables it gets.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.allreduce.member import PERIOD, Cell, Place, mean_factor, serve

if TYPE_CHECKING:
    from benchmarks.allreduce.group import Group


@dataclass(frozen=True)
class System:
    """MPI."""

    name: str = "mpi"
    sleeps: bool = True

    def available(self) -> str | None:
        """Whether the packages mpi4py and mpich are there."""
        from benchmarks.peers.mpi import PEER

        return PEER.available()

    def versions(self) -> dict[str, str]:
        """Those of mpi4py and MPICH."""
        from benchmarks.peers.base import versions_of

        return versions_of("mpi4py", "mpich")

    def start(self, group: Group) -> int:
        """MPICH's launcher on the machine itself, which starts a rank on each host."""
        from pathlib import Path

        from benchmarks.peers.mpi import TRANSPORT

        command = [str(Path(sys.executable).parent / "mpiexec.hydra")]
        for rank, host in enumerate(group.bed.hosts):
            command += [":"] if rank else []
            command += ["-n", "1", "ip", "netns", "exec", host.namespace, "unshare", "--uts"]
            command += ["sh", "-c", 'hostname "$0" && exec "$@"', host.name]
            command += [] if host.core is None else ["taskset", "-c", str(host.core)]
            command += group.command(__name__, rank)
        group.popen(None, command, TRANSPORT)
        return len(group.bed.hosts)


def main() -> None:
    """One rank."""
    import numpy as np
    from mpi4py import MPI

    place, world = Place.read(), MPI.COMM_WORLD
    if (world.Get_rank(), world.Get_size()) != (place.rank, place.workers):
        sys.exit(f"MPI sees rank {world.Get_rank()} of {world.Get_size()}")
    share = np.float32(1 / place.workers)

    def make(elements: int) -> Mapping[str, Cell]:
        ramp = (1 + np.arange(elements, dtype=np.int32) % PERIOD).astype(np.float32)
        tensor = np.empty_like(ramp)

        def fill() -> None:
            np.multiply(ramp, place.rank + 1, out=tensor)

        def step() -> None:
            world.Allreduce(MPI.IN_PLACE, tensor)
            np.multiply(tensor, share, out=tensor)

        def error() -> float:
            return float(np.abs(tensor - mean_factor(place.workers) * ramp).max())

        return {"": Cell(fill, step, error)}

    serve(place, make)


if __name__ == "__main__":
    main()
