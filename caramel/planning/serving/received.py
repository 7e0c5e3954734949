"""A worker's part of a step with parameter servers, as the algorithms for orders see it."""

from __future__ import annotations

from dataclasses import dataclass

from caramel.analyzers.analysis import Analysis
from caramel.analyzers.serving import ServedStep
from caramel.core.errors import MissingFactError
from caramel.core.facts import LoopFrames, ReplicaState, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.plan import Plan
from caramel.core.time_facts import NetworkModel, TimingTable, TransferTimes
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import Op, Recv, TransferGraph

_RECV = "recv "


@dataclass(frozen=True, slots=True)
class WorkerStep:
    """A worker's step, and how long everything in it takes."""

    graph: TransferGraph
    times: TimeOracle


def received(plan: Plan, analysis: Analysis) -> TransferGraph:
    """What a worker receives, and what it computes from that (TicTac 2018, section 3.1).

    A transfer is called by the device of its server and the variable, so that no op has its name.

    Args:
        plan: says what workers receive, from which servers.
        analysis: what is known of the step.
    """
    graph, access = analysis.get(OpGraph), analysis.get(StateAccess)
    step = served_step(plan, analysis)
    server_of, pulled = plan.decision.server_of, plan.decision.pull_of
    recvs = tuple(Recv(transfer_of(name), str(server_of[name])) for name in pulled)
    ops = []
    for name in graph.topological_order():
        if name not in step.of_worker:
            continue
        read = sorted(access.reads.get(name, frozenset()) & pulled.keys())
        # What closes a loop comes later in the order; an op does not wait for it in the first
        # round.
        sources = [s for s in dict.fromkeys(graph[name].sources) if s in step.of_worker]
        if graph[name].kind == "Merge":
            sources = [s for s in sources if graph[s].kind != "NextIteration"]
        ops.append(Op(name, (*sources, *(transfer_of(variable) for variable in read))))
    return TransferGraph(recvs, tuple(ops))


def served_step(plan: Plan, analysis: Analysis) -> ServedStep:
    """What of a step is done once, and what by each worker."""
    return ServedStep(
        plan,
        analysis.get(OpGraph),
        analysis.get(TrainingJob),
        analysis.get(StateAccess),
        analysis.get(LoopFrames),
        analysis.get(ReplicaState),
    )


def first_readers(graph: TransferGraph) -> dict[str, str]:
    """The first op that waits for each variable, in the order in which ops could be computed."""
    found: dict[str, str] = {}
    for op in graph.ops:
        for name in op.dependencies:
            if name.startswith(_RECV):
                found.setdefault(variable_of(name), op.name)
    return found


def transfer_of(variable: str) -> str:
    """What the transfer of a variable is called."""
    return f"{_RECV}{variable}"


def variable_of(transfer: str) -> str:
    """The variable of a transfer."""
    return transfer.removeprefix(_RECV)


def time_oracle(plan: Plan, analysis: Analysis) -> TimeOracle | None:
    """How long ops and transfers take; None if nothing is known of that.

    Where transfers were not timed themselves, they take what the network needs for their bytes: all
    workers share the link of a server, and all servers that of a worker.
    """
    try:
        timing = analysis.get(TimingTable)
    except MissingFactError:
        return None
    names = plan.decision.pull_of.keys()
    try:
        known = analysis.get(TransferTimes).seconds
    except MissingFactError:
        known = {}
    if not known.keys() >= names:
        try:
            rate = analysis.get(NetworkModel).bytes_per_s
        except MissingFactError:
            return None
        rate /= max(plan.workers, len(plan.job.servers))
        sizes = {name: plan.job.variable_of[name].spec.bytes or 0 for name in names}
        known = {name: known.get(name, size / rate) for name, size in sizes.items()}
    return TimeOracle(timing.seconds, {transfer_of(name): known[name] for name in names})


def without(graph: TransferGraph, variables: frozenset[str]) -> TransferGraph:
    """A worker's step in which some variables are there from the begin."""
    gone = {transfer_of(name) for name in variables}
    recvs = tuple(recv for recv in graph.recvs if recv.name not in gone)
    ops = tuple(
        Op(op.name, tuple(name for name in op.dependencies if name not in gone)) for op in graph.ops
    )
    return TransferGraph(recvs, ops)
