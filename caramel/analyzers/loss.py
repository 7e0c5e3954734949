"""Does the mean of the workers' losses say something else than the loss of the whole batch?

Aggregation takes the mean of the workers' gradients (or their sum), which is the gradient of the
whole batch if the loss is a mean (or sum) over examples. One way in which it is something else
shows in the graph, and is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from caramel import kinds
from caramel.analyzers.dependence import spread
from caramel.facts import TrainingJob, WorkerInputs
from caramel.graph import OpGraph

_DIVISIONS = frozenset({"RealDiv", "DivNoNan"})


def deviations(graph: OpGraph, job: TrainingJob, inputs: WorkerInputs) -> Iterator[str]:
    """In which ways training differs from that on one device, a sentence each.

    The loss may be divided by a number that depends on the examples themselves, such as how many of
    them a mask lets through.
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
