"""Measures orders on running workers and servers: ``python -m ... CASE RESULT``.

All orders of a cell are plans of one session. In each round every plan does one step; each round
begins with another plan. Then each plan does some traced steps. Emulated kernels wait; the bytes
that travel are real.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import caramel
from benchmarks import networks
from benchmarks.emulate import emulate, flops_times, kernel_times
from benchmarks.ps.cells import NONE, ONE_AT_A_TIME, WARM_UP, Order
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.analyzers.ordered_state import ordered_analysis
from caramel.core.names import pull_of
from caramel.core.plan import Plan
from caramel.core.time_facts import TimingTable, TransferTimes
from caramel.core.timeline import Timeline
from caramel.planning.compatibility import decides_alike
from caramel.planning.ordering.makespan import Makespan, resource_loads_s
from caramel.planning.ordering.metrics import ordering_efficiency, straggler_share
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import TransferGraph
from caramel.planning.ordering.transfer_spans import TransferSpan, transfer_times_s
from caramel.planning.serving.planner import ServingPlanner, ordered, usual_in_flight_bytes
from caramel.planning.serving.received import received, time_oracle, transfer_of
from caramel.profiling.ops import profile_steps
from caramel.simulation.network_model import assumed_network

ACCELERATOR = "K80"
LATENCY_S = 0.2e-3
TRACED_AT_ONCE = 5


@dataclass
class Job:
    """The job of a case, and what is known of it.

    Attributes:
        case: as the benchmark describes it.
        context: the single-device job.
        feed: what a step is fed.
        timing: seconds of each op.
        model: with a plan that orders nothing.
    """

    case: Mapping[str, Any]
    context: caramel.Context
    feed: Mapping[str, Any] | None
    timing: TimingTable
    model: Any

    @classmethod
    def of(cls, case: Mapping[str, Any]) -> Job:
        """Build it."""
        context, feed = job_of(case)
        timing = TimingTable(kernel_times(context)) if feed is None else timed(context, case)
        hosts = {"worker": case["workers"], "ps": case["servers"]}
        model = caramel.PSModel(context, hosts, ordering=None, mode=case["mode"])
        return cls(case, context, feed, timing, model)

    @property
    def plain(self) -> Plan:
        """The plan that orders nothing."""
        plan: Plan = self.model.plan
        return plan

    @cached_property
    def analysis(self) -> Analysis:
        """What is known of the job, its times among it."""
        workers, servers = len(self.case["workers"]), len(self.case["servers"])
        # A channel has its share of the link of its worker, and of that of its server.
        rate = self.case["bytes_per_s"] / max(workers, servers)
        sizes = {
            name: self.plain.job.variable_of[name].spec.bytes or 0
            for name in self.plain.decision.pull_of
        }
        facts = (
            self.timing,
            TransferTimes({name: LATENCY_S + size / rate for name, size in sizes.items()}),
            assumed_network(workers, self.case["bytes_per_s"], LATENCY_S),
        )
        job = self.model.context  # in which parameters may be in parts
        return ordered_analysis(job.op_graph, job.job, facts, ANALYZERS)

    @cached_property
    def graph(self) -> TransferGraph:
        """A worker's part of a step."""
        return received(self.plain, self.analysis)

    @cached_property
    def oracle(self) -> TimeOracle:
        """How long all of that takes."""
        found = time_oracle(self.plain, self.analysis)
        assert found is not None
        return found

    @cached_property
    def makespan(self) -> Makespan:
        """How long a step is predicted to take, by its order."""
        return Makespan(self.graph, self.oracle)

    @cached_property
    def variables(self) -> list[str]:
        """What each worker receives."""
        return sorted(self.plain.decision.pull_of)

    def plan(self, order: Order) -> Plan:
        """The plan with an order."""
        own = ServingPlanner(
            self.plain.job.servers,
            order.ordering,
            order.in_flight_bytes,
            seed=order.seed,
            trains=self.case["mode"] == "training",
            overlap=order.ahead,
            order_gradients=order.gradients,
        )
        plan = own.choose(self.plain, self.analysis).plan
        if not order.shuffled:
            return plan
        names = [pull.variable for pull in plan.decision.pulls]
        draw = random.Random(order.seed)
        places = sorted(draw.sample(range(len(names)), max(2, round(order.shuffled * len(names)))))
        moved = [names[place] for place in places]
        draw.shuffle(moved)
        for place, name in zip(places, moved, strict=True):
            names[place] = name
        limit = order.in_flight_bytes
        if limit is None:
            limit = usual_in_flight_bytes(self.analysis)
        return ordered(self.plain, names, limit)

    def predicted(self, order: Sequence[str]) -> dict[str, float]:
        """The makespan of an order of variables, and its efficiency E."""
        makespan_s = self.makespan([transfer_of(name) for name in order])
        loads_s = resource_loads_s(self.graph, self.oracle).values()
        return {"makespan_s": makespan_s, "E": ordering_efficiency(loads_s, makespan_s)}

    @property
    def computation_s(self) -> float:
        """C: how long a worker computes in a step."""
        return resource_loads_s(self.graph, self.oracle)[None]


def job_of(case: Mapping[str, Any]) -> tuple[caramel.Context, Mapping[str, Any] | None]:
    """The job of a case, and what a step is fed; nothing where computation is emulated."""
    job = networks.build(case["network"], batch=case["batch"], image=case["image"])
    if case["rho"] is None:
        workers = len(case["workers"])
        return job.context(), {n: v.repeat(workers, axis=0) for n, v in job.feed().items()}
    sizes = [variable.shape.num_elements() * 4 for _, variable in job.gradients]
    return emulated(job.context(), case, sum(sizes)), None


def timed(context: caramel.Context, case: Mapping[str, Any]) -> TimingTable:
    """Seconds of each op, measured on the host of the client alone."""
    job = networks.build(case["network"], batch=case["batch"], image=case["image"])
    return profile_steps(context, feed=job.feed(), device="/CPU:0", use_cache=False)


def emulated(
    context: caramel.Context, case: Mapping[str, Any], parameter_bytes: int
) -> caramel.Context:
    """The job with waits in place of its computation, whose updates cost nothing."""
    seconds = flops_times(context, device=ACCELERATOR, batch=case["batch"])
    ops: Collection[str] = seconds.keys()
    ways = 2
    if case["mode"] == "inference":
        ops, ways = seconds.keys() & context.op_graph.ancestors([context.job.loss.op]), 1
    wanted_s = ways * parameter_bytes / case["bytes_per_s"] / case["rho"]
    factor = wanted_s / sum(seconds[name] for name in ops)
    scaled = {name: factor * time_s for name, time_s in seconds.items()}
    return emulate(context, scaled, batch=case["batch"], updates="none")


# Steps ------------------------------------------------------------------------------------------


def take_turns(
    session: Any,
    names: Sequence[str],
    rounds: int,
    feed: Mapping[str, Any] | None,
    clock: Clock,
    prepared: Collection[str] = (),
) -> dict[str, list[float]]:
    """Seconds of a step of each plan in each round.

    Args:
        clock: told when all plans have done their first steps.
        prepared: plans whose step needs what one before it has left.
    """
    samples_s: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        session.use(name)
        for _ in range(WARM_UP):
            session.step(feed)
    clock.note("first steps")
    for number in range(rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            session.use(name)
            if name in prepared:
                session.step(feed)
            begin = time.perf_counter()
            session.step(feed)
            samples_s[name].append(time.perf_counter() - begin)
    return samples_s


def traced_steps(job: Job, session: Any, name: str, count: int) -> list[dict[str, Any]]:
    """What some traced steps of a plan tell; those that lack transfers are left out."""
    session.use(name)
    found: list[dict[str, Any]] = []
    while count > 0:
        for timeline in session.trace(min(count, TRACED_AT_ONCE), job.feed):
            told = told_of(job, timeline)
            if told is not None:
                found.append(told)
        count -= TRACED_AT_ONCE
    return found


def told_of(job: Job, timeline: Timeline) -> dict[str, Any] | None:
    """Orders of arrivals at each worker, what the step took, and how workers waited."""
    orders, efficiencies, received_e, ends_s = [], [], [], []
    for worker in range(job.plain.workers):
        own = timeline.of_worker(worker).spans
        spans = {
            pull.variable: (span, pull.server)
            for span in own
            if span.resource == "receive" and (pull := pull_of(span.name)) is not None
        }
        computed = [span.end_s for span in own if span.resource == "compute"]
        if sorted(spans) != job.variables or not computed:
            return None
        arrivals = sorted(spans, key=lambda n: (spans[n][0].end_s, spans[n][0].begin_s, n))
        orders.append([job.variables.index(name) for name in arrivals])
        received_e.append(job.predicted(arrivals)["E"])
        begin_s = min(span.begin_s for span, _ in spans.values())
        ends_s.append(max(computed))
        loads_s: dict[int, float] = {}
        carried = [
            TransferSpan(n, str(server), span.begin_s, span.end_s)
            for n, (span, server) in spans.items()
        ]
        for variable, seconds in transfer_times_s(carried).items():
            server = spans[variable][1]
            loads_s[server] = loads_s.get(server, 0.0) + seconds
        loads = [*loads_s.values(), job.computation_s]
        efficiencies.append(ordering_efficiency(loads, ends_s[-1] - begin_s))
    waits_s = [max(ends_s) - end_s for end_s in ends_s]
    return {
        "orders": orders,
        "E": efficiencies,
        "received_E": received_e,
        "step_s": timeline.step_s,
        "straggler": straggler_share(waits_s, timeline.step_s),
    }


class Clock:
    """How long each part of a run takes, in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since_s = time.perf_counter()

    def note(self, part: str) -> None:
        """A part has ended."""
        now_s = time.perf_counter()
        self.seconds[part], self._since_s = now_s - self._since_s, now_s


# A case -----------------------------------------------------------------------------------------


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Samples and facts of each order of a cell."""
    clock = Clock()
    job = Job.of(case)
    clock.note("job")
    orders = [Order(**each) for each in case["orders"]]
    plans: dict[str, Plan] = {}
    same: dict[str, str] = {}
    for order in orders:
        plan = job.plan(order)
        like = next((name for name, own in plans.items() if decides_alike(own, plan)), None)
        if like is None:
            plans[order.name] = job.model.add_variant(plan, order.name)
        same[order.name] = like or order.name
    clock.note("plans")
    with job.model.session(trials=None, start_timeout_s=60, step_timeout_s=300) as session:
        clock.note("session")
        prepared = {n for n, plan in plans.items() if any(p.ahead for p in plan.decision.pulls)}
        samples_s = take_turns(session, list(plans), case["rounds"], job.feed, clock, prepared)
        clock.note("steps")
        counted = dict.fromkeys(
            (order.name for order in (NONE, ONE_AT_A_TIME)), max(case["counted"], case["traced"])
        )
        traces = {
            name: traced_steps(job, session, name, counted.get(name, case["traced"]))
            for name in plans
        }
        clock.note("traces")
    found = {}
    for order in orders:
        name = same[order.name]
        pulls = plans[name].decision.pulls
        planned = [] if order.ordering is None else [pull.variable for pull in pulls]
        found[order.name] = {
            "samples_s": samples_s[name],
            "traces": traces[name],
            "same_as": None if name == order.name else name,
            "gates": sum(len(pull.after) for pull in pulls),
            "push_gates": len(plans[name].decision.gates),
            "ahead": sum(pull.ahead for pull in pulls),
            "order": [job.variables.index(variable) for variable in planned],
            "predicted": job.predicted(planned) if planned else None,
        }
    sizes = [job.plain.job.variable_of[name].spec.bytes or 0 for name in job.variables]
    return {
        "plans": found,
        "variables": job.variables,
        "servers": [job.plain.decision.server_of[name] for name in job.variables],
        "bytes": sizes,
        "computation_s": job.computation_s,
        "least_s": job.makespan.least_picoseconds * 1e-12,
        "steps": (WARM_UP + case["rounds"]) * len(plans),
        "took_s": clock.seconds,
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
