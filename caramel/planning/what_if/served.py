"""How would a job do with parameter servers? Its step with some servers, by simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from caramel.core.decision import Pull
from caramel.core.errors import PlanError
from caramel.core.names import part_of
from caramel.core.workload import JobOutline, Workload
from caramel.planning.serving.ahead import shortest
from caramel.planning.serving.ownership import balanced
from caramel.planning.serving.planner import in_flight_bytes_at, ordered_pulls
from caramel.planning.serving.rows import larger_than_a_share, rows_of_parts
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
    workload, sizes, server_of = spread(outline, len(servers))
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


def spread(outline: JobOutline, servers: int) -> tuple[Workload, dict[str, int], dict[str, int]]:
    """What parameters are on which servers, each where `PSModel` has it if it can be apart.

    Returns:
        The workload in which what is larger than a server's share is in parts; the bytes that
        travel of each parameter or part; and its server.

    Raises:
        PlanError: there are more servers than parameters.
    """
    if servers > len(outline.gradients):
        raise PlanError(
            f"{servers} parameter servers are too many: the job has {len(outline.gradients)} "
            "parameters"
        )
    specs = {each.parameter: each.spec for each in outline.gradients}
    large = larger_than_a_share(specs, servers)
    divisible = [e.parameter for e in outline.gradients if e.rows and e.parameter in set(large)]
    split = rows_of_parts(specs, servers, divisible)
    shares, loads, travels = dict[str, dict[str, float]](), dict[str, int](), dict[str, int]()
    for each in outline.gradients:
        name, size = each.parameter, each.spec.bytes or 0
        parts = {name: 1.0}
        if name in split:
            parts = {part_of(name, n): rows / each.rows for n, rows in enumerate(split[name])}
            shares[name] = parts
        for part, share in parts.items():
            loads[part] = round(share * size)
            travels[part] = 0 if each.is_sparse else loads[part]
    return outline.free.in_parts(shares), travels, balanced(loads, servers)


def _in_order_of_need(workload: Workload, sizes: dict[str, int]) -> list[str]:
    """Parameters in the order in which a worker computes what needs them; no other is faster where
    it computes in one order."""
    needed_at, last = workload.needed_at, len(workload.chain)
    return sorted(sizes, key=lambda name: (needed_at.get(name, last), name))
