"""Lowers a training step that is a function of TensorFlow 2 to a single-device graph.

The function is traced once, with all functions that it calls inlined. A variable of the graph
stands for each variable that it captures; its value is given by assignment.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from caramel.capture.counted_names import CountedNames, rename_in_function, rename_ops
from caramel.capture.graph_names import describe
from caramel.capture.grouped_convolutions import make_depthwise
from caramel.capture.stand_ins import variables_like
from caramel.capture.structures import PerWorker
from caramel.core import op_types
from caramel.core.errors import GraphError, LossScaleError, NotTensorFlowError, UnsupportedOpError
from caramel.core.names import REPORT, source_op
from caramel.core.util.gc_pause import held_back

tf1 = tf.compat.v1

_LOSS = "caramel_loss"
_STEP = "caramel_step"
_tracing = threading.local()  # `losses`: those marked in the function that is traced


@dataclass(frozen=True)
class LoweredStep:
    """A step as a graph.

    Attributes:
        graph: the single-device graph.
        train_op: does all that the function does.
        loss: what is minimised.
        inputs: the placeholders of the function's tensors, in the order of `tf.nest.flatten`.
        outputs: what the function returns, in its structure; its tensors are the graph's.
        variables: the captured variables, by the names of those that stand for them.
        written: the names of those that the step writes.
        scalars: captured variables that are numbers which the step only reads, by the names of the
            placeholders that stand for them.
        reports: vectors with the values that variables have when the step has written them, each
            with the names of these variables.
    """

    graph: tf.Graph
    train_op: tf.Operation
    loss: tf.Tensor
    inputs: tuple[tf.Tensor, ...]
    outputs: Any
    variables: Mapping[str, tf.Variable]
    written: frozenset[str]
    scalars: Mapping[str, tf.Variable]
    reports: tuple[tuple[tf.Tensor, tuple[str, ...]], ...] = ()


def loss(value: Any) -> Any:
    """Mark what a step minimises, inside the step, and return it.

    What is marked several times (the losses of a GAN) is added up. Nothing is done outside of a
    step that Caramel traces.
    """
    losses = getattr(_tracing, "losses", None)
    if losses is not None:
        losses.append(value)
    return value


@held_back()
def lower(
    function: Callable[..., Any],
    signature: Sequence[Any],
    *,
    named: Mapping[str, Any] | None = None,
    reported: Callable[[], Sequence[tf.Variable]] = tuple,
    losses: list[Any] | None = None,
    trains: bool = True,
) -> LoweredStep:
    """The graph of a step.

    Args:
        function: a Python function or a `tf.function`, which marks its loss by `loss`.
        signature: for each argument a `tf.TensorSpec`, or a structure of them. Other values, such
            as truth values, become part of the graph.
        named: the same for arguments that are given by name.
        reported: asked, when the function was traced, for the variables whose values are to be told
            after each step.
        losses: is filled while the function is traced with losses that count where it marks none.
        trains: False for a step that minimises nothing, so that it may do without a loss.

    Raises:
        GraphError: it cannot be traced, or has no loss; the subclass says why.
    """
    python = getattr(function, "python_function", function)
    if not callable(python):
        raise NotTensorFlowError(f"a step must be a function, not {describe(function)}")
    unmarked = [] if losses is None else losses
    with _inlined(), _marks() as marked:
        given, apart = (tuple(signature), dict(named or {})), list[bool]()
        traced = _traced(python, given, (marked, unmarked), apart)
        found = marked or unmarked
        if not found and not trains:
            found = [0.0]
        if not found:
            raise LossScaleError(
                "the step does not say what it minimises: mark its loss inside the step by "
                "'loss = caramel.loss(loss)'"
            )
        if any(isinstance(each, tf.Tensor) and each.graph is not traced.graph for each in found):
            raise LossScaleError(
                "a loss is marked inside of a conditional or a loop; return it from there, and "
                "mark what comes out"
            )
        with traced.graph.as_default():
            found = [tf.convert_to_tensor(each) for each in found]
            total = found[0] if len(found) == 1 else tf.add_n(found)
            tf.identity(total, name=_LOSS)
    return _Lowering(traced).lowered(reported(), apart)


def _traced(
    python: Callable[..., Any],
    signature: tuple[Sequence[Any], Mapping[str, Any]],
    losses: Iterable[list[Any]],
    apart: list[bool],
) -> Any:
    """The function's graph; `losses` then have what was marked in it.

    Args:
        python: the function.
        signature: of its arguments, and of those that are given by name.
        losses: are filled.
        apart: gets of each output whether the function wants it of each worker (`per_worker`).

    Raises:
        GraphError: Python needs a value that is known only when the step runs.
    """

    def step(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        for found in losses:  # it is traced twice if it makes variables when it is first called
            found.clear()
        return _noted(python(*arguments, **named), apart)

    try:
        return tf.function(step).get_concrete_function(*signature)
    except GraphError:
        raise
    except Exception as error:
        raise GraphError(
            "the step cannot be traced. It runs on other machines, as a graph, each of which has "
            "its own part of a batch: nothing in it can ask for the value of a tensor (.numpy(), "
            "float(), a Python 'if' over it that tf.function does not convert), or for the number "
            f"of examples (.shape[0]; tf.shape tells it). {str(error).strip()}"
        ) from error


def _noted(result: Any, apart: list[bool]) -> Any:
    """What a function returns, without the marks of `per_worker`, which are noted."""
    flat = tf.nest.flatten(result)
    apart[:] = [isinstance(each, PerWorker) for each in flat]
    plain = [each.fetch if isinstance(each, PerWorker) else each for each in flat]
    return tf.nest.pack_sequence_as(result, plain) if any(apart) else result


def _marked(outputs: Any, apart: Sequence[bool]) -> Any:
    """The outputs with these marks again."""
    if not any(apart):
        return outputs
    pairs = zip(tf.nest.flatten(outputs), apart, strict=True)
    return tf.nest.pack_sequence_as(outputs, [PerWorker(v) if is_own else v for v, is_own in pairs])


@contextmanager
def _inlined() -> Iterator[None]:
    """Functions that are called while one is traced become part of it."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


@contextmanager
def _marks() -> Iterator[list[Any]]:
    before = getattr(_tracing, "losses", None)
    _tracing.losses = []
    try:
        yield _tracing.losses
    finally:
        _tracing.losses = before


@dataclass
class _Stand:
    """What stands in the graph for what a function takes from outside."""

    tensors: dict[str, tf.Tensor] = field(default_factory=dict)  # by the function's placeholder
    variables: dict[str, tf.Variable] = field(default_factory=dict)
    scalars: dict[str, tf.Variable] = field(default_factory=dict)
    own: dict[int, tf.Variable] = field(default_factory=dict)  # by the captured variable's id


class _Lowering:
    """Makes a graph of a traced function."""

    def __init__(self, traced: Any) -> None:
        self._traced = traced
        self._graph_def = traced.graph.as_graph_def(add_shapes=True)
        split_tuples(self._graph_def)
        make_depthwise(self._graph_def)
        self._nodes = {node.name: node for node in self._graph_def.node}
        self._readers: dict[str, list[Any]] = {}  # nodes by the op that they read
        for node in self._graph_def.node:
            for name in set(map(source_op, node.input)):
                self._readers.setdefault(name, []).append(node)
        self._counted = CountedNames()
        self._names: dict[str, str] = {}  # those of ops in the graph that is made

    def lowered(self, reported: Sequence[tf.Variable], apart: Sequence[bool]) -> LoweredStep:
        graph, stand = tf.Graph(), _Stand()
        with graph.as_default():
            self._capture(stand)
            inputs = tuple(self._placeholders(stand))
            self._import(stand)
            done = [graph.get_operation_by_name(op) for op in self._written_ops()]
            outputs = tf.nest.map_structure(
                lambda value: self._output(graph, stand, value), self._traced.structured_outputs
            )
            outputs = _marked(outputs, apart)
            train_op = tf.group(*done, name=_STEP)
            reports = tuple(_reports(graph, stand, reported))
        loss = graph.get_tensor_by_name(f"{_LOSS}:0")
        return LoweredStep(
            graph=graph,
            train_op=train_op,
            loss=loss,
            inputs=inputs,
            outputs=outputs,
            variables=stand.variables,
            written=frozenset(v.op.name for v in stand.own.values() if any(_writers(v))),
            scalars=stand.scalars,
            reports=reports,
        )

    def _capture(self, stand: _Stand) -> None:
        """Make a variable for each that the function captures."""
        by_handle = {id(variable.handle): variable for variable in self._traced.graph.variables}
        waiting: list[tuple[str, str, Any]] = []

        def make() -> None:
            """Those that come one after the other, at once."""
            likes = [(own_name, variable) for _, own_name, variable in waiting]
            for (name, _, variable), own in zip(waiting, variables_like(likes), strict=True):
                stand.tensors[name], stand.own[id(variable)] = own.handle, own
                stand.variables[own.op.name] = variable
            waiting.clear()

        for outer, inner in self._traced.graph.captures:
            variable, name = by_handle.get(id(outer)), inner.op.name
            if variable is None:
                make()
                stand.tensors[name] = _constant(outer)
            elif self._is_number(variable, name):
                make()
                placeholder = tf1.placeholder(variable.dtype, [], name=self._name_of(variable))
                self._read_as_value(name)
                stand.tensors[name] = placeholder
                stand.scalars[placeholder.op.name] = variable
            else:
                waiting.append((name, self._name_of(variable), variable))
        make()

    def _placeholders(self, stand: _Stand) -> Iterator[tf.Tensor]:
        captured = len(self._traced.graph.captures)
        own = self._traced.inputs[: len(self._traced.inputs) - captured]
        for number, tensor in enumerate(own):
            placeholder = tf1.placeholder(tensor.dtype, tensor.shape, name=f"input_{number}")
            stand.tensors[tensor.op.name] = placeholder
            yield placeholder

    def _import(self, stand: _Stand) -> None:
        kept = tf1.GraphDef(versions=self._graph_def.versions, library=self._graph_def.library)
        kept.node.extend(n for n in self._graph_def.node if n.name not in stand.tensors)
        mapped = {f"{name}:0": tensor for name, tensor in stand.tensors.items()}
        used = {text for node in kept.node for text in node.input}
        used |= {f"{text}:0" for text in used}
        mapped = {name: tensor for name, tensor in mapped.items() if name in used}
        self._names = {node.name: self._counted.of_op(node.name) for node in kept.node}
        rename_ops(kept.node, self._names)
        for function in kept.library.function:
            rename_in_function(function)
        tf.graph_util.import_graph_def(kept, input_map=mapped, name="")

    def _written_ops(self) -> Iterator[str]:
        """What the function does besides computing what it returns."""
        for op in self._traced.graph.control_outputs:
            yield self._names[op.name]

    def _name_of(self, variable: Any) -> str:
        """What stands for a variable is called."""
        path = variable.name.partition(":")[0]
        allowed = re.sub(r"[^A-Za-z0-9_.\\/-]", "_", path).lstrip("_/\\-.")
        return self._counted.of_variable(allowed or "variable")

    def _is_number(self, variable: Any, name: str) -> bool:
        """Whether a captured variable is a number that the step only reads."""
        if variable.trainable or variable.shape.rank != 0:
            return False
        readers = self._readers.get(name, [])
        return bool(readers) and all(node.op == "ReadVariableOp" for node in readers)

    def _read_as_value(self, name: str) -> None:
        """Let what reads a variable take what is fed."""
        for node in self._readers[name]:
            if node.op == "ReadVariableOp":
                dtype = node.attr["dtype"].type
                node.op = "Identity"
                node.attr.clear()
                node.attr["T"].type = dtype

    def _output(self, graph: tf.Graph, stand: _Stand, value: Any) -> Any:
        """What the function's last op reads: that op itself waits for all updates."""
        if not isinstance(value, tf.Tensor):
            return value
        node = self._nodes.get(value.op.name)
        text = value.name
        if node is not None and node.op == "Identity":
            text = node.input[0]
        name, _, index = text.partition(":")
        if name in stand.tensors:
            return stand.tensors[name]
        return graph.get_tensor_by_name(f"{self._names[name]}:{index or 0}")


def _reports(
    graph: tf.Graph, stand: _Stand, reported: Sequence[tf.Variable]
) -> Iterator[tuple[tf.Tensor, tuple[str, ...]]]:
    """A vector for each dtype, with what variables are when they are written."""
    by_dtype: dict[Any, list[tuple[str, tf.Tensor]]] = {}
    for variable in reported:
        own = stand.own.get(id(variable))
        if own is None:  # the step does not use it
            continue
        with graph.control_dependencies(list(_writers(own))):
            value = tf.raw_ops.ReadVariableOp(resource=own.handle, dtype=own.dtype)
        found = by_dtype.setdefault(own.dtype, [])
        found.append((own.op.name, tf.reshape(value, [-1])))
    for dtype, values in by_dtype.items():
        vector = tf.concat([value for _, value in values], 0, name=f"{REPORT}_{dtype.name}")
        yield vector, tuple(name for name, _ in values)


def _writers(variable: tf.Variable) -> Iterator[tf.Operation]:
    """The ops of a step that may write a variable, as a branch of a conditional may."""
    for op in variable.handle.consumers():
        only_looks = op.type in op_types.ONLY_READ_VARIABLES | op_types.NO_VALUE_OF_VARIABLES
        if not only_looks and op is not variable.initializer:
            yield op


def split_tuples(graph_def: Any) -> None:
    """Let each tensor that passes an IdentityN pass an op of its own, in place.

    Keras passes all gradients through one, so that each update would wait for all of them.
    """
    wide = {node.name: node for node in graph_def.node if node.op == "IdentityN"}
    if not wide:
        return
    alone = [own for node in wide.values() for own in _split(node)]
    counts = {name: sum(text[0] != "^" for text in node.input) for name, node in wide.items()}
    kept = tf1.GraphDef()
    kept.node.extend([*(n for n in graph_def.node if n.name not in wide), *alone])
    for node in kept.node:
        if wide.keys().isdisjoint(map(source_op, node.input)):
            continue
        read: list[str] = []
        for text in node.input:
            name, _, index = text.removeprefix("^").partition(":")
            if name not in wide:
                read.append(text)
            elif text.startswith("^"):
                read += [f"^{name}/{number}" for number in range(counts[name])]
            else:
                read.append(f"{name}/{index or 0}")
        del node.input[:]
        node.input.extend(read)
    del graph_def.node[:]
    graph_def.node.extend(kept.node)


def _split(node: Any) -> Iterator[Any]:
    controls = [text for text in node.input if text.startswith("^")]
    shapes = node.attr["_output_shapes"].list.shape if "_output_shapes" in node.attr else ()
    for number, text in enumerate(text for text in node.input if not text.startswith("^")):
        own = tf1.NodeDef(name=f"{node.name}/{number}", op="Identity", device=node.device)
        own.input.extend([text, *controls])
        own.attr["T"].type = node.attr["T"].list.type[number]
        if shapes:
            own.attr["_output_shapes"].list.shape.add().CopyFrom(shapes[number])
        yield own


def _constant(outer: Any) -> tf.Tensor:
    if outer.dtype in (tf.resource, tf.variant):
        raise UnsupportedOpError(
            "the step uses a table or an iterator that was made outside of it; look up in the "
            "dataset, and give the step what comes out (a TextVectorization layer belongs there)"
        )
    return tf.constant(outer.numpy(), outer.dtype, name="captured")
