"""Which networks, hosts and orders are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from caramel.models.parameter_server import Mode
from caramel.planning.serving.planner import Ordering

Part = Literal["orderings", "counts", "training", "efficiency", "real", "systems"]

UNORDERED = "unordered"
WARM_UP = 2  # steps of each plan; the first prepares it
ALL_REDUCE, STRATEGY = "all-reduce", "ParameterServerStrategy"


@dataclass(frozen=True, slots=True)
class Order:
    """How parameters are ordered.

    Attributes:
        ordering: as `PSModel` takes it; None for no order.
        in_flight_bytes: likewise.
        ahead: whether variables may be sent for the next step as soon as they are updated.
        shuffled: the share of the transfers that then change their places at random.
        seed: of what is random.
        gradients: whether gradients may be ordered, too, where that is predicted to gain enough.
    """

    ordering: Ordering | None
    in_flight_bytes: int | None = None
    ahead: bool = False
    shuffled: float = 0.0
    seed: int = 0
    gradients: bool = False

    @property
    def name(self) -> str:
        """What it is called in tables and sessions."""
        if self.ordering is None:
            return UNORDERED
        words = [self.ordering.replace("_", " ")]
        if self.ahead:
            words.append("ahead")
        if self.gradients:
            words.append("gradients")
        if self.shuffled:
            words.append(f"shuffled {self.shuffled:g}")
        if self.seed:
            words.append(f"no. {self.seed}")
        if self.in_flight_bytes is not None:
            words.append(f"{self.in_flight_bytes / 1e6:g} MB")
        return ", ".join(words)


@dataclass(frozen=True)
class Cell:
    """A network on hosts, and the orders of its parameters, which take turns in one session.

    Attributes:
        part: which question it answers.
        network: its name.
        orders: none at all among them, with which the others are compared.
        rounds: in each, every order does one step.
        traced: further steps of each order, traced.
        counted: so many instead, of no order and of one transfer at a time, to count orders.
        mode: as `PSModel` takes it.
        workers, servers: each on a host of its own.
        batch: examples per worker and step.
        rho: seconds for which the link of one worker with one server would be busy in a step, over
            the seconds of computation to which kernels are scaled; the same for any number of
            hosts. None for real computation.
        image: height and width of inputs; None for the network's own.
        systems: what else is measured, in sessions of its own.
    """

    part: Part
    network: str
    orders: tuple[Order, ...]
    rounds: int
    traced: int = 3
    counted: int = 0
    mode: Mode = "inference"
    workers: int = 1
    servers: int = 1
    batch: int = 32
    rho: float | None = 1.0
    image: int | None = None
    systems: tuple[str, ...] = ()

    @property
    def what(self) -> dict[str, Any]:
        """Which cell it is, in a result file."""
        return {
            "part": self.part,
            "network": self.network,
            "mode": self.mode,
            "workers": self.workers,
            "servers": self.servers,
            "computation": "real" if self.rho is None else f"emulated, rho {self.rho:g}",
        }


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        cells: in this order.
        rate: of each host's link, as tc takes it.
        threads: ops that TensorFlow may run at once on each host; with a single one, transfers
            without an order come in nearly the same one each time.
    """

    cells: tuple[Cell, ...]
    rate: str = "1gbit"
    threads: int = 8


NONE, SEARCH, TAC = Order(None), Order("search"), Order("tac")
TIC, EXECUTION, RANDOM = Order("tic"), Order("execution_ordering"), Order("random")
ONE_AT_A_TIME = Order("search", 0)  # has one order
ALL = (NONE, SEARCH, TAC, TIC, EXECUTION, RANDOM, ONE_AT_A_TIME)
FEW = (NONE, SEARCH, RANDOM)
AHEAD = Order("search", ahead=True)
GRADIENTS, BOTH = Order("search", gradients=True), Order("search", ahead=True, gradients=True)
TRAINED = (NONE, SEARCH, GRADIENTS, AHEAD, BOTH, RANDOM)

IN_FLIGHT = tuple(Order("search", size) for size in (500_000, 10**6, 2_500_000, 5 * 10**6, 10**7))


def mixed(count: int) -> tuple[Order, ...]:
    """Orders from TAC's to random ones, and none."""
    shares = (0.1, 0.2, 0.4, 1.0)
    drawn = (Order("tac", shuffled=shares[n % len(shares)], seed=1 + n) for n in range(count))
    return (NONE, TAC, SEARCH, TIC, *drawn)


def _traced(workers: int) -> int:
    """Steps of each order to trace: how long workers wait for others differs from step to step."""
    return 2 if workers == 1 else 8


def by_hosts(
    network: str, workers: int, servers: int, rounds: int, orders: tuple[Order, ...] = FEW
) -> Cell:
    """Agents that infer, on so many hosts."""
    traced = _traced(workers)
    return Cell("orderings", network, orders, rounds, traced, workers=workers, servers=servers)


def training(network: str, workers: int, rounds: int, orders: tuple[Order, ...] = TRAINED) -> Cell:
    """Training with one server."""
    traced = _traced(workers)
    return Cell("training", network, orders, rounds, traced, mode="training", workers=workers)


def beside(network: str, servers: int, rounds: int = 4) -> Cell:
    """Two workers that train beside Caramel's all-reduce."""
    return Cell(
        *("systems", network, (NONE, SEARCH, BOTH), rounds, 0, 0, "training", 2, servers),
        systems=(ALL_REDUCE,) if servers == 2 else (),
    )


FULL = Settings(
    cells=(
        Cell("orderings", "resnet_v2_50", (*ALL, *IN_FLIGHT), 7, 3, counted=25),
        by_hosts("resnet_v2_50", 2, 1, 6),
        training("resnet_v2_50", 1, 6, (*TRAINED, TAC, TIC)),
        training("resnet_v2_50", 2, 5),
        by_hosts("resnet_v2_50", 2, 2, 5),
        by_hosts("resnet_v2_50", 4, 1, 3),
        by_hosts("resnet_v2_50", 4, 2, 4),
        Cell("real", "resnet_v2_50", ALL, 8, 3, batch=8, rho=None, image=128),
        Cell(
            *("systems", "resnet_v2_50", (NONE, SEARCH, AHEAD), 6, 0, 0, "training", 2, 1, 4),
            rho=None,
            image=128,
            systems=(STRATEGY,),
        ),
        Cell("orderings", "inception_v3", ALL, 7, 3, counted=25),
        by_hosts("inception_v3", 2, 1, 6),
        training("inception_v3", 1, 6, (*TRAINED, TAC, TIC)),
        training("inception_v3", 2, 5),
        *(beside(name, servers) for name in ("inception_v3", "resnet_v1_50") for servers in (2, 1)),
        *(
            beside(name, servers, 2)
            for name in ("alexnet_v2", "resnet_v2_152", "vgg_16")
            for servers in (2, 1)
        ),
        Cell("orderings", "vgg_16", (NONE, SEARCH, TIC, ONE_AT_A_TIME), 3, 1, counted=4),
        Cell("counts", "inception_v1", (NONE, ONE_AT_A_TIME), 1, 0, counted=1000),
        Cell("efficiency", "inception_v2", mixed(12), 4, 2),
        *(by_hosts(name, 1, 1, 6) for name in ("inception_v1", "resnet_v1_50", "alexnet_v2")),
        *(by_hosts(name, 1, 1, 4) for name in ("seq_32", "par_32", "resnet_v1_101")),
        *(by_hosts(name, 1, 1, 3) for name in ("resnet_v2_101", "resnet_v2_152", "vgg_19")),
        *(by_hosts(name, 4, 2, 4) for name in ("inception_v1", "alexnet_v2", "inception_v3")),
        *(by_hosts(name, 4, 2, 4) for name in ("seq_32", "par_32", "resnet_v2_101")),
    ),
)
QUICK = Settings(
    cells=(
        Cell("orderings", "seq_32", ALL, 3, 2, counted=5),
        training("seq_32", 2, 2, (NONE, SEARCH, BOTH)),
        Cell("efficiency", "seq_32", mixed(4), 2, 2),
    ),
)
