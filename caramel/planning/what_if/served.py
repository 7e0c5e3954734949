"""How would a job do with parameter servers? Its step with some servers, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from caramel.core.decision import Pull
from caramel.core.errors import PlanError
from caramel.core.graph import dtype_bytes
from caramel.core.workload import JobOutline, Workload
from caramel.planning.serving.ahead import shortest
from caramel.planning.serving.planner import in_flight_bytes_at, ordered_pulls
from caramel.planning.serving.unordered import random_orders
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.serving import ServedJob, served_step_s

WORTH_SERVERS = 0.95
"""`PSModel` is worth its servers if its step is at most this part of `ARModel`'s."""

_WORTH_ONE_MORE = 0.99
"""A further server has to make the step at most this part of what it is."""


@dataclass(frozen=True, slots=True)
class Served:
    """A job on some workers and servers.

    Attributes:
        servers: how many.
        unordered_s: the step if parameters come in any order.
        ordered_s: if they come in the order in which they are needed.
        ahead_s: if some of them are also sent ahead, as many as make the step the shortest.
        ahead_share: how many that are, of all bytes.
    """

    servers: int
    unordered_s: float
    ordered_s: float
    ahead_s: float
    ahead_share: float

    @property
    def step_s(self) -> float:
        """The fastest step."""
        return min(self.unordered_s, self.ordered_s, self.ahead_s)


def fastest(served: Sequence[Served]) -> Served:
    """The fastest, but with no more servers than it takes to be about as fast."""
    found = None
    for each in sorted(served, key=lambda each: each.servers):
        if found is None or each.step_s < _WORTH_ONE_MORE * found.step_s:
            found = each
    assert found is not None, "there is one at least"
    return found


def serve(outline: JobOutline, hardware: Hardware, servers: Sequence[Host]) -> Served:
    """Predict a job's step with parameter servers.

    Args:
        outline: the job.
        hardware: the workers and their links.
        servers: what each server can do.

    Raises:
        PlanError: there are more servers than parameters.
    """
    workload = outline.free
    sizes = {
        each.parameter: 0 if each.is_sparse else each.elements * (dtype_bytes(each.dtype) or 0)
        for each in outline.gradients
    }
    server_of = spread(sizes, len(servers))
    job = ServedJob(workload, sizes, server_of, hardware, tuple(servers))
    order = _in_order_of_need(workload, sizes)
    limit = in_flight_bytes_at(hardware.bytes_per_s)

    def step_s(ahead: frozenset[str]) -> float:
        return served_step_s(job, ordered_pulls(order, server_of, sizes, limit, ahead=ahead))

    ready = workload.ready_s
    by_readiness = sorted(order, key=lambda name: ready.get(name, 0.0))
    ahead = shortest({name: sizes[name] for name in by_readiness}, step_s)
    total = sum(sizes.values())
    return Served(
        servers=len(servers),
        unordered_s=fmean(
            served_step_s(job, [Pull(name) for name in shuffled])
            for shuffled in random_orders(order)
        ),
        ordered_s=step_s(frozenset()),
        ahead_s=ahead.step_s,
        ahead_share=sum(sizes[name] for name in ahead.variables) / total if total else 0.0,
    )


def spread(sizes: dict[str, int], servers: int) -> dict[str, int]:
    """A server for each parameter, as `serving.ownership` does it where each can be apart.

    Raises:
        PlanError: there are more servers than parameters.
    """
    if servers > len(sizes):
        raise PlanError(
            f"{servers} parameter servers are too many: the job has {len(sizes)} parameters"
        )
    loads, found = [0] * servers, dict[str, int]()
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        found[name] = loads.index(min(loads))
        loads[found[name]] += sizes[name]
    return found


def _in_order_of_need(workload: Workload, sizes: dict[str, int]) -> list[str]:
    """Parameters in the order in which a worker computes what needs them; no other is faster where
    it computes in one order."""
    needed_at, last = workload.needed_at, len(workload.chain)
    return sorted(sizes, key=lambda name: (needed_at.get(name, last), name))
