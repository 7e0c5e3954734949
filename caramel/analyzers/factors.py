"""From which smaller tensors can a gradient be computed again?

The gradient of a dense layer's weights is the product of the layer's input and of the gradient of
its output, each of which has one row for each example. With few examples both together are a small
part of their product: *sufficient factors* (Xie et al., UAI 2016; used for fully connected layers
by Poseidon, Zhang et al., USENIX ATC 2017). The filters of a convolution are that product at many
places.
"""

from __future__ import annotations

from collections.abc import Iterator

from caramel.analyzers.branches import predicates_around
from caramel.core import op_types
from caramel.core.facts import Factors, GradientFactors, GradientFrontier, RawGradient
from caramel.core.graph import OpGraph

# Put out the elements of their first input, in another shape.
_SHAPING = frozenset({"ExpandDims", "Identity", "Reshape", "Squeeze"})

_DTYPES = frozenset({"bfloat16", "float16", "float32", "float64"})


def gradient_factors(graph: OpGraph, frontier: GradientFrontier) -> GradientFactors:
    """The factors of every gradient that has some.

    A gradient inside a conditional has none, since a step may lack it. (No raw gradient is inside a
    loop, and no op that is looked at here leads out of either.)
    """
    branches = predicates_around(graph)
    found = {}
    for cut in frontier.cuts:
        factors = _factors(graph, cut.gradient)
        if factors is not None and not branches.get(cut.gradient.values.op):
            found[cut.gradient.parameter] = factors
    return GradientFactors(found)


def _factors(graph: OpGraph, gradient: RawGradient) -> Factors | None:
    # Rows of a sparse gradient are few already.
    if gradient.indices is not None or gradient.values.index:
        return None
    ops = list(_computed_by(graph, gradient.values.op))
    product = graph[ops[-1]]
    if product.kind not in op_types.PRODUCTS:
        return None
    tensors = tuple(product.inputs[position] for position in op_types.PRODUCTS[product.kind])
    specs = tuple(graph.spec(tensor) for tensor in tensors)
    if len(set(tensors)) < len(tensors) or not _DTYPES.issuperset(spec.dtype for spec in specs):
        return None
    return Factors(tensors, specs, tuple(reversed(ops)))


def _computed_by(graph: OpGraph, name: str) -> Iterator[str]:
    """The op, and those before it as long as they only change shapes."""
    yield name
    while graph[name].kind in _SHAPING and graph[name].inputs and not graph[name].inputs[0].index:
        name = graph[name].inputs[0].op
        yield name
