"""The dataflow graph as plain data: ops, what they read, and what they put out.

It needs no TensorFlow: the GraphDef and the op definitions it is built from are only read through
their fields.
"""

from __future__ import annotations

import heapq
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from caramel.core.errors import InvariantError
from caramel.core.names import TensorRef, control_source, parse_input

# Numbers of the DataType enum that TensorFlow has frozen: name and bytes per element.
# Handles, variants and strings have no size that can be known beforehand.
_DTYPES: dict[int, tuple[str, int | None]] = {
    1: ("float32", 4),
    2: ("float64", 8),
    3: ("int32", 4),
    4: ("uint8", 1),
    5: ("int16", 2),
    6: ("int8", 1),
    7: ("string", None),
    8: ("complex64", 8),
    9: ("int64", 8),
    10: ("bool", 1),
    11: ("qint8", 1),
    12: ("quint8", 1),
    13: ("qint32", 4),
    14: ("bfloat16", 2),
    15: ("qint16", 2),
    16: ("quint16", 2),
    17: ("uint16", 2),
    18: ("complex128", 16),
    19: ("float16", 2),
    20: ("resource", None),
    21: ("variant", None),
    22: ("uint32", 4),
    23: ("uint64", 8),
}
_NUMBERS = {name: number for number, (name, _) in _DTYPES.items()}
_BYTES = dict(_DTYPES.values())
_FIRST_REFERENCE_DTYPE = 100

STAYS = frozenset({"resource", "variant"})
"""Dtypes of what has no memory of its own, and cannot leave its device."""


def dtype_name(number: int) -> str:
    """The name of a DataType number; reference types end in ``_ref``."""
    if number > _FIRST_REFERENCE_DTYPE:
        return f"{dtype_name(number - _FIRST_REFERENCE_DTYPE)}_ref"
    return _DTYPES.get(number, ("unknown", None))[0]


def dtype_number(name: str) -> int:
    """The DataType number of a name, as it stands in attributes of a GraphDef."""
    return _NUMBERS[name]


def is_differentiable(dtype: str) -> bool:
    """Whether a dtype has no integers, so that gradients can be of it."""
    return dtype.startswith(("float", "bfloat", "complex"))


def is_integer(dtype: str) -> bool:
    """Whether a dtype has integers or truth values."""
    return dtype.startswith(("int", "uint", "bool"))


def dtype_bytes(name: str) -> int | None:
    """Bytes of one element, or None where elements have no fixed size."""
    return _BYTES.get(name)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor: its dtype's name and its shape.

    `shape` is None when the rank is unknown; single dimensions may be None.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def elements(self) -> int | None:
        """Number of elements, or None if not known."""
        if self.shape is None or None in self.shape:
            return None
        return math.prod(dimension for dimension in self.shape if dimension is not None)

    @property
    def bytes(self) -> int | None:
        """Size in bytes, or None if not known."""
        size, elements = dtype_bytes(self.dtype), self.elements
        return None if size is None or elements is None else size * elements


@dataclass(frozen=True, slots=True)
class Op:
    """One op: its kind ("MatMul"), where it is placed, what it reads and what it puts out.

    `attributes` has those that say which axes an op works on.
    """

    name: str
    kind: str
    device: str
    inputs: tuple[TensorRef, ...]
    control_inputs: tuple[str, ...]
    outputs: tuple[TensorSpec, ...] = ()
    stateful: bool = False
    functions: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def output_bytes(self) -> tuple[int | None, ...]:
        """Bytes of each output, None where unknown."""
        return tuple(spec.bytes for spec in self.outputs)

    @property
    def sources(self) -> Iterator[str]:
        """Names of the ops that this op waits for, by data or by control."""
        for tensor in self.inputs:
            yield tensor.op
        yield from self.control_inputs


@dataclass(frozen=True, slots=True)
class FunctionNode:
    """An op inside a library function; inputs are names of nodes or arguments, outputs dropped."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A library function's body, as far as it matters what the function does to its arguments.

    `constants` has the values of constants that are single integers. `body` is the function as a
    graph, in which arguments are ops of the kind `ARGUMENT`, and `results` what it returns.
    """

    name: str
    arguments: tuple[str, ...]
    nodes: tuple[FunctionNode, ...]
    constants: Mapping[str, int] = field(default_factory=dict)
    body: OpGraph | None = None
    results: tuple[TensorRef, ...] = ()


@dataclass(frozen=True)
class OpGraph:
    """All ops of a graph by name, in the order of their definition.

    `constants` has the values of constants that are single integers, `numbers` the elements of
    small numeric constants, flattened.
    """

    ops: Mapping[str, Op]
    functions: Mapping[str, Function] = field(default_factory=dict)
    constants: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @classmethod
    def from_graph_def(
        cls,
        graph_def: Any,
        op_definitions: Mapping[str, Any],
        *,
        calls: Callable[[str], bool] | None = None,
    ) -> OpGraph:
        """Read a GraphDef.

        Args:
            graph_def: a GraphDef proto, with ``_output_shapes`` where shapes are known.
            op_definitions: the OpDef proto of each kind of op; a kind that is not in it has no
                known outputs.
            calls: whether ops of a kind may call functions; by default as `op_definitions` says,
                and those that are not in it may.
        """
        if calls is None:
            silent = {kind for kind, each in op_definitions.items() if not may_call(each)}
            calls = lambda kind: kind not in silent  # noqa: E731

        def read(node: Any) -> Op:
            # Few kinds call functions: the attributes of others are not gone through.
            return _read_node(node, op_definitions.get(node.op), may_call=calls(node.op))

        ops = {op.name: op for op in map(read, graph_def.node)}
        functions = {
            function.signature.name: _read_function(function, op_definitions)
            for function in graph_def.library.function
        }
        nodes = graph_def.node
        return cls(ops, functions, _integer_constants(nodes), _small_constants(nodes))

    def __getitem__(self, name: str) -> Op:
        return self.ops[name]

    def __contains__(self, name: str) -> bool:
        return name in self.ops

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops.values())

    def __len__(self) -> int:
        return len(self.ops)

    def with_edges(self, edges: Iterable[tuple[str, str]]) -> OpGraph:
        """The graph in which the second op of each pair waits for the first one, too."""
        added: dict[str, list[str]] = {}
        for before, after in edges:
            # Only new edges: if there are none, the graph itself is returned.
            if before not in self.ops[after].control_inputs:
                added.setdefault(after, []).append(before)
        if not added:
            return self
        ops = dict(self.ops)
        for name, controls in added.items():
            waits = (*ops[name].control_inputs, *dict.fromkeys(controls))
            ops[name] = replace(ops[name], control_inputs=waits)
        return OpGraph(ops, self.functions, self.constants, self.numbers)

    def spec(self, tensor: TensorRef) -> TensorSpec:
        """What is known of a tensor; nothing is known of outputs that no definition names."""
        outputs = self.ops[tensor.op].outputs
        return outputs[tensor.index] if tensor.index < len(outputs) else TensorSpec("unknown", None)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the ops that wait for each op, by data or by control, each once."""
        found: dict[str, dict[str, None]] = {name: {} for name in self.ops}
        for op in self:
            for source in op.sources:
                if source not in found:
                    raise InvariantError(f"'{op.name}' reads '{source}', which does not exist")
                found[source][op.name] = None
        return {name: tuple(names) for name, names in found.items()}

    def ancestors(self, names: Iterable[str], *, stop: frozenset[str] = frozenset()) -> set[str]:
        """The given ops and everything they wait for; nothing is followed beyond `stop`."""
        return self._behind(names, stop, controls=True)

    def data_ancestors(
        self, names: Iterable[str], *, stop: frozenset[str] = frozenset()
    ) -> set[str]:
        """The given ops and all they are computed from: the same, not counting control edges."""
        return self._behind(names, stop, controls=False)

    def data_descendants(
        self, names: Iterable[str], *, stop: frozenset[str] = frozenset()
    ) -> set[str]:
        """The given ops and all that is computed from them, not counting control edges.

        What is in `stop` is left out.
        """
        found: set[str] = set()
        waiting = [name for name in names if name not in stop]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [
                    reader
                    for reader in self.consumers[name]
                    if reader not in stop
                    and any(tensor.op == name for tensor in self.ops[reader].inputs)
                ]
        return found

    def _behind(self, names: Iterable[str], stop: frozenset[str], *, controls: bool) -> set[str]:
        seen: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name not in stop:
                op = self.ops[name]
                waiting += [tensor.op for tensor in op.inputs if tensor.op not in seen]
                if controls:
                    waiting += op.control_inputs
        return seen

    def topological_order(self) -> tuple[str, ...]:
        """All names, every op after what it waits for; ties in the order of definition.

        The edges that close a loop (from ``NextIteration``) do not count.

        Raises:
            InvariantError: an op waits for one that does not exist; or the graph has a cycle that
                is no loop, and the error names the ops on one.
        """
        position = {name: index for index, name in enumerate(self.ops)}
        consumers = self.consumers
        waits = dict.fromkeys(self.ops, 0)
        for op in self:
            # The edges that close a loop.
            if op.kind != "NextIteration":
                for consumer in consumers[op.name]:
                    waits[consumer] += 1
        ready = [position[name] for name, count in waits.items() if count == 0]
        heapq.heapify(ready)
        names = list(self.ops)
        order: list[str] = []
        while ready:
            name = names[heapq.heappop(ready)]
            order.append(name)
            if self.ops[name].kind == "NextIteration":
                continue
            for consumer in consumers[name]:
                waits[consumer] -= 1
                if waits[consumer] == 0:
                    heapq.heappush(ready, position[consumer])
        if len(order) < len(self.ops):
            raise InvariantError(f"the graph has a cycle: {' -> '.join(self._cycle(set(order)))}")
        return tuple(order)

    def _cycle(self, done: set[str]) -> list[str]:
        """The names along one cycle among the ops that are not `done`."""
        name = next(name for name in self.ops if name not in done)
        path: dict[str, None] = {}
        while name not in path:
            path[name] = None
            name = next(source for source in self.ops[name].sources if source not in done)
        names = list(path)
        # The path leads from ops to what they wait for.
        return [name, *reversed(names[names.index(name) :])]


ARGUMENT = "_Arg"
"""The kind of op that stands for an argument in the body of a function."""

_FEW = 64  # elements of a constant that is kept: shapes, axes, sizes
_FORMATS = {1: "f", 2: "d", 3: "i", 9: "q"}  # of `struct`, by DataType
# Attributes that say which axes an op works on.
_SLICES = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
_BATCHES = ("adj_x", "adj_y")
_AXES: Mapping[str, tuple[str, ...]] = {
    "BatchMatMul": _BATCHES,
    "BatchMatMulV2": _BATCHES,
    "BatchMatMulV3": _BATCHES,
    "Einsum": ("equation",),
    "GatherV2": ("batch_dims",),
    "MatMul": ("transpose_a", "transpose_b"),
    "OneHot": ("axis",),
    "Pack": ("axis",),
    "ResourceGather": ("batch_dims",),
    "ReverseSequence": ("batch_dim", "seq_dim"),
    "SparseMatMul": ("transpose_a", "transpose_b"),
    "SparseTensorDenseMatMul": ("adjoint_a", "adjoint_b"),
    "Squeeze": ("squeeze_dims",),
    "StridedSlice": _SLICES,
    "StridedSliceGrad": _SLICES,
    "Unpack": ("axis",),
    **dict.fromkeys(("Sum", "Mean", "Prod", "Max", "Min", "All", "Any"), ("keep_dims",)),
}

# Reading protos ---------------------------------------------------------------------------------


def may_call(definition: Any) -> bool:
    """Whether a kind of op has functions among its attributes, by its OpDef proto."""
    return any(attribute.type in ("func", "list(func)") for attribute in definition.attr)


def _read_node(node: Any, definition: Any, *, may_call: bool) -> Op:
    inputs, controls = [], []
    for text in node.input:
        tensor = parse_input(text)
        if tensor is None:
            controls.append(control_source(text))
        else:
            inputs.append(tensor)
    return Op(
        name=node.name,
        kind=node.op,
        device=node.device,
        inputs=tuple(inputs),
        control_inputs=tuple(controls),
        outputs=() if definition is None else read_outputs(node, definition),
        stateful=bool(definition is not None and definition.is_stateful),
        functions=tuple(called_functions(node)) if may_call else (),
        attributes=_axes_of(node) if node.op in _AXES else {},
    )


def read_outputs(node: Any, definition: Any) -> tuple[TensorSpec, ...]:
    """What a NodeDef puts out, by the OpDef of its kind."""
    dtypes = _output_dtypes(node, definition)
    shapes: list[Any] = []
    if "_output_shapes" in node.attr:
        shapes = [_read_shape(shape) for shape in node.attr["_output_shapes"].list.shape]
    shapes += [None] * (len(dtypes) - len(shapes))
    return tuple(TensorSpec(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=False))


def _output_dtypes(node: Any, definition: Any) -> list[str]:
    """The dtype of every output of a node, as its op definition derives them from attributes."""
    dtypes: list[str] = []
    for output in definition.output_arg:
        if output.type_list_attr:
            value = _attribute(node, definition, output.type_list_attr)
            dtypes += [dtype_name(number) for number in value.list.type]
            continue
        number = output.type or _attribute(node, definition, output.type_attr).type
        count = _attribute(node, definition, output.number_attr).i if output.number_attr else 1
        dtypes += [dtype_name(number)] * count
    return dtypes


def _attribute(node: Any, definition: Any, key: str) -> Any:
    """An attribute of a node, or its default; the node is not touched (indexing would add it)."""
    if key in node.attr:
        return node.attr[key]
    return next(a.default_value for a in definition.attr if a.name == key)


def _read_shape(shape: Any) -> tuple[int | None, ...] | None:
    if shape.unknown_rank:
        return None
    return tuple(dimension.size if dimension.size >= 0 else None for dimension in shape.dim)


def _axes_of(node: Any) -> dict[str, Any]:
    """The attributes of a node that say which axes it works on, where they are set."""
    found: dict[str, Any] = {}
    for key in _AXES[node.op]:
        if key in node.attr:
            value = node.attr[key]
            match value.WhichOneof("value"):
                case "b":
                    found[key] = value.b
                case "i":
                    found[key] = value.i
                case "s":
                    found[key] = value.s.decode()
                case "list":
                    found[key] = tuple(value.list.i)
    return found


def _small_constants(nodes: Iterable[Any]) -> dict[str, tuple[float, ...]]:
    """The elements of numeric constants that have few, by name."""
    found = {}
    for node in nodes:
        if node.op == "Const":
            elements = _few_elements(node.attr["value"].tensor)
            if elements is not None:
                found[node.name] = elements
    return found


def _few_elements(tensor: Any) -> tuple[float, ...] | None:
    """The elements of a numeric TensorProto; None if they are many, or of another dtype."""
    size = math.prod(dimension.size for dimension in tensor.tensor_shape.dim)
    form = _FORMATS.get(tensor.dtype)
    if size > _FEW or form is None:
        return None
    if tensor.tensor_content:
        return tuple(number for (number,) in struct.iter_unpack(f"<{form}", tensor.tensor_content))
    given = tensor.int_val or tensor.int64_val or tensor.float_val or tensor.double_val
    # A TensorProto without values is all zeros.
    values = tuple(given) or (0,)
    # A TensorProto leaves out what repeats the last value.
    return (values + (values[-1],) * (size - len(values)))[:size]


def _integer_constants(nodes: Iterable[Any]) -> dict[str, int]:
    """The constants among `nodes` that are single integers, by name."""
    return {
        node.name: value
        for node in nodes
        if node.op == "Const" and (value := _single_integer(node)) is not None
    }


def _single_integer(node: Any) -> int | None:
    """The value of a constant that is one integer."""
    tensor = node.attr["value"].tensor
    if tensor.tensor_shape.dim:
        return None
    values = tensor.int64_val or tensor.int_val
    return int(values[0]) if len(values) == 1 else None


def called_functions(node: Any) -> Iterator[str]:
    """Names of the library functions that a NodeDef's attributes refer to, in their keys' order."""
    # Sorted, since maps in protos have no order of their own.
    kinds = [(key, value.WhichOneof("value")) for key, value in node.attr.items()]
    for key, kind in sorted(each for each in kinds if each[1] in ("func", "list")):
        value = node.attr[key]
        if kind == "func":
            yield value.func.name
        else:
            yield from (function.name for function in value.list.func)


def _read_body(
    function: Any, op_definitions: Mapping[str, Any]
) -> tuple[OpGraph, tuple[TensorRef, ...]]:
    """A function's body as a graph, and what it returns."""
    ops: dict[str, Op] = {}
    arguments = {argument.name: argument for argument in function.signature.input_arg}
    for name, argument in arguments.items():
        spec = TensorSpec(dtype_name(argument.type), None)
        ops[name] = Op(name, ARGUMENT, "", (), (), (spec,))
    firsts: dict[str, dict[str, int]] = {}  # of each op: the first number of each named output
    for node in function.node_def:
        firsts[node.name] = _first_outputs(node, op_definitions.get(node.op))

    def tensor(text: str) -> TensorRef:
        # In functions tensors are called ``node:output:index``, or like the argument that they are.
        name, _, rest = text.partition(":")
        output, _, index = rest.partition(":")
        first = firsts.get(name, {}).get(output, 0) if index else 0
        return TensorRef(name, first + int(index or output or 0))

    for node in function.node_def:
        definition = op_definitions.get(node.op)
        ops[node.name] = Op(
            name=node.name,
            kind=node.op,
            device="",
            inputs=tuple(tensor(text) for text in node.input if text[:1] != "^"),
            control_inputs=tuple(text[1:] for text in node.input if text[:1] == "^"),
            outputs=() if definition is None else read_outputs(node, definition),
            functions=tuple(called_functions(node)),
            attributes=_axes_of(node) if node.op in _AXES else {},
        )
    results = tuple(tensor(function.ret[a.name]) for a in function.signature.output_arg)
    nodes = function.node_def
    return OpGraph(ops, {}, _integer_constants(nodes), _small_constants(nodes)), results


def _first_outputs(node: Any, definition: Any) -> dict[str, int]:
    """The number of the first tensor of each output that an op's definition names."""
    firsts: dict[str, int] = {}
    number = 0
    for output in definition.output_arg if definition is not None else ():
        firsts[output.name] = number
        if output.type_list_attr:
            number += len(_attribute(node, definition, output.type_list_attr).list.type)
        elif output.number_attr:
            number += _attribute(node, definition, output.number_attr).i
        else:
            number += 1
    return firsts


def _read_function(function: Any, op_definitions: Mapping[str, Any]) -> Function:
    nodes = tuple(
        FunctionNode(
            name=node.name,
            kind=node.op,
            inputs=tuple(text.partition(":")[0] for text in node.input if text[:1] != "^"),
            functions=tuple(called_functions(node)),
        )
        for node in function.node_def
    )
    arguments = tuple(argument.name for argument in function.signature.input_arg)
    constants = _integer_constants(function.node_def)
    body, results = _read_body(function, op_definitions)
    return Function(function.signature.name, arguments, nodes, constants, body, results)
