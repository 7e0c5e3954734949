"""Puts one copy of the user's graph on every worker.

Each copy has its own prefix, its worker's device, its own state (variables, iterators, tables) and
its own random seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from caramel.core import names, op_types
from caramel.core.devices import merge, without_task
from caramel.core.graph_reader import called_functions
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter
from caramel.modifiers.serving.servers import server_devices

_SEED_STRIDE = 0x9E3779B97F4A7C15  # spreads the workers' seeds over all 63 bits
_SEED_BITS = 63
_STATE_KINDS = frozenset({op_types.VARIABLE, "ReadVariableOp", "Const"})
_OFTEN_IDLE = frozenset({"VarIsInitializedOp", "ZerosLike"})
_NAMING = ("_class", "shared_name", "frame_name")  # attributes with names of ops, or like them
_SEED = "seed"
_CONDITIONALS = op_types.CONDITIONALS | {"Switch"}


@dataclass(frozen=True)
class _Copy:
    """One copy to be made."""

    prefix: str
    device: str
    seed_offset: int
    shared_prefix: dict[str, str]  # handles whose state belongs to another copy
    dropped: frozenset[str]
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # of ops that are not on `device`

    def lacks(self, text: str) -> bool:
        """Whether the copy does not have what an input string names."""
        return bool(self.dropped) and names.source_op(text) in self.dropped


@dataclass(frozen=True, slots=True)
class _Original:
    """A node of the user's graph, as it is copied to every worker.

    Attributes:
        node: without its inputs, and mostly without the shapes of its outputs.
        own: attributes that are not the same in all copies, and "seed" if it draws from one.
    """

    node: Any
    name: str
    device: str
    inputs: tuple[str, ...]
    own: frozenset[str]

    @classmethod
    def of(cls, node: Any, *, with_shapes: bool) -> _Original:
        own = {key for key in _NAMING if key in node.attr}
        if node.op in op_types.SEEDED_RANDOM:
            own.add(_SEED)
        bare = tf.compat.v1.NodeDef()
        bare.CopyFrom(node)
        # What differs between copies is filled in for each; the rest is read once.
        del bare.input[:]
        # TensorFlow infers them anyway, and they would take room in every copy.
        if not with_shapes:
            bare.attr.pop("_output_shapes", None)
        return cls(bare, node.name, node.device, tuple(node.input), frozenset(own))


def replicate(graph_def: Any, plan: Plan) -> Any:
    """The graph with a copy of everything on every worker.

    Most variables are initialised and restored in one copy only, so the others go without their
    initial values.
    """
    copied = tf.compat.v1.GraphDef()
    copied.versions.CopyFrom(graph_def.versions)
    copied.library.CopyFrom(graph_def.library)
    for function in copied.library.function:
        for node in function.node_def:
            # Functions are shared by all copies: TensorFlow runs their nodes where their caller is.
            node.device = without_task(node.device)
    seeded = _seeded_functions(copied.library)
    spread = plan.placement is not None  # `place` needs to know what it sends
    originals = [_Original.of(node, with_shapes=spread) for node in graph_def.node]
    for copy in _copies(graph_def, plan):
        renamed = _copy_functions(copied.library, seeded, copy)
        for original in originals:
            if original.name not in copy.dropped:
                _copy_node(copied.node.add(), original, copy, renamed)
    _keep_conditionals_home(copied)
    return copied


def _copies(graph_def: Any, plan: Plan) -> Iterator[_Copy]:
    wiring = _Wiring(graph_def)
    handles = {variable.handle for variable in plan.job.variables}
    idle = wiring.idle()
    broadcast = [v.initializer for v in plan.job.variables if v.name not in plan.job.constant]
    kept = wiring.ancestors(
        v.initializer for v in plan.job.variables if v.name in plan.job.constant
    )
    initial = wiring.only_for(broadcast) - handles - kept
    serving = plan.consequences.serving
    absent = frozenset(serving.absent)
    placed = _placed(graph_def, plan)
    for worker, device in enumerate(plan.job.devices):
        prefix = names.replica_prefix(worker)
        is_source = worker == 0 and not plan.consequences.evaluation
        dropped = (idle if is_source else idle | initial) | absent
        yield _Copy(prefix, device, worker, {}, frozenset(dropped), placed)
    # One more copy on worker 0: it reads worker 0's variables, except local ones, of which it has
    # its own, and keeps the user's seeds.
    if plan.consequences.evaluation:
        home = names.replica_prefix(0)
        own = plan.job.local | plan.job.served
        shared = {v.handle: home for v in plan.job.variables if v.name not in own}
        behind_forward = wiring.behind_forward(plan.job.loss, plan.job.train_op)
        training = wiring.only_for(behind_forward)
        # What only the added edges let wait for training can be run without.
        ordered = {name for edge in plan.consequences.orders for name in (edge.before, edge.after)}
        needed = handles | wiring.ancestors([plan.job.loss, *(ordered - behind_forward)])
        yield _Copy(
            names.EVALUATION,
            plan.job.devices[0],
            0,
            shared,
            frozenset(idle | training - needed),
            placed or server_devices(plan, serving.touching),
        )
    # What a step does once, on the variables of the evaluation copy.
    if plan.job.servers:
        once = {node.name for node in graph_def.node} - serving.done_once
        yield _Copy(
            names.ONCE,
            plan.job.servers[0],
            0,
            dict.fromkeys(handles, names.EVALUATION),
            frozenset(once),
            server_devices(plan, serving.places),
        )


def _placed(graph_def: Any, plan: Plan) -> Mapping[str, str]:
    """The device of each op, where the replica is spread over several."""
    if plan.placement is None:
        return {}
    return {
        node.name: merge(node.device, plan.placement.device_of(node.name))
        for node in graph_def.node
    }


def _copy_node(
    target: Any, original: _Original, copy: _Copy, renamed_functions: dict[str, str]
) -> None:
    """Fill `target` with a node as it stands in the copy."""
    target.CopyFrom(original.node)
    target.name = names.in_copy(copy.prefix, original.name)
    target.device = copy.elsewhere.get(original.name) or merge(original.device, copy.device)
    target.input.extend(_read_in_copy(original, copy))
    if original.own:
        _make_own(target, original, copy)
    if renamed_functions:
        _rename_functions(target, renamed_functions)


def _read_in_copy(original: _Original, copy: _Copy) -> Iterator[str]:
    """What a node reads in the copy."""
    for text in original.inputs:
        if not copy.lacks(text):
            yield names.with_prefix(copy.prefix, text)
        # What is done once reads nothing of what workers compute but raw gradients: until they are
        # aggregated those of worker 0. Nor does it wait for anything else of theirs.
        elif not text.startswith("^"):
            yield names.with_prefix(names.replica_prefix(0), text)


def _make_own(target: Any, original: _Original, copy: _Copy) -> None:
    """Give a node what is not the same in all copies."""
    if "_class" in original.own:
        _rename_colocation(target, copy)
    if "shared_name" in original.own:
        owner = copy.shared_prefix.get(original.name, copy.prefix)
        shared = target.attr["shared_name"].s.decode() or original.name
        target.attr["shared_name"].s = names.in_copy(owner, shared).encode()
    if "frame_name" in original.own:  # TensorFlow takes loops of equal name for one loop
        frame = original.node.attr["frame_name"].s
        target.attr["frame_name"].s = b"%s/%s" % (copy.prefix.encode(), frame)
    if _SEED in original.own and copy.seed_offset:
        offset_seed(target, copy.seed_offset)


def _rename_colocation(node: Any, copy: _Copy) -> None:
    kept = []
    if copy.elsewhere:  # its ops are spread over several tasks
        del node.attr["_class"]
        return
    for group in node.attr["_class"].list.s:
        op = names.colocated_op(group.decode())
        if op not in copy.dropped:
            kept.append(names.colocation_with_prefix(copy.prefix, group.decode()).encode())
    del node.attr["_class"]
    if kept:
        node.attr["_class"].list.s.extend(kept)


def _keep_conditionals_home(graph_def: Any) -> None:
    """Let conditionals read a copy of what is fed."""
    # TensorFlow moves a ``Switch`` to where its value comes from, and what is fed comes from the
    # client's task, whatever the device of the placeholder.
    fed = {node.name: node for node in graph_def.node if node.op in op_types.PLACEHOLDERS}
    conditionals = [node for node in graph_def.node if node.op in _CONDITIONALS]
    writer, copies = GraphWriter(graph_def), {}
    for node in conditionals:
        worker = names.worker_of(node.name)
        for position, text in enumerate(node.input):
            source = names.parse_input(text)
            if source is None or source.op not in fed or worker is None:
                continue
            if source not in copies and names.is_in_replica(worker, source.op):
                name = names.added(worker, "fed", names.without_prefix(source.op))
                copies[source] = writer.add(
                    name, "Identity", [source], device=fed[source.op].device
                )
                writer.last.attr["T"].CopyFrom(fed[source.op].attr["dtype"])
            node.input[position] = names.input_string(copies.get(source, source))


# Random seeds -----------------------------------------------------------------------------------


def offset_seed(node: Any, offset: int) -> None:
    """Give a random op another seed; one without any draws differently everywhere by itself."""
    if any(key in node.attr and node.attr[key].i for key in ("seed", "seed2")):
        seed = node.attr["seed2"].i + offset * _SEED_STRIDE
        node.attr["seed2"].i = seed % (1 << _SEED_BITS)


def _seeded_functions(library: Any) -> dict[str, Any]:
    """Library functions that draw from a seed, directly or in a function they call."""
    functions = {function.signature.name: function for function in library.function}
    found = {
        name
        for name, function in functions.items()
        if any(node.op in op_types.SEEDED_RANDOM for node in function.node_def)
    }
    grown = True
    while grown:
        callers = {
            name
            for name, function in functions.items()
            if any(found.intersection(called_functions(node)) for node in function.node_def)
        }
        grown = not callers <= found
        found |= callers
    return {name: function for name, function in functions.items() if name in found}


def _copy_functions(library: Any, seeded: dict[str, Any], copy: _Copy) -> dict[str, str]:
    """Add the copy's own versions of functions with seeds; returns their names by the old ones."""
    # Worker 0 draws what one device would.
    if not copy.seed_offset:
        return {}
    renamed = {name: names.function_in_replica(copy.prefix, name) for name in seeded}
    for name, function in seeded.items():
        own = library.function.add()
        own.CopyFrom(function)
        own.signature.name = renamed[name]
        for node in own.node_def:
            if node.op in op_types.SEEDED_RANDOM:
                offset_seed(node, copy.seed_offset)
            _rename_functions(node, renamed)
    # Where a function was copied, so must be the gradient that is registered for it.
    own_gradients = [
        (renamed[g.function_name], renamed.get(g.gradient_func, g.gradient_func))
        for g in library.gradient
        if g.function_name in renamed
    ]
    for function_name, gradient in own_gradients:
        library.gradient.add(function_name=function_name, gradient_func=gradient)
    return renamed


def _rename_functions(node: Any, renamed: dict[str, str]) -> None:
    for key in list(node.attr):
        value = node.attr[key]
        if value.HasField("func"):
            value.func.name = renamed.get(value.func.name, value.func.name)
        elif value.HasField("list"):
            for function in value.list.func:
                function.name = renamed.get(function.name, function.name)


# What a copy can do without ---------------------------------------------------------------------


class _Wiring:
    """Which node reads which, by name."""

    def __init__(self, graph_def: Any) -> None:
        self._sources = {
            node.name: [names.source_op(text) for text in node.input] for node in graph_def.node
        }
        self._kinds = {node.name: node.op for node in graph_def.node}
        self._readers: dict[str, list[str]] = {name: [] for name in self._sources}
        for name, read in self._sources.items():
            for source in read:
                self._readers[source].append(name)

    def only_for(self, roots: Iterable[str]) -> set[str]:
        """The roots, what waits for them, and what only those are computed from."""
        found = {root for root in roots if root in self._sources}
        waiting = list(found)
        while waiting:
            for reader in self._readers[waiting.pop()]:
                if reader not in found:
                    found.add(reader)
                    waiting.append(reader)
        waiting = [source for name in found for source in self._sources[name]]
        while waiting:
            name = waiting.pop()
            if name not in found and all(reader in found for reader in self._readers[name]):
                found.add(name)
                waiting.extend(self._sources[name])
        return found

    def behind_forward(self, loss: str, train_op: str) -> set[str]:
        """What the train op waits for and is computed from forward values: differentiation,
        updates, but not a learning rate's schedule."""
        forward = self.ancestors([loss])
        values = {name for name in forward if self._kinds[name] not in _STATE_KINDS}
        found: set[str] = set()
        waiting = [reader for name in values for reader in self._readers[name]]
        training = self.ancestors([train_op]) - forward
        while waiting:
            name = waiting.pop()
            if name in training and name not in found:
                found.add(name)
                waiting.extend(self._readers[name])
        return found

    def ancestors(self, roots: Iterable[str]) -> set[str]:
        """The given ops and everything they wait for."""
        found: set[str] = set()
        waiting = [root for root in roots if root in self._sources]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting.extend(self._sources[name])
        return found

    def idle(self) -> set[str]:
        """Ops that TensorFlow makes in passing and that nothing reads."""
        return {
            name
            for name, kind in self._kinds.items()
            if kind in _OFTEN_IDLE and not self._readers[name]
        }
