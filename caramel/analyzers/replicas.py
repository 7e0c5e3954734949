"""Which variables stay equal on all workers, and does everything that must stay equal do so?

The static proof that replicas cannot drift apart: every value that differs between workers reaches
a parameter, or anything a parameter's update reads, only through an aggregation.
"""

from __future__ import annotations

from caramel.analyzers.dependence import Spread, cut_by, spread
from caramel.analyzers.seed_states import seed_states
from caramel.core import op_types
from caramel.core.errors import DriftError
from caramel.core.facts import (
    GradientFrontier,
    Merging,
    ReplicaState,
    StateAccess,
    TrainingJob,
    Variable,
    WorkerInputs,
)
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.variable_access import fills_table, handle_of


def replica_state(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    inputs: WorkerInputs,
    frontier: GradientFrontier,
    merging: Merging,
) -> ReplicaState:
    """The variables of the step, sorted by whether they stay equal on all workers.

    Raises:
        DriftError: a value that differs between workers reaches a parameter without passing an
            aggregation; names the path.
    """
    step = graph.ancestors([job.train_op, job.loss.op])
    is_cut = cut_by(frontier)

    def reached_from(sources: list[str]) -> Spread:
        return spread(graph, sources, access, within=step, is_cut=is_cut)

    unknown = inputs.scalar_only | inputs.taken_for_batches
    certain = [op for op in inputs.reasons if op not in unknown]
    reached = reached_from(certain)
    trainable = {variable.name for variable in job.variables if variable.trainable}
    equal = trainable | job.equal
    for variable in sorted(equal & set(reached.variables)):
        what = "parameter" if variable in trainable else "variable"
        raise DriftError(_explain(graph, inputs, reached, what, variable))
    scalar_only = inputs.scalars | frozenset(
        # Of unknown rank, and nothing aggregates it on its way to a parameter: a batch would make
        # replicas drift, so only a scalar may be fed.
        op
        for op in sorted(unknown)
        if equal & set(reached_from([op]).variables)
    )
    # The other placeholders of unknown rank may be fed either way, so they count as differing.
    open_inputs = sorted(unknown - scalar_only)
    reached = reached_from([*certain, *open_inputs])
    written = {name for op in step for name in access.writes.get(op, ())}
    others = [v.name for v in job.variables if v.name not in trainable]
    gathering = {*merging.summed, *merging.averaged}
    # No parameter's update reads these: they may differ.
    local = tuple(name for name in others if name in reached.variables or name in gathering)
    differing = {*reached.variables, *local}
    readers = [op for op, read in access.reads.items() if read & differing]
    everywhere = spread(graph, [*certain, *open_inputs, *readers], is_cut=is_cut)
    return ReplicaState(
        parameters=tuple(v.name for v in job.variables if v.name in trainable & written),
        shared=tuple(name for name in others if name not in local),
        local=local,
        scalar_only=scalar_only,
        taken_for_batches=inputs.taken_for_batches - scalar_only,
        undeclared=(scalar_only - inputs.scalars) & graph.data_ancestors([job.loss.op]),
        worker_dependent=frozenset(everywhere.came_from),
        generators=_generators(graph, job, step),
        seeds=_seeds(graph, job, access, step),
        constant=tuple(v.name for v in job.variables if _is_constant(graph, v)),
        summed=merging.summed,
        tables=_tables(graph, reached),
    )


def _tables(graph: OpGraph, reached: Spread) -> tuple[str, ...]:
    """The tables into which a value that differs is put."""
    filling = [graph[name] for name in reached.came_from if fills_table(graph[name])]
    return tuple(dict.fromkeys(handle_of(graph, op.inputs[0]) for op in filling))


def _is_constant(graph: OpGraph, variable: Variable) -> bool:
    """Whether a variable's initial value is made of constants only."""
    made_of = graph.ancestors([variable.initializer]) - {variable.initializer, variable.handle}
    return all(graph[name].kind in op_types.CONSTANT for name in made_of)


def _generators(graph: OpGraph, job: TrainingJob, step: set[str]) -> tuple[str, ...]:
    """Variables from whose state random ops of the step draw."""
    handles = {
        handle_of(graph, tensor)
        for name in step
        if graph[name].kind in op_types.GENERATOR_RANDOM
        for tensor in graph[name].inputs[:1]
    }
    return tuple(variable.name for variable in job.variables if variable.handle in handles)


def _seeds(
    graph: OpGraph, job: TrainingJob, access: StateAccess, step: set[str]
) -> tuple[str, ...]:
    """Variables that hold seeds of stateless random ops of the step."""
    seeds = seed_states(graph, job, access)
    held = seeds.variables if seeds.draws & step else frozenset()
    return tuple(variable.name for variable in job.variables if variable.name in held)


def _explain(
    graph: OpGraph, inputs: WorkerInputs, reached: Spread, what: str, variable: str
) -> str:
    path = reached.path_to(reached.variables[variable])
    steps = " -> ".join(f"{name} ({graph[name].kind})" for name in path)
    source = path[0]
    advice = (
        "aggregate it before it is used, or compute it from values that are equal on all workers"
    )
    if graph[source].kind in op_types.PLACEHOLDERS:
        advice = (
            f"if '{source}' is the same for all workers, pass replicated_feeds=['{source}']; else "
            + advice
        )
    return (
        f"replicas would drift apart: '{TensorRef(source)}' differs between workers "
        f"({inputs.reasons[source]}) and reaches {what} '{variable}' without being aggregated, "
        f"along {steps} -> {variable}; {advice}"
    )
