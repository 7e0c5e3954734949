"""Which ops may TensorFlow compute as one?

Where it computes with oneDNN, TensorFlow merges pairs of ops after the graph was cut into one part
for each worker. What comes out waits for all that either op waits for, and for it waits all that
waits for either. So a control edge that is harmless in the graph may close a cycle in the merged
one. No later check of TensorFlow's sees that: the step never ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from caramel.core.decision import Edge
from caramel.core.facts import Fusions, TrainingJob
from caramel.core.graph import Op, OpGraph

# The pairs of TensorFlow 2.21 (``mkl_layout_pass.cc``, its merge rules; each was tried). What that
# pass does besides renames single ops. Grappler, whose remapper merges ``MatMul`` with ``BiasAdd``,
# activations, batch normalisation and more, is off in sessions (`runtime.execution.runner`), and so
# are common subexpressions. The remapper leaves ops alone that control edges lead to or from.
#
# A reader, and the op of which it is the only reader. (A ``Conv2D`` must have no padding of its own
# to be merged with a ``Pad``; that is not looked at.)
_CHAINS = {"BiasAdd": "Conv2D", "Conv2D": "Pad", "_FusedConv2D": "Pad"}
# Two that both read the gradient of a layer's output, through nothing else, and which input that
# is. They need not read the same output of that op.
_SIBLINGS = {"Conv2DBackpropFilter": 2, "BiasAddGrad": 0}
_DTYPES = frozenset({"float32", "bfloat16", "float16", "unknown"})


def fused_ops(graph: OpGraph, job: TrainingJob) -> Fusions:
    """The ops of a training step that may be computed as one."""
    return fusions_among(graph, graph.ancestors([job.train_op, job.loss.op]))


def fusions_among(graph: OpGraph, names: Container[str]) -> Fusions:
    """The ops among `names` that may be computed as one where only those run.

    Those that wait for each other by way of others are none: TensorFlow could not run them.
    """
    found = matches(graph, names, _dtype_of)
    if find_cycle(graph, found) is None:
        return found
    kept: list[tuple[str, ...]] = []
    for group in found.groups:
        if find_cycle(graph, Fusions((*kept, group))) is None:
            kept.append(group)
    return Fusions(tuple(kept))


def matches(graph: OpGraph, names: Container[str], dtype_of: Callable[[Op], str]) -> Fusions:
    """The ops among `names` that TensorFlow takes for one, whether or not it could run them then.

    Args:
        dtype_of: the dtype in which an op computes, "unknown" if it is not known.
    """
    return _joined(graph, _pairs(graph, names, dtype_of))


def opened(
    graph: OpGraph,
    found: Fusions,
    edges: Iterable[Edge] = (),
    *,
    among: Container[str] | None = None,
) -> Fusions:
    """The groups of which more than one op is waited for by others.

    Only these matter: a pair of which only the last op is waited for closes no cycle, since that op
    waits for the other anyway.

    Args:
        edges: count as those of the graph.
        among: only what these ops wait for counts; None for all.
    """
    added: dict[str, set[str]] = {}
    for edge in edges:
        added.setdefault(edge.before, set()).add(edge.after)

    def is_exit(name: str, group: tuple[str, ...]) -> bool:
        waiting = {*graph.consumers[name], *added.get(name, ())}.difference(group)
        return any(among is None or each in among for each in waiting)

    return Fusions(
        tuple(own for own in found.groups if sum(is_exit(name, own) for name in own) > 1)
    )


def find_cycle(
    graph: OpGraph, found: Fusions, edges: Sequence[Edge] = ()
) -> tuple[str, ...] | None:
    """Ops around a cycle that is there only where each group is one op; None if there is none.

    Each is waited for by the next one; a group is called by its first op. What closes loops does
    not count, nor what joins ops of one group.

    Args:
        edges: are added to the graph; those of ops that it does not have are left alone.
    """
    groups = opened(graph, found, edges).groups
    if not groups:
        return None
    cycle = _cycle(graph, {name: group[0] for group in groups for name in group}, edges)
    # A cycle that is there without fusions is another mistake.
    return None if cycle is None or _cycle(graph, {}, edges) else cycle


def waits_for_itself(graph: OpGraph, found: Fusions, edges: Sequence[Edge]) -> bool:
    """Whether, with edges that are added to the graph, any op waits for itself, each group being
    one op or several."""
    return _cycle(graph, {}, edges) is not None or find_cycle(graph, found, edges) is not None


def _cycle(graph: OpGraph, one: Mapping[str, str], edges: Sequence[Edge]) -> tuple[str, ...] | None:
    """Ops around a cycle; those in `one` go by the names that it has for them."""
    waits: TopologicalSorter[str] = TopologicalSorter()
    for op in graph:
        own = one.get(op.name, op.name)
        # These edges close loops.
        before = {one.get(s, s) for s in op.sources if graph[s].kind != "NextIteration"}
        waits.add(own, *(before - {own} if op.name in one else before))
    for edge in edges:
        first, second = one.get(edge.before, edge.before), one.get(edge.after, edge.after)
        if first != second and edge.before in graph and edge.after in graph:
            waits.add(second, first)
    try:
        waits.prepare()
    except CycleError as error:
        return tuple(error.args[1])
    return None


def _pairs(
    graph: OpGraph, names: Container[str], dtype_of: Callable[[Op], str]
) -> Iterator[tuple[str, str]]:
    siblings: dict[str, list[Op]] = {}
    for op in graph:
        if op.kind not in _CHAINS and op.kind not in _SIBLINGS:
            continue
        if op.name not in names or dtype_of(op) not in _DTYPES:
            continue
        if op.kind in _SIBLINGS:
            siblings.setdefault(op.inputs[_SIBLINGS[op.kind]].op, []).append(op)
            continue
        for tensor in op.inputs:
            source = tensor.op
            if graph[source].kind == _CHAINS[op.kind] and _readers(graph, source, names) == 1:
                yield source, op.name
    for own in siblings.values():
        # Two of one kind are no pair.
        if len({op.kind for op in own}) > 1:
            yield from ((own[0].name, op.name) for op in own[1:])


def _readers(graph: OpGraph, source: str, names: Container[str]) -> int:
    """How many of some ops read what another one puts out, rather than only wait for it."""
    waiting = (graph[name] for name in graph.consumers[source] if name in names)
    return sum(any(tensor.op == source for tensor in op.inputs) for op in waiting)


def _joined(graph: OpGraph, pairs: Iterable[tuple[str, str]]) -> Fusions:
    """Groups of all that pairs join, directly or by way of others."""
    towards: dict[str, str] = {}  # one op of the group

    def root(name: str) -> str:
        while towards.setdefault(name, name) != name:
            name = towards[name]
        return name

    for first, second in pairs:
        towards[root(second)] = root(first)
    groups: dict[str, list[str]] = {}
    for name in graph.ops if towards else ():
        if name in towards:
            groups.setdefault(root(name), []).append(name)
    return Fusions(tuple(map(tuple, groups.values())))


def _dtype_of(op: Op) -> str:
    return op.outputs[0].dtype if op.outputs else "unknown"
