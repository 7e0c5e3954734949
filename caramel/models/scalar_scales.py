"""How does a scalar of a step scale with the examples, be it a loss or not?"""

from __future__ import annotations

from caramel.analyzers.examples.examples import Examples
from caramel.analyzers.loss import Scales
from caramel.analyzers.over_steps import StepFacts
from caramel.capture.context import Context
from caramel.core.facts import LoopFrames, LossScale, LossScales, ReplicaState
from caramel.core.names import TensorRef


class ScalarScales:
    """How scalars of a step scale with the examples; each is looked at once, when it is asked for.

    Args:
        context: the job whose step it is.
        facts: what is known of it.
    """

    def __init__(self, context: Context, facts: StepFacts) -> None:
        self._context, self._facts = context, facts
        self._known: dict[TensorRef, LossScale | None] = {}

    def of(self, tensor: TensorRef) -> LossScale | None:
        """How a scalar scales with the examples; None if it is the same on every worker."""
        if tensor not in self._known:
            self._known[tensor] = self._found(tensor)
        return self._known[tensor]

    def _found(self, tensor: TensorRef) -> LossScale | None:
        scale = self._facts.analysis.get(LossScales).of.get(tensor)
        differs = tensor.op in self._facts.get(ReplicaState).worker_dependent
        if scale is None and differs and self._context.op_graph.spec(tensor).shape == ():
            return scales_of_tensors(self._context, self._facts).of(tensor)
        return scale


def scales_of_tensors(context: Context, facts: StepFacts) -> Scales:
    """How tensors of a step scale with the examples, whatever they are."""
    analysis = facts.analysis
    frames, examples = analysis.get(LoopFrames), analysis.get(Examples)
    return Scales(context.op_graph, context.job, frames, examples)
