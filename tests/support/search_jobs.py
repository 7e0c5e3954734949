"""Jobs of few layers that plans are searched for."""

from __future__ import annotations

from caramel.analyzers.workload import Piece, Update, Workload
from caramel.core.decision import Decided, Group
from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.planning.candidate import Outlook
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.network_model import assumed_network

MB = 1_000_000


def plain_of(sizes, workers=2):
    """A plain plan of parameters p0, p1, ... with gradients of so many bytes."""
    names = [f"p{number}" for number in range(len(sizes))]
    specs = [TensorSpec("float32", (size // 4,)) for size in sizes]
    job = PlannedJob(
        devices=tuple(f"/job:worker/task:{w}/device:CPU:0" for w in range(workers)),
        reduction="mean",
        variables=tuple(
            Variable(n, n, f"{n}/init", f"{n}/read", s, True, True, n)
            for n, s in zip(names, specs, strict=True)
        ),
        gradients=tuple(
            AggregatedGradient(n, TensorRef(f"{n}/grad"), s, (f"{n}/update",))
            for n, s in zip(names, specs, strict=True)
        ),
    )
    groups = tuple(Group(f"group_{number}", (n,), "shuffle") for number, n in enumerate(names))
    return Plan(job, Decided(groups))


def layered(seconds, updates=()):
    """Forward through layers p0, p1, ..., and back; updates when their gradients are there."""
    forward = [Piece(f"f{n}", s, needs=frozenset([f"p{n}"])) for n, s in enumerate(seconds)]
    backward = [Piece(f"b{n}", 2 * s, yields=(f"p{n}",)) for n, s in enumerate(seconds)]
    alone = [
        Update(f"u{n}", 0.0, frozenset([f"p{n}"]), frozenset([f"p{n}"]), frozenset([f"p{n}"]))
        for n in range(len(seconds))
    ]
    return Workload((*forward, *reversed(backward)), tuple(updates or alone))


def outlook_of(sizes, seconds, *, rate=100 * MB, workers=2, updates=()):
    plain, network = plain_of(sizes, workers), assumed_network(workers, rate, 1e-4)
    workload = layered(seconds, updates)
    hardware = Hardware((Host(rate, rate),) * workers, {"shuffle": 1e-4, "ring": 1e-4})
    return Outlook(plain, network, hardware, workload, workload)
