"""Reads a GraphDef as an `OpGraph`.

It needs no TensorFlow: the GraphDef and the op definitions are only read through their fields.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from caramel.core.dtypes import dtype_name
from caramel.core.graph import ARGUMENT, Function, Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef, control_source, parse_input

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


def read_graph(
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
    return OpGraph(ops, functions, _integer_constants(nodes), _small_constants(nodes))


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
    arguments = tuple(argument.name for argument in function.signature.input_arg)
    body, results = _read_body(function, op_definitions)
    return Function(function.signature.name, arguments, body, results)
