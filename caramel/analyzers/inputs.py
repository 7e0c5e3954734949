"""Which ops put out values that differ between workers by themselves?

Batches that are fed or read from a pipeline, random draws, and anything from outside the graph.
What these values reach is the question of `caramel.analyzers.dependence`.
"""

from __future__ import annotations

from caramel import kinds
from caramel.access import handle_of
from caramel.facts import StateAccess, TrainingJob, WorkerInputs
from caramel.graph import Op, OpGraph


def worker_inputs(graph: OpGraph, job: TrainingJob, access: StateAccess) -> WorkerInputs:
    """The ops whose values differ between workers by themselves, with the reason.

    Fed scalars and `replicated_feeds` are equal on all workers. A placeholder of unknown rank may
    be either: it is listed in `scalar_only` and not taken to differ.
    """
    random_functions = _functions_with(graph, kinds.RANDOM)
    input_functions = _functions_with(graph, kinds.INPUTS)
    reasons: dict[str, str] = {}
    scalar_only = set()
    for op in graph:
        if op.kind in kinds.PLACEHOLDERS:
            if op.name in job.replicated_feeds:
                continue
            shape = op.outputs[0].shape if op.outputs else None
            if shape is None:
                scalar_only.add(op.name)
            elif shape:
                reasons[op.name] = "a fed batch"
        elif _is(op, kinds.RANDOM, random_functions):
            reasons[op.name] = "a random draw"
        elif _is(op, kinds.INPUTS, input_functions):
            reasons[op.name] = "an input of each worker's own"
        elif job.differing and _reads_differing(graph, job, access, op):
            reasons[op.name] = "what it reads is of each worker's own examples by another step"
    return WorkerInputs(reasons, frozenset(scalar_only))


def _reads_differing(graph: OpGraph, job: TrainingJob, access: StateAccess, op: Op) -> bool:
    """Whether an op reads a variable or a table that other steps make differ."""
    if op.kind in kinds.TABLE_READS:
        return handle_of(graph, op.inputs[0]) in job.differing
    return not job.differing.isdisjoint(access.reads.get(op.name, ()))


def _is(op: Op, wanted: frozenset[str], functions: frozenset[str]) -> bool:
    if op.kind in wanted:
        return True
    return any(name in functions for name in op.functions) and not _only_describes_data(op)


def _only_describes_data(op: Op) -> bool:
    """Whether an op only builds a dataset: what is drawn there comes out of the iterator."""
    return bool(op.outputs) and all(spec.dtype == "variant" for spec in op.outputs)


def _functions_with(graph: OpGraph, wanted: frozenset[str]) -> frozenset[str]:
    """Library functions that contain an op of the wanted kinds, directly or by calling."""
    found = {
        name
        for name, function in graph.functions.items()
        if any(node.kind in wanted for node in function.nodes)
    }
    grown = True
    while grown:
        callers = {
            name
            for name, function in graph.functions.items()
            if any(found.intersection(node.functions) for node in function.nodes)
        }
        grown = not callers <= found
        found |= callers
    return frozenset(found)
