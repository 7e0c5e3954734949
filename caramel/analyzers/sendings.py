"""What does a step send between the devices over which its replica is spread?"""

from __future__ import annotations

from caramel.core.consequences import Sending
from caramel.core.facts import TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.placement import Placement


def sendings(placement: Placement | None, graph: OpGraph, job: TrainingJob) -> tuple[Sending, ...]:
    """Each tensor with each device to which it is sent, in the order of the graph.

    It is sent to a device once, for all ops that read it there. Control edges carry nothing.
    """
    if placement is None:
        return ()
    step = graph.ancestors([job.train_op, job.loss.op])
    number_of = placement.number_of
    found: dict[Sending, None] = {}
    for name in graph.ops:
        if name not in step:
            continue
        target = number_of[name]
        for tensor in graph[name].inputs:
            source = number_of[tensor.op]
            if source != target:
                found[Sending(tensor, source, target, graph.spec(tensor).bytes)] = None
    return tuple(found)
