"""Which part of a training step is computation, and what connects it with the rest?

Computation is what differentiation and the loss wait for, as far as it depends on the examples or
on a variable, and what else is computed from that without a purpose (differentiation computes the
gradient of the images too). Reading variables, inputs, post-processing of gradients, updates and
averages are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

from benchmarks.emulate.errors import EmulationError
from caramel import Context
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.core import op_types
from caramel.core.facts import Cut, GradientFrontier, StateAccess, WorkerInputs
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef

Inputs = Literal["drop", "keep"]

_INPUTS = op_types.PLACEHOLDERS | op_types.INPUTS
_LOOPS_AND_CONDITIONALS = frozenset({"Enter", "Exit", "Merge", "NextIteration", "Switch"})


@dataclass(frozen=True, slots=True)
class Links:
    """What an op of the computation reads from outside of it.

    Attributes:
        tensors: values that depend on a variable, and inputs if they are kept.
        handles: handles of variables that it reads itself, such as an embedding's.
        controls: ops that write variables before it may run.
    """

    tensors: tuple[TensorRef, ...] = ()
    handles: tuple[TensorRef, ...] = ()
    controls: tuple[str, ...] = ()


@dataclass(frozen=True)
class Computation:
    """The computation of a training step.

    Attributes:
        graph: the whole graph.
        cuts: the raw gradients and their readers.
        order: names of its ops, each after what it reads.
        before: the ops of the computation that each of them waits for.
        links: what they read from outside.
        kept: names of all ops that stay: everything else that the step and the variables need.
        exports: tensors of the computation that something outside reads, the raw gradients and the
            loss among them.
        awaited: ops of the computation that something outside names as an input of any sort.
    """

    graph: OpGraph
    cuts: tuple[Cut, ...]
    order: tuple[str, ...]
    before: Mapping[str, tuple[str, ...]]
    links: Mapping[str, Links]
    kept: frozenset[str]
    exports: frozenset[TensorRef]
    awaited: frozenset[str] = field(default_factory=frozenset)


def computation(context: Context, *, inputs: Inputs = "drop") -> Computation:
    """The computation of a job's training step.

    Args:
        inputs: whether the computation goes on reading placeholders and input pipelines.

    Raises:
        EmulationError: a loop or conditional of v1, or an op that writes variables, is part of it.
    """
    known = _COMPUTATIONS.setdefault(context, {})
    if inputs not in known:
        known[inputs] = _found(context, inputs)
    return known[inputs]


# What was found of each context: its operations are counted and it is emulated, often repeatedly.
_COMPUTATIONS: WeakKeyDictionary[Context, dict[Inputs, Computation]] = WeakKeyDictionary()


def _found(context: Context, inputs: Inputs) -> Computation:
    graph, job = context.op_graph, context.job
    analysis = Analysis([graph, job], ANALYZERS)
    cuts = analysis.get(GradientFrontier).cuts
    access = analysis.get(StateAccess)
    gradients = [tensor for cut in cuts for tensor in cut.gradient.tensors]
    step = graph.ancestors([job.train_op, job.loss.op])
    ends = [tensor.op for tensor in (*gradients, job.loss)]
    after = _after(graph, analysis.get(WorkerInputs), access)
    _refuse(graph, _data_ancestors(graph, ends) & after, access)
    tail = _data_descendants(graph, (name for cut in cuts for name in cut.consumers))
    region = _region(graph, step & after, ends, tail, step & set(access.writes))
    order = tuple(name for name in graph.topological_order() if name in region)
    links = _links(graph, order, region, access, inputs)
    kept = _kept(context, region, links)
    used = {t for name in kept for t in graph[name].inputs if t.op in region}
    controls = {c for name in kept for c in graph[name].control_inputs if c in region}
    exports = frozenset(used | {t for t in (*gradients, job.loss) if t.op in region})
    return Computation(
        graph=graph,
        cuts=cuts,
        order=order,
        before={
            name: tuple(dict.fromkeys(s for s in graph[name].sources if s in region))
            for name in order
        },
        links=links,
        kept=frozenset(kept),
        exports=exports,
        awaited=frozenset(controls | {tensor.op for tensor in exports}),
    )


def _after(graph: OpGraph, inputs: WorkerInputs, access: StateAccess) -> set[str]:
    """Ops that depend on inputs or variables by data, and those that only wait for such ops."""

    def readers(op: Op) -> Iterable[str]:
        yield from _readers(graph, op)
        yield from (name for name in graph.consumers[op.name] if graph[name].kind == "NoOp")

    return _reach([*inputs.reasons, *inputs.scalar_only, *access.reads], readers, graph)


def _region(
    graph: OpGraph, after: set[str], ends: Iterable[str], tail: set[str], writers: set[str]
) -> frozenset[str]:
    """What the ends wait for, and what leads nowhere; see the module's docstring.

    Args:
        after: ops of the step that depend on inputs or variables.
        ends: ops that put out raw gradients and the loss.
        tail: what is computed from raw gradients.
        writers: ops of the step that write variables.
    """
    border = tail | writers
    wanted = graph.ancestors(ends, stop=frozenset(border)) - border
    elsewhere = _data_ancestors(graph, writers) | _all_descendants(graph, tail)
    return frozenset(
        name
        for name in after & (wanted | (after - elsewhere))
        if graph[name].kind not in _INPUTS and graph[name].kind != "ReadVariableOp"
    )


def _refuse(graph: OpGraph, computing: set[str], access: StateAccess) -> None:
    for name in sorted(computing):
        if graph[name].kind in _LOOPS_AND_CONDITIONALS:
            raise EmulationError(
                f"'{name}' ({graph[name].kind}) is part of a v1 loop or conditional inside the "
                "computation; build the graph with tf.compat.v1.enable_control_flow_v2()"
            )
        if name in access.writes:
            raise EmulationError(
                f"'{name}' ({graph[name].kind}) writes variables inside the computation, so it "
                "cannot be replaced by a wait"
            )


def _links(
    graph: OpGraph,
    order: Iterable[str],
    region: frozenset[str],
    access: StateAccess,
    inputs: Inputs,
) -> dict[str, Links]:
    """What the ops of the region read from outside, where that is to be kept."""
    wanted = _data_descendants(graph, access.reads) - region
    if inputs == "keep":
        wanted |= {op.name for op in graph if op.kind in _INPUTS}
    writing = _all_descendants(graph, access.writes)
    links = {}
    for name in order:
        op = graph[name]
        outside = [tensor for tensor in op.inputs if tensor.op not in region]
        handles = [t for t in outside if graph.spec(t).dtype == "resource"]
        found = Links(
            tensors=tuple(dict.fromkeys(t for t in outside if t.op in wanted)),
            handles=tuple(handles) if name in access.reads else (),
            controls=tuple(c for c in op.control_inputs if c not in region and c in writing),
        )
        if found != Links():
            links[name] = found
    return links


def _kept(context: Context, region: frozenset[str], links: Mapping[str, Links]) -> set[str]:
    """Everything outside the region that the step, the variables and the region need."""
    job = context.job
    roots = [job.train_op, job.loss.op, *job.table_initializers]
    for variable in job.variables:
        roots += [variable.handle, variable.initializer, variable.read]
    for link in links.values():
        roots += [tensor.op for tensor in (*link.tensors, *link.handles)]
        roots += link.controls
    return context.op_graph.ancestors(roots, stop=region) - region


def _data_ancestors(graph: OpGraph, names: Iterable[str]) -> set[str]:
    return _reach(names, lambda op: (tensor.op for tensor in op.inputs), graph)


def _data_descendants(graph: OpGraph, names: Iterable[str]) -> set[str]:
    return _reach(names, lambda op: _readers(graph, op), graph)


def _readers(graph: OpGraph, op: Op) -> Iterator[str]:
    """The ops that read an output of an op."""
    for name in graph.consumers[op.name]:
        if any(tensor.op == op.name for tensor in graph[name].inputs):
            yield name


def _all_descendants(graph: OpGraph, names: Iterable[str]) -> set[str]:
    return _reach(names, lambda op: graph.consumers[op.name], graph)


def _reach(names: Iterable[str], step: Callable[[Op], Iterable[str]], graph: OpGraph) -> set[str]:
    """The given names and everything that `step` leads to from them."""
    seen: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(step(graph[name]))
    return seen
