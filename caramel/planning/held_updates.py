"""Which updates have to wait until every worker has read its inputs?

A step in which one worker's pipeline has ended must update nothing, on any worker.
"""

from __future__ import annotations

from collections.abc import Mapping

from caramel.core import op_types
from caramel.core.consequences import Deferral
from caramel.core.facts import LoopFrames, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.plan import Plan


def held_updates(
    plan: Plan,
    deferral: Deferral,
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ops that read the inputs of a step, and the updates that are to wait for them.

    Both are empty if none have to.

    Args:
        deferral: what moves into the next step.
    """
    step = graph.ancestors([job.train_op, job.loss.op])
    reads = [name for name in graph.ops if name in step and _reads_inputs(graph, name)]
    if not plan.job.pipelines or not reads:
        return (), ()
    moved = frozenset(deferral.moved)
    # Updates that wait for an aggregated gradient of the same step need all workers anyway; the
    # others (moving averages, counters) are held back.
    safe = _behind_sums(plan, deferral, graph) | graph.ancestors(reads) | moved
    held = tuple(
        name
        for name in access.writes
        if name in step - safe and not _has_handle_in_loop(graph, frames, name)
    )
    return (tuple(reads) if held else ()), held


def _reads_inputs(graph: OpGraph, name: str) -> bool:
    """Whether an op reads an input pipeline in every step."""
    if graph[name].kind not in op_types.ITERATOR_READS:
        return False
    return not any(graph[source].kind == "Switch" for source in graph.ancestors([name]))


def _behind_sums(plan: Plan, deferral: Deferral, graph: OpGraph) -> set[str]:
    """Everything that waits for a gradient aggregated in the same step.

    Ops that stay have lost their edges from ops that move; what they wait for instead counts.
    """
    deferred, moved = plan.deferred, frozenset(deferral.moved)
    waiting = [
        name
        for cut in plan.job.gradients
        if cut.parameter not in deferred
        for name in cut.consumers
    ]
    detours = _waiting_instead(deferral)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name in moved:
            continue
        seen.add(name)
        waiting.extend(graph.consumers[name])
        waiting.extend(detours.get(name, ()))
    return seen


def _waiting_instead(deferral: Deferral) -> Mapping[str, list[str]]:
    """The ops that wait for an op by a detour."""
    found: dict[str, list[str]] = {}
    for detour in deferral.detours:
        for source in detour.before:
            found.setdefault(source, []).append(detour.op)
    return found


def _has_handle_in_loop(graph: OpGraph, frames: LoopFrames, name: str) -> bool:
    """Whether an op gets a variable's handle through the border of a loop."""
    return any(graph[source.op].kind == "Enter" for source in graph[name].inputs)
