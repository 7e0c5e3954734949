"""Which fetches touch a variable that their step touches, too, in no order with it?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from caramel.analyzers.state_order import order_of
from caramel.core import op_types
from caramel.core.facts import GradientFrontier, LoopFrames, StateAccess, TrainingJob, WorkerInputs
from caramel.core.graph import OpGraph


@dataclass(frozen=True, slots=True)
class Racing:
    """Fetched ops that something has to order with their step."""

    writing: tuple[str, ...] = ()  # what the step reads or writes
    reading: tuple[str, ...] = ()  # something is computed from what the step writes early


def racing(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
    inputs: WorkerInputs,
    frontier: GradientFrontier,
    fetched: Sequence[str],
) -> Racing:
    """The fetches of a step that are in no order with it.

    The value of a variable itself, when it is fetched, is that before or behind the step, as on one
    device.
    """
    roots = [job.train_op, job.loss.op]
    step = graph.ancestors(roots)
    beside = graph.ancestors(fetched, stop=frozenset(step)) - step
    written = {v for op, variables in access.writes.items() if op in step for v in variables}
    reads = {op for op in beside if not written.isdisjoint(access.reads.get(op, ()))}
    if not reads and beside.isdisjoint(access.writes):
        return Racing()
    order = order_of(graph, job, access, frames, inputs, [*roots, *fetched])
    # What the step writes behind a gradient is read before that in practice: the gradient takes its
    # time. A counter is written early.
    late = _behind(graph, (op for cut in frontier.cuts for op in cut.consumers), step)
    writing, reading = set[str](), set[str]()
    for pair in order.pairs:
        outside = beside.intersection((pair.first, pair.second))
        if not outside.isdisjoint(access.writes):
            writing |= outside
        elif pair.first in outside and pair.second not in late:
            reading.add(pair.first)
    of_fetch = {name: graph.ancestors([name], stop=frozenset(step)) for name in fetched}
    return Racing(
        tuple(name for name, ops in of_fetch.items() if not writing.isdisjoint(ops)),
        tuple(
            name
            for name, ops in of_fetch.items()
            if not reading.isdisjoint(ops) and _reader(graph, name) not in reading
        ),
    )


def _behind(graph: OpGraph, names: Iterable[str], among: Set[str]) -> set[str]:
    """What waits for some ops, and these."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = waiting.pop()
        if name in among and name not in found:
            found.add(name)
            waiting += graph.consumers[name]
    return found


def _reader(graph: OpGraph, name: str) -> str:
    """The op whose value an op passes on."""
    seen = {name}
    while graph[name].kind in op_types.PASS_THROUGH and graph[name].inputs:
        name = graph[name].inputs[0].op
        if name in seen:
            break
        seen.add(name)
    return name
