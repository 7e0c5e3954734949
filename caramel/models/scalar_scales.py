"""How does a scalar of a step scale with the examples, be it a loss or not?"""

from __future__ import annotations

from caramel.analyzers.examples.examples import Examples
from caramel.analyzers.loss import Scales
from caramel.core.facts import LoopFrames, LossScale, LossScales, ReplicaState
from caramel.core.names import TensorRef
from caramel.models.facts import KnownStep


class ScalarScales:
    """How scalars of a step scale with the examples; each is looked at once, when it is asked for.

    Args:
        step: what is known of it.
    """

    def __init__(self, step: KnownStep) -> None:
        self._step = step
        self._known: dict[TensorRef, LossScale | None] = {}

    def of(self, tensor: TensorRef) -> LossScale | None:
        """How a scalar scales with the examples; None if it is the same on every worker."""
        if tensor not in self._known:
            self._known[tensor] = self._found(tensor)
        return self._known[tensor]

    def _found(self, tensor: TensorRef) -> LossScale | None:
        scale = self._step.get(LossScales).of.get(tensor)
        differs = tensor.op in self._step.get(ReplicaState).worker_dependent
        if scale is None and differs and self._step.context.op_graph.spec(tensor).shape == ():
            return scales_of_tensors(self._step).of(tensor)
        return scale


def scales_of_tensors(step: KnownStep) -> Scales:
    """How tensors of a step scale with the examples, whatever they are."""
    frames, examples = step.get(LoopFrames), step.get(Examples)
    return Scales(step.context.op_graph, step.context.job, frames, examples)
