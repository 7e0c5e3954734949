"""A training step taken apart: the loss, differentiation, and what lies behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from caramel.analyzers.dependence import spread
from caramel.core import op_types
from caramel.core.facts import StateAccess, TrainingJob, WorkerInputs
from caramel.core.graph import OpGraph
from caramel.core.variable_access import handle_of


@dataclass(frozen=True)
class Regions:
    """Where each op of a step belongs, by name.

    Attributes:
        differing: values depend on the worker (variables taken to be equal).
        by_value: of these, what does not depend only on the shapes of what differs, such as the
            number of entries by which differentiation divides where the forward pass takes a mean.
        forward: what the loss is computed from.
        core: differentiation up to the last op that reads a forward value.
        tail: between the core and the updates: the last sums and reshapes of differentiation, then
            clipping, scaling and whatever else the user does to gradients.
        sinks: ops that write parameters, or variables that updates of parameters read (such as
            slots and accumulators).
        serves: the parameters whose updates read a variable, directly or by way of others; a
            parameter serves itself.
    """

    differing: frozenset[str]
    by_value: frozenset[str]
    forward: frozenset[str]
    core: frozenset[str]
    tail: frozenset[str]
    sinks: tuple[str, ...]
    serves: Mapping[str, frozenset[str]]


def regions_of(
    graph: OpGraph, job: TrainingJob, access: StateAccess, inputs: WorkerInputs
) -> Regions:
    """Take a step apart."""
    step = graph.ancestors([job.train_op, job.loss.op])
    differing = frozenset(spread(graph, inputs.reasons, within=step).came_from)
    by_value = spread(
        graph,
        inputs.reasons,
        within=step,
        is_cut=lambda tensor, consumer: graph[consumer].kind in op_types.SHAPE_ONLY,
    )
    forward = _forward(graph, job, step)
    sinks, serves = updates(graph, job, access, step, forward)
    towards_updates = graph.data_ancestors(sinks)
    backward = (differing & towards_updates) - forward - set(sinks)
    readers = [
        name
        for name in backward
        if any(tensor.op in forward and tensor.op in differing for tensor in graph[name].inputs)
    ]
    # Outside the forward pass only differentiation reads forward values that differ; what such an
    # op is computed from is differentiation, too.
    core = frozenset(graph.data_ancestors(readers) & backward)
    return Regions(
        differing,
        frozenset(by_value.came_from),
        forward,
        core,
        backward - core,
        sinks,
        serves,
    )


def served_parameters(
    graph: OpGraph, job: TrainingJob, access: StateAccess
) -> Mapping[str, frozenset[str]]:
    """For each variable that updates of parameters read, anywhere in the graph, which these are."""
    everything = set(graph.ops)
    return updates(graph, job, access, everything, _forward(graph, job, everything))[1]


def _forward(graph: OpGraph, job: TrainingJob, step: set[str]) -> frozenset[str]:
    """What losses are computed from, with the stacks on which v1 loops keep forward values."""
    forward = graph.data_ancestors([tensor.op for tensor in (*job.losses, *job.forward)])
    # No edge leads from a push to its pop.
    stacks = {
        handle_of(graph, graph[name].inputs[0])
        for name in step
        if graph[name].kind == op_types.STACK_PUSH and graph[name].inputs[1].op in forward
    }
    pops = {
        name
        for name in step
        if graph[name].kind == op_types.STACK_POP
        and handle_of(graph, graph[name].inputs[0]) in stacks
    }
    return frozenset(forward | pops)


def updates(
    graph: OpGraph, job: TrainingJob, access: StateAccess, step: set[str], forward: frozenset[str]
) -> tuple[tuple[str, ...], Mapping[str, frozenset[str]]]:
    """Ops of the step that write a parameter, or a variable that such an op's inputs read.

    Second, which parameters each of the variables they write serves.
    """
    writers: dict[str, list[str]] = {}
    for name, variables in access.writes.items():
        if name in step:
            for variable in variables:
                writers.setdefault(variable, []).append(name)
    serves = {name: set(parameters) for name, parameters in job.serves.items()}
    for each in job.variables:
        if each.trainable:
            serves.setdefault(each.name, set()).add(each.name)
    reading = _computed_from_variables(graph, access, forward)
    others = frozenset(graph.ops.keys() - reading)
    wanted = list(serves)
    sinks: set[str] = set()
    while wanted:
        variable = wanted.pop()
        sinks.update(writers.get(variable, ()))
        # Only what is computed from variables can lead to a read: the rest of the graph is not gone
        # through.
        updating = graph.data_ancestors(writers.get(variable, ()), stop=others) & reading
        for read in sorted({v for name in updating for v in access.reads.get(name, ())}):
            before = len(serves.setdefault(read, set()))
            serves[read] |= serves[variable]
            if len(serves[read]) > before:
                wanted.append(read)
    return (
        tuple(name for name in graph.ops if name in sinks),
        {variable: frozenset(parameters) for variable, parameters in serves.items()},
    )


def _computed_from_variables(
    graph: OpGraph, access: StateAccess, forward: frozenset[str]
) -> set[str]:
    """Ops that read a variable and what is computed from them, outside the forward pass.

    They are few where nothing but updates reads variables there.
    """
    return graph.data_descendants(access.reads, stop=forward)
