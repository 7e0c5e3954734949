"""Does the mean of the workers' losses say something else than the loss of the whole batch?

Aggregation takes the mean of the workers' gradients (or their sum), which is the gradient of the
whole batch if the loss is a mean (or sum) over examples. Two ways in which it is something else
show in the graph, and are told.
"""

from __future__ import annotations

from collections.abc import Iterator

from caramel import kinds
from caramel.analyzers.dependence import spread
from caramel.facts import ReplicaState, StateAccess, TrainingJob, WorkerInputs
from caramel.graph import OpGraph

_DIVISIONS = frozenset({"RealDiv", "DivNoNan"})


def deviations(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    inputs: WorkerInputs,
    state: ReplicaState,
) -> Iterator[str]:
    """In which ways training differs from that on one device, a sentence each.

    The loss may be divided by a number that depends on the examples themselves (such as how many of
    them a mask lets through), or read a variable that differs between workers.
    """
    forward = graph.data_ancestors([job.loss.op])
    by_value = spread(
        graph,
        inputs.reasons,
        within=forward,
        is_cut=lambda tensor, consumer: graph[consumer].kind in kinds.SHAPE_ONLY,
    ).came_from
    for op in graph:
        if op.name not in forward or op.kind not in _DIVISIONS:
            continue
        if op.outputs[0].shape == () and op.inputs[1].op in by_value:
            yield (
                f"the loss is divided by '{op.inputs[1]}' (in '{op.name}'), which depends on the "
                "examples: each worker divides by its own, which is not the same as one device "
                "does; divide by a number that is the same for all, such as the size of the batch"
            )
    local = set(state.local)
    read = {v for name in forward for v in access.reads.get(name, frozenset()) & local}
    for variable in sorted(read):
        yield (
            f"the loss reads variable '{variable}', which each worker updates from its own part of "
            "the batch: workers train against different values of it, unlike one device"
        )
