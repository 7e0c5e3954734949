"""From which constants does differentiation start, and what depends on them?

Reverse differentiation is linear in its *seed*, the constant one by which it begins at the loss.
What depends on the seed is an *adjoint*. What only reads forward values belongs to the forward
pass, although the loss is not computed from it: the ``2 * x`` of a square, a second loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from caramel.analyzers.gradients.regions import Regions
from caramel.core import op_types
from caramel.core.dtypes import is_differentiable
from caramel.core.graph import Op, OpGraph, TensorSpec

_SEEDS = frozenset({"Const", "Fill", "OnesLike"})

_WITHOUT_VALUE = op_types.SHAPE_ONLY | op_types.CONSTANTS
"""Of what they read only the shape matters."""

# Linear in an adjoint in no position.
_NOT_LINEAR = frozenset(
    {
        *("Abs", "Ceil", "ClipByValue", "ComplexAbs", "Elu", "Exp", "Expm1", "Floor", "Inv"),
        *("IsFinite", "L2Loss", "Log", "Log1p", "LogSoftmax", "Max", "Maximum", "Min", "Minimum"),
        *("Pow", "Prod", "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Selu"),
        *("Sigmoid", "Sign", "Softmax", "Softplus", "Softsign", "Sqrt", "Square"),
        *("SquaredDifference", "Tanh"),
    }
)
# Linear in each of two inputs, and not in both.
_PRODUCTS = frozenset({*op_types.BILINEAR, *op_types.PRODUCTS, "Conv2DBackpropInput"}) - {
    *("Select", "SelectV2")
}
_NOT_LINEAR_IN = {**op_types.NOT_LINEAR_IN, "Switch": (1,)}


def regions_by_seeds(graph: OpGraph, regions: Regions) -> Regions:
    """The same regions, where what does not depend on a seed belongs to the forward pass."""

    def depends_on_value(name: str) -> bool:
        return name not in regions.forward and graph[name].kind not in _WITHOUT_VALUE

    adjoint = _reached(graph, _Seeds(graph, regions).find(), depends_on_value)
    between = regions.core | regions.tail
    # Row numbers of sparse gradients come with them, but no seed reaches them.
    numbers = {name for name in between - adjoint if all(map(_is_number, graph[name].outputs))}
    rows = _reached(graph, numbers & regions.by_value, numbers.__contains__)
    forward = regions.forward | (between - adjoint - rows)
    backward = between - forward
    readers = [
        name
        for name in backward
        if any(t.op in regions.differing and t.op in forward for t in graph[name].inputs)
    ]
    core = frozenset(graph.data_ancestors(readers) & backward)
    return replace(regions, forward=frozenset(forward), core=core, tail=frozenset(backward - core))


def not_linear(graph: OpGraph, regions: Regions) -> Mapping[str, str]:
    """The adjoints that are not linear in the seed, each with an op that no differentiation has.

    Args:
        regions: what `regions_by_seeds` gave.
    """
    culprits: dict[str, str] = {}
    backward = regions.core | regions.tail
    for name in graph.topological_order():
        if name not in backward:
            continue
        op = graph[name]
        if op.kind in op_types.CONSTANTS or not any(map(_is_real, op.outputs)):
            continue
        adjoints = [
            t.op in backward
            and _is_real(graph.spec(t))
            and graph[t.op].kind not in op_types.CONSTANTS
            for t in op.inputs
        ]
        if not _is_linear(graph, regions, op, adjoints):
            culprits[name] = name
            continue
        sources = [t.op for t, adjoint in zip(op.inputs, adjoints, strict=True) if adjoint]
        found = next((culprits[source] for source in sources if source in culprits), None)
        if found is not None:
            culprits[name] = found
    return culprits


def _is_linear(graph: OpGraph, regions: Regions, op: Op, adjoints: list[bool]) -> bool:
    """Whether an op is linear in those of its inputs that are adjoints, together."""
    if op.kind in op_types.SUMS:
        # What is added to an adjoint must be one, or the same everywhere.
        others = [t for t, adjoint in zip(op.inputs, adjoints, strict=True) if not adjoint]
        return not any(t.op in regions.by_value and _is_real(graph.spec(t)) for t in others)
    # Gradient ops of any kind read forward values, so that they are in the core; what is in the
    # tail has to be of a kind that is known to be linear.
    if op.name in regions.tail and op.kind not in op_types.LINEAR | op_types.BILINEAR:
        return False
    if op.kind in _PRODUCTS and sum(adjoints) > 1:
        return False
    backward = regions.core | regions.tail
    positions = _NOT_LINEAR_IN.get(op.kind, ())
    return op.kind not in _NOT_LINEAR and not any(
        op.inputs[position].op in backward for position in positions
    )


# Seeds ------------------------------------------------------------------------------------------


class _Seeds:
    """Finds the seeds of a step: of each update, and of each summand of what leads to it."""

    def __init__(self, graph: OpGraph, regions: Regions) -> None:
        self._graph, self._regions = graph, regions
        self._backward = regions.core | regions.tail
        self._constants = [
            op.name
            for op in graph
            if op.kind in _SEEDS and op.name not in regions.forward and _is_real(op.outputs[0])
        ]
        self._reach = self._constants_behind()

    def find(self) -> list[str]:
        """The seeds, the one that was found first first."""
        seeds: list[str] = []
        # Several losses have a seed each.
        while (summand := self._without_seed(seeds)) is not None:
            seeds.append(self._best(summand))
        return seeds

    def _constants_behind(self) -> dict[str, int]:
        """Of each op of the backward pass the constants it is computed from, a bit for each."""
        bits = {name: 1 << number for number, name in enumerate(self._constants)}
        reach: dict[str, int] = {}
        for name in self._graph.topological_order():
            if name in self._regions.forward:
                continue
            # A number whose bits are the constants: unions are one operation.
            mask = bits.get(name, 0)
            if self._graph[name].kind not in _WITHOUT_VALUE:
                for tensor in self._graph[name].inputs:
                    mask |= reach.get(tensor.op, 0)
            if mask:
                reach[name] = mask
        return reach

    def _without_seed(self, seeds: list[str]) -> str | None:
        """A summand of what an update reads that depends on the worker and on no seed yet."""
        mask = sum(1 << self._constants.index(seed) for seed in seeds)
        graph = self._graph
        waiting = [t.op for sink in self._regions.sinks for t in graph[sink].inputs]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in self._backward or not self._reach.get(name):
                continue
            seen.add(name)
            if not self._reach[name] & mask:
                return name
            sources = [tensor.op for tensor in graph[name].inputs]
            # One summand may have a seed and another one not: each is looked at.
            if graph[name].kind not in op_types.SUMS:
                sources = [source for source in sources if self._reach.get(source, 0) & mask]
            waiting += sources
        return None

    def _best(self, name: str) -> str:
        """The constant on which most of what is before an op depends; the first of equals."""
        cone = self._graph.data_ancestors([name], stop=self._regions.forward) & self._backward
        counts = [0] * len(self._constants)
        for each in cone:
            mask = self._reach.get(each, 0) & self._reach[name]
            while mask:
                lowest = mask & -mask
                counts[lowest.bit_length() - 1] += 1
                mask ^= lowest
        # A seed reaches more of the backward pass than any other constant: all of it.
        return self._constants[counts.index(max(counts))]


def _is_real(spec: TensorSpec) -> bool:
    return is_differentiable(spec.dtype)


def _is_number(spec: TensorSpec) -> bool:
    """Whether a tensor may hold numbers of rows."""
    return spec.dtype in ("int32", "int64")


def _reached(graph: OpGraph, names: Iterable[str], passes: Callable[[str], bool]) -> set[str]:
    """The given ops and what is computed from them, over ops that pass it on."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += [
                reader
                for reader in graph.consumers[name]
                if passes(reader) and any(t.op == name for t in graph[reader].inputs)
            ]
    return seen
