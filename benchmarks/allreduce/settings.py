"""What is measured, and the least time in which it could be done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks import wire
from caramel.patterns import PATTERNS

KB, MB = 1024, 2**20


@dataclass(frozen=True)
class Network:
    """How many workers on which links; `rate` as tc takes it, and the same in bits per second."""

    workers: int
    rate: str
    rate_bits_per_s: float
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        networks: one after another.
        depths: of Caramel's patterns.
        patterns: Caramel's.
        peers: names of systems; of those with variants, ``name:variant``.
        rounds: how often each system gets its turn, at most.
    """

    networks: tuple[Network, ...]
    depths: tuple[int, ...]
    patterns: tuple[str, ...]
    peers: tuple[str, ...]
    rounds: int

    def only(self, workers: Sequence[int], sizes_bytes: Sequence[int]) -> Settings:
        """The part with these numbers of workers and sizes; all if none are given."""
        networks = tuple(
            replace(network, sizes_bytes=sizes)
            for network in self.networks
            if not workers or network.workers in workers
            if (sizes := tuple(s for s in network.sizes_bytes if s in (sizes_bytes or (s,))))
        )
        return replace(self, networks=networks)


_SIZES = (64, 4 * KB, 64 * KB, MB, 4 * MB, 16 * MB)

# Two cores can fill the links of 2 hosts at 1 Gbit/s, not those of 8.
FULL = Settings(
    networks=(
        Network(2, "1gbit", 1e9, (*_SIZES, 64 * MB, 100_000_000)),
        Network(4, "200mbit", 2e8, (*_SIZES, 64 * MB)),
        Network(8, "200mbit", 2e8, _SIZES[:-1]),  # 16 MB would take another three minutes
    ),
    depths=(1, 2, 4, 8),
    patterns=PATTERNS,
    peers=(
        "horovod_gloo:1.0",
        "horovod_gloo:0.1",
        "torch_gloo",
        "mpi",
        "mirrored",
        "parameter_server",
    ),
    rounds=10,
)
QUICK = Settings(
    networks=(Network(2, "200mbit", 2e8, (64, MB)),),
    depths=(1, 4),
    patterns=PATTERNS[:2],
    peers=("mpi", "mirrored", "parameter_server"),
    rounds=2,
)


@dataclass(frozen=True)
class Turns:
    """How a size is measured.

    In each of `rounds`, after `warm_up` ones that do not count, each system has its turn: it does
    `untimed` aggregations and then `timed` ones.
    """

    rounds: int
    warm_up: int
    untimed: int
    timed: int


def turns(limit_s: float, most_rounds: int) -> Turns:
    """Many samples of what is fast, few of what takes a second."""
    if limit_s < 0.01:  # the first ones after a pause are slower
        return Turns(most_rounds, 1, untimed=5, timed=5)
    if limit_s < 0.1:
        return Turns(min(most_rounds, 8), 1, untimed=1, timed=2)
    # Nothing untimed: that the ranks do not start at the same moment is a small part of this.
    if limit_s < 0.7:
        return Turns(min(most_rounds, 5), 1, untimed=0, timed=1)
    return Turns(min(most_rounds, 4), 0, untimed=0, timed=1)


def wire_limit_s(size_bytes: int, network: Network) -> float:
    """The least time in which a worker can send what an aggregation needs of it."""
    return wire.wire_limit_s(size_bytes, network.workers, network.rate_bits_per_s)
