"""Which ops put out values that differ between workers by themselves?

Batches that are fed or read from a pipeline, random draws, and anything from outside the graph.
What these values reach is the question of `dependence`.
"""

from __future__ import annotations

from collections.abc import Iterable

from caramel.analyzers.dependence import spread
from caramel.analyzers.seed_states import seed_states
from caramel.core import op_types
from caramel.core.facts import StateAccess, TrainingJob, WorkerInputs
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef
from caramel.core.variable_access import handle_of


def worker_inputs(graph: OpGraph, job: TrainingJob, access: StateAccess) -> WorkerInputs:
    """The ops whose values differ between workers by themselves, with the reason.

    Fed scalars and `replicated_feeds` are equal on all workers. A placeholder of unknown rank may
    be either. It is taken to be a batch if there is a parameter whose update depends on examples by
    way of such placeholders only; else it is listed in `scalar_only` or, if the loss would be no
    scalar, in `scalars`, and not taken to differ.
    """
    seeds = seed_states(graph, job, access)
    random_functions = _functions_with(graph, op_types.RANDOM)
    input_functions = _functions_with(graph, op_types.INPUTS)
    reasons: dict[str, str] = {}
    scalar_only = set()
    for op in graph:
        if op.kind in op_types.PLACEHOLDERS:
            if op.name in job.replicated_feeds:
                continue
            shape = op.outputs[0].shape if op.outputs else None
            if shape is None:
                scalar_only.add(op.name)
            elif shape:
                reasons[op.name] = "a fed batch"
        elif op.name in seeds.draws or _is(op, op_types.RANDOM, random_functions):
            reasons[op.name] = "a random draw"
        elif _is(op, op_types.INPUTS, input_functions):
            reasons[op.name] = "an input of each worker's own"
        elif job.differing and _reads_differing(graph, job, access, op):
            reasons[op.name] = "what other steps write there from each worker's own examples"
    if not scalar_only:
        return WorkerInputs(reasons)
    scalars = frozenset(scalar_only & _scalars_of(graph, job.loss))
    batches = _batches_among(graph, job, access, reasons, scalar_only - scalars)
    reasons |= dict.fromkeys(batches, "a fed batch")
    return WorkerInputs(reasons, frozenset(scalar_only - scalars - batches), scalars, batches)


def _batches_among(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    reasons: Iterable[str],
    unknown: set[str],
) -> frozenset[str]:
    """Placeholders of unknown rank without which no example would reach some parameter."""
    candidates = unknown & graph.data_ancestors([job.loss.op])
    if not candidates:
        return frozenset()
    step = graph.ancestors([job.train_op, job.loss.op])
    trainable = {variable.name for variable in job.variables if variable.trainable}

    def updated_by(sources: Iterable[str]) -> set[str]:
        reached = spread(graph, sources, within=step).came_from
        return {name for op in reached for name in access.writes.get(op, ())} & trainable

    # As few as possible: a placeholder that need not be a batch is taken for an option.
    missing = updated_by([*reasons, *candidates]) - updated_by(reasons)
    if not missing:
        return frozenset()
    return frozenset(op for op in candidates if updated_by([op]) & missing)


def _scalars_of(graph: OpGraph, loss: TensorRef) -> set[str]:
    """What must be a scalar because the loss, which is one, has its rank at least."""
    found: set[str] = set()
    waiting = [loss.op]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if graph[name].kind in op_types.BROADCASTING:
                waiting += [tensor.op for tensor in graph[name].inputs]
    return found


def _reads_differing(graph: OpGraph, job: TrainingJob, access: StateAccess, op: Op) -> bool:
    """Whether an op reads a variable or a table that other steps make differ."""
    if op.kind in op_types.TABLE_READS:
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
        if any(op.kind in wanted for op in function.body)
    }
    # A function may call others that draw or read.
    grown = True
    while grown:
        callers = {
            name
            for name, function in graph.functions.items()
            if any(found.intersection(op.functions) for op in function.body)
        }
        grown = not callers <= found
        found |= callers
    return frozenset(found)
