"""Which networks, hosts and systems are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import peers
from benchmarks.peers import Case
from benchmarks.peers.plain import OPTIMIZATIONS
from benchmarks.wire import wire_limit_s
from caramel.core.patterns import PATTERNS


@dataclass(frozen=True)
class Cell:
    """One network on one bed.

    Attributes:
        network: its name.
        batch: examples per worker and step.
        image: height and width of its inputs; None for the network's own.
        accelerator: whose kernels are emulated; None for real computation.
        workers: on as many hosts.
        mbit_per_s: rate of each host's link.
        slowdown: emulated kernels take this many times longer, for links slower than those that
            they stand for.
        inter_op_threads: ops that each worker may run at once.
        rho: if given, kernels are scaled so that the wire limit is so many times the computation.
        network_repeats: how often each aggregation is measured before the network is planned for.
    """

    network: str
    batch: int
    image: int | None = None
    accelerator: str | None = None
    workers: int = 2
    mbit_per_s: float = 1000.0
    slowdown: float = 1.0
    inter_op_threads: int = Case.inter_op_threads
    rho: float | None = None
    network_repeats: int = Case.network_repeats

    def __str__(self) -> str:
        computed = f"emulated {self.accelerator}" if self.accelerator else "real computation"
        slowed = f" x {self.slowdown:g}" if self.slowdown != 1 else ""
        slowed += f", rho {self.rho:g}" if self.rho is not None else ""
        usual = self.inter_op_threads == Case.inter_op_threads
        threads = "" if usual else f", inter-op threads: {self.inter_op_threads}"
        return (
            f"{self.network}, batch {self.batch}, {computed}{slowed}, {self.workers} workers, "
            f"{self.mbit_per_s:g} Mbit/s{threads}"
        )

    def case(self, steps: int) -> Case:
        """What the peers are told."""
        return Case(
            self.network,
            batch=self.batch,
            image=self.image,
            steps=steps,
            learning_rate=1e-3,
            accelerator=self.accelerator,
            slowdown=self.slowdown,
            computation_s_per_byte=self.wire_limit_s(1.0) / self.rho if self.rho else None,
            inter_op_threads=self.inter_op_threads,
            updates="none" if self.accelerator else "real",
            network_repeats=self.network_repeats,
        )

    def wire_limit_s(self, parameter_bytes: float) -> float:
        """The least time in which a worker can send what an all-reduce needs of it."""
        return wire_limit_s(parameter_bytes, self.workers, self.mbit_per_s * 1e6)


@dataclass(frozen=True)
class System:
    """A peer with one of its settings."""

    peer: str
    setting: tuple[tuple[str, Any], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The setting as peers take it."""
        return dict(self.setting)

    def __str__(self) -> str:
        values = ", ".join(f"{key} {value}" for key, value in self.setting)
        return f"{self.peer} ({values})" if values else self.peer


@dataclass(frozen=True)
class Suite:
    """What one run of the benchmark measures.

    Attributes:
        cells: in this order.
        systems: of a cell, the first two being the worker alone and plain Caramel.
        rounds: in each, every system does one block of steps; fewer where that takes too long.
        steps: of a block, timed; one more before them is not.
    """

    cells: tuple[Cell, ...]
    systems: Callable[[Cell], Sequence[System]]
    rounds: int
    steps: int


ALONE, PLAIN = System("alone"), System("plain", (("pattern", "shuffle"),))
SEARCHED = System("planned", (("planner", "search"),))
DEFAULT = System("planned", (("planner", "tried"),))
VARIED = 20  # plans, of which the first is the plain one
LIVE = System("planned", (("planner", "live"),))


def all_systems(cell: Cell) -> list[System]:
    """Every peer with every setting."""
    systems = [
        System(name, tuple(setting.items()))
        for name in peers.NAMES
        for setting in peers.get(name).settings()
    ]
    return [ALONE, PLAIN, *(each for each in systems if each not in (ALONE, PLAIN))]


def headline_systems(cell: Cell) -> list[System]:
    """Caramel as it is by default, and every peer that has overlap, with its best settings."""
    return [
        ALONE,
        PLAIN,
        DEFAULT,
        System("horovod", (("backend", "gloo"),)),
        System("horovod", (("backend", "gloo"), ("fusion_mib", 4.0))),
        System("mirrored", (("bytes_per_pack", 2**20),)),
        System("torch_ddp", (("bucket_cap_mb", 1), ("static_graph", False))),
        System("torch_ddp", (("bucket_cap_mb", 5), ("static_graph", False))),
        System("parameter_servers", (("servers", "all"),)),
    ]


def searched_systems(cell: Cell) -> list[System]:
    """One worker alone, plain Caramel, and the plan that is predicted to be the fastest."""
    return [ALONE, PLAIN, SEARCHED]


def live_systems(cell: Cell) -> list[System]:
    """Plain Caramel, with measured facts, and one that measures itself while it trains."""
    return [ALONE, PLAIN, SEARCHED, LIVE]


def factor_systems(cell: Cell) -> list[System]:
    """The searched plan, with factors and without."""
    return [ALONE, PLAIN, System("planned", (*SEARCHED.setting, ("factors", False))), SEARCHED]


def tensor_systems(cell: Cell) -> list[System]:
    """Each pattern, and every peer with the setting that proved best for it."""
    patterns = (p for p in PATTERNS if p != PLAIN.options["pattern"])
    return [
        ALONE,
        PLAIN,
        *(System("plain", (("pattern", pattern),)) for pattern in patterns),
        System("horovod", (("backend", "gloo"),)),
        System("torch_ddp", (("bucket_cap_mb", 5), ("static_graph", False))),
        System("mpi"),
        System("mirrored", (("bytes_per_pack", 4 * 2**20),)),
        System("parameter_servers", (("servers", "all"),)),
    ]


def ablation_systems(cell: Cell) -> list[System]:
    """Each optimization added in turn, and each alone, as in Figures 11 and 12 of the paper.

    Then everything with the best pattern, and the plan that is predicted to be the fastest.
    """
    words = list(OPTIMIZATIONS)
    in_turn = ["+".join(words[: count + 1]) for count in range(len(words))]
    uses = [*in_turn, *(word for word in words if word not in in_turn)]
    return [
        ALONE,
        PLAIN,
        *(System("planned", (("uses", each), ("pattern", "shuffle"))) for each in uses),
        System("planned", (("uses", in_turn[-1]), ("pattern", "auto"))),
        SEARCHED,
    ]


def varied_systems(cell: Cell) -> list[System]:
    """Plans that differ in everything, and the one that is predicted to be the fastest."""
    varied = (System("planned", (("varied", number),)) for number in range(VARIED))
    return [ALONE, PLAIN, *varied, SEARCHED]


def quick_planned_systems(cell: Cell) -> list[System]:
    """Both ways to a plan: by the paper's rules, and by search, whose best few are tried."""
    return [ALONE, PLAIN, ablation_systems(cell)[-2], DEFAULT]


def quick_systems(cell: Cell) -> list[System]:
    """One peer of those that need no environment of their own."""
    return [ALONE, PLAIN, System("mirrored", (("bytes_per_pack", 4 * 2**20),))]


REAL = (
    Cell("resnet_v1_50", 4, 128),
    Cell("inception_v1", 8, 128),
    Cell("inception_v3", 4, 149),
    Cell("alexnet_v2", 8),
    Cell("vgg_16", 2, 128),
)
_EMULATED = tuple(
    Cell(name, batch, accelerator="K80")
    for name, batch in (
        ("inception_v1", 32),
        ("inception_v2", 32),
        ("inception_v3", 32),
        ("resnet_v1_50", 32),
        ("alexnet_v2", 64),
    )
)


# Of each image size and batch only the proportions of the kernels matter here.
_GRID = (
    ("inception_v1", 32),
    ("inception_v2", 32),
    ("inception_v3", 32),
    ("resnet_v1_50", 32),
    ("resnet_v1_101", 32),
    ("resnet_v2_50", 32),
    ("resnet_v2_152", 32),
    ("alexnet_v2", 64),
    ("vgg_16", 32),
    ("vgg_19", 32),
)


def tensors(workers: int, mbit_per_s: float) -> Suite:
    """One aggregation, by its size, beside next to no computation."""
    sizes = ("64kb", "1mb", "4mb", "16mb", "64mb")
    cells = tuple(
        Cell(f"tensor_{size}", 1, accelerator="K80", workers=workers, mbit_per_s=mbit_per_s, rho=20)
        for size in sizes
    )
    return Suite(cells, tensor_systems, rounds=4, steps=5)


def grid(workers: int, mbit_per_s: float) -> Suite:
    """Ten networks, each with three ratios of communication to computation."""
    cells = tuple(
        Cell(name, batch, accelerator="K80", workers=workers, mbit_per_s=mbit_per_s, rho=rho)
        for name, batch in _GRID
        for rho in (0.5, 1.0, 2.0)
    )
    return Suite(cells, searched_systems, rounds=3, steps=3)


ABLATION = {
    "real-2": Suite(REAL, ablation_systems, rounds=5, steps=3),
    "k80-2": Suite(_EMULATED, ablation_systems, rounds=3, steps=2),
}
RANKING = {
    "k80-2": Suite(
        tuple(
            Cell(name, batch, accelerator="K80", rho=1.0)
            for name, batch in (("inception_v1", 32), ("inception_v3", 32), ("resnet_v1_50", 32))
        ),
        varied_systems,
        rounds=2,
        steps=3,
    )
}
QUICK_ABLATION = Suite(
    (Cell("tiny", 4, accelerator="K80", network_repeats=1),),
    quick_planned_systems,
    rounds=2,
    steps=2,
)
QUICK = Suite(
    (Cell("tiny", 4, mbit_per_s=200),),
    quick_systems,
    rounds=2,
    steps=2,
)
FULL = {
    "peers": Suite(REAL[:1], all_systems, rounds=3, steps=3),
    "headline": Suite((*REAL, Cell("resnet_v2_152", 2, 128)), headline_systems, rounds=4, steps=3),
    # Where rho is not far from 1 there is most to win.
    "headline-8": Suite((replace(REAL[0], batch=8),), headline_systems, rounds=4, steps=3),
    "headline-10": Suite((replace(REAL[0], batch=10),), headline_systems, rounds=4, steps=3),
    # Real: a trace of an emulated kernel has the time for which it waits for its device.
    "live-2": Suite(REAL[:1], live_systems, rounds=4, steps=3),
    "factors-2": Suite((*REAL, replace(REAL[0], batch=8)), factor_systems, rounds=4, steps=3),
    "grid-2": grid(2, 1000),
    "grid-4": grid(4, 500),
    "grid-8": grid(8, 200),
    # Two cores can fill the links of two hosts at 1 Gbit/s, not those of more.
    "tensor-2": tensors(2, 1000),
    "tensor-4": tensors(4, 200),
    "tensor-8": tensors(8, 200),
}
HEADLINES = tuple(name for name in FULL if name.startswith("headline"))
GRIDS = tuple(name for name in FULL if name.startswith("grid"))
