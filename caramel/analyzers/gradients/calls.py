"""Does one call of a function give the loss and gradients, too?

Nothing in the graph tells then where differentiation ends.
"""

from __future__ import annotations

from collections.abc import Iterable

from caramel.core.errors import AmbiguousGradientError
from caramel.core.facts import StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef

ADVICE = (
    "name the raw gradient yourself: Context(..., gradients=[(gradient, variable)]) with what "
    "tf.gradients or Optimizer.compute_gradients returned"
)


def refuse_gradients_of_functions(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    forward: frozenset[str],
    sinks: Iterable[str],
) -> None:
    """Raise if a call gives the loss and something that looks like a gradient.

    Args:
        forward: what the loss is computed from.
        sinks: ops that update parameters.

    Raises:
        AmbiguousGradientError: names the call and its output.
    """
    parameters = [v for v in job.variables if v.trainable]
    for name in (op.name for op in graph if op.name in forward and op.functions):
        for index, spec in enumerate(graph[name].outputs):
            tensor = TensorRef(name, index)
            alike = {v.name for v in parameters if v.spec == spec}
            readers = [c for c in graph.consumers[name] if tensor in graph[c].inputs]
            # What the forward pass goes on with is no gradient.
            if not alike or tensor == job.loss or not forward.isdisjoint(readers):
                continue
            updated = {
                variable
                for sink in _reached_without_calls(graph, readers).intersection(sinks)
                for variable in access.writes[sink]
            }
            if not alike.isdisjoint(updated):
                raise AmbiguousGradientError(
                    f"'{name}' ({graph[name].kind}) gives both the loss and '{tensor}', which may "
                    f"be a gradient or something that gradients are computed from; {ADVICE}"
                )


def _reached_without_calls(graph: OpGraph, names: Iterable[str]) -> set[str]:
    """The ops behind the given ones along data edges, without calls of functions on the way."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        # What a function hands to its own gradient function is no gradient; that one is called,
        # too.
        if name in seen or graph[name].functions:
            continue
        seen.add(name)
        waiting += [
            consumer
            for consumer in graph.consumers[name]
            if any(tensor.op == name for tensor in graph[consumer].inputs)
        ]
    return seen
