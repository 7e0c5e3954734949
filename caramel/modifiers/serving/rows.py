"""Splits parameters by rows: a rewrite of the single-device graph, before anything is planned.

Each part is a variable with an update of its own; what reads the whole variable reads its parts
put together. All ops of the user keep their names and values: so nothing else has to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caramel.core.facts import Variable
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import (
    TensorRef,
    control_source,
    control_string,
    input_string,
    of_parts,
    parse_input,
    part_of,
    tensor_part,
)
from caramel.core.row_split import RowSplit
from caramel.modifiers.graph_writer import (
    GraphWriter,
    copy_of,
    read_instead,
    set_attribute,
    static_shape,
)


def split_rows(graph_def: Any, graph: OpGraph, splits: Iterable[RowSplit]) -> Any:
    """The graph in which each of some parameters is several variables.

    Args:
        graph_def: the single-device graph.
        graph: the same as plain data.
        splits: which parameters, and how.
    """
    divided = copy_of(graph_def)
    nodes = {node.name: node for node in divided.node}
    for split in splits:
        _Split(GraphWriter(divided), nodes, graph, split).write()
    return divided


class _Split:
    """Writes the parts of one parameter, and of what is split with it."""

    def __init__(
        self, writer: GraphWriter, nodes: dict[str, Any], graph: OpGraph, split: RowSplit
    ) -> None:
        self._writer, self._nodes, self._graph, self._split = writer, nodes, graph, split
        self._name, self._count = split.parameter.name, len(split.rows)
        self._shape = split.parameter.spec.shape or ()
        self._copied = frozenset(split.copied)
        self._handles = {variable.handle: variable for variable in split.variables}
        self._reads = {
            name
            for handle in self._handles
            for name in graph.consumers[handle]
            if graph[name].kind == "ReadVariableOp"
        }
        self._sliced: set[TensorRef] = set()
        self._consumed = {
            (tensor, name)
            for cut in split.cuts
            for tensor in cut.gradient.tensors
            for name in cut.consumers
        }
        self._gradients = {tensor for tensor, _ in self._consumed}

    def write(self) -> None:
        """All of it."""
        for cut in self._split.cuts:
            if cut.gradient.indices is None:
                self._slice(cut.gradient.values)
            else:
                self._sort_rows(cut.gradient.values, cut.gradient.indices)
        readers = {name for handle in self._handles for name in self._graph.consumers[handle]}
        for name in self._split.copied:
            self._copy(self._nodes[name])
        for name in self._graph.ops:
            if name in readers and name not in self._copied:
                self._read_parts(self._graph[name], self._nodes[name])
        for handle, variable in self._handles.items():
            self._write_handles(self._nodes[handle], variable)
        self._read_aggregated()
        for name in self._split.copied:
            if not self._graph[name].outputs:
                self._wait_for_parts(self._nodes[name])

    # Variables

    def _write_handles(self, node: Any, variable: Variable) -> None:
        """A handle for each part; the op of the whole one's puts out its value."""
        reads = []
        for part in self._split.parts(variable):
            own = self._node_like(node, part.handle)
            set_attribute(own, "shape", static_shape(part.spec))
            own.attr["shared_name"].s = part.handle.encode()
            reads.append(
                self._writer.add(
                    of_parts(part.name, "value"),
                    "ReadVariableOp",
                    [TensorRef(part.handle)],
                    device=node.device,
                    outputs=[part.spec],
                    dtype=part.spec.dtype,
                )
            )
        self._concatenate(node, reads, variable.spec)

    def _read_parts(self, op: Op, node: Any) -> None:
        """Let an op that takes a variable's handle take those of the parts."""
        handle = op.inputs[0].op
        match op.kind:
            case "ReadVariableOp":
                self._concatenate(node, self._each(node, [handle]), op.outputs[0])
            case "VarIsInitializedOp" if not self._graph.consumers[op.name]:
                node.input[0] = part_of(handle, 0)  # no copy of the graph has it
            case "VarIsInitializedOp":
                self._all(node, self._each(node, [handle]))
            case "VariableShape":
                dtype = "int64" if op.outputs[0].dtype == "int64" else "int32"
                self._become_constant(node, np.array(self._shape, dtype))
            case "ResourceGather":
                self._gather(op, node)
            case _:  # it writes a value: each part gets its rows
                self._each(node, [handle])
                self._wait_for_parts(node)

    def _each(self, node: Any, handles: Sequence[str]) -> list[TensorRef]:
        """An op like a node for each part."""
        self._copy(node, of_value=True)
        return [TensorRef(part_of(node.name, number)) for number in range(self._count)]

    # What each part has of its own

    def _copy(self, node: Any, *, of_value: bool = False) -> None:
        """An op like a node for each part, which reads what belongs to the part.

        Args:
            of_value: whether it takes a value for the whole variable, be its shape known or not.
        """
        for number, rows in enumerate(self._split.rows):
            inputs = []
            for text in node.input:
                tensor = parse_input(text)
                if tensor is None:
                    inputs.append(control_string(self._op_of_part(control_source(text), number)))
                else:
                    own = self._tensor_of_part(tensor, number, always=of_value)
                    inputs.append(input_string(own))
            own_node = self._node_like(node, part_of(node.name, number))
            own_node.input.extend(inputs)
            for shape in own_node.attr["_output_shapes"].list.shape:
                sizes = [dimension.size for dimension in shape.dim]
                if node.name in self._split.by_row and sizes:
                    shape.dim[0].size = -1
                elif len(sizes) == len(self._shape) and sizes[0] == self._shape[0]:
                    shape.dim[0].size = rows
            if not own_node.attr["_output_shapes"].list.shape:
                del own_node.attr["_output_shapes"]

    def _op_of_part(self, op: str, number: int) -> str:
        own = op in self._copied or op in self._reads or op in self._handles
        return part_of(op, number) if own else op

    def _tensor_of_part(self, tensor: TensorRef, number: int, *, always: bool) -> TensorRef:
        """What a part reads in place of a tensor."""
        if tensor in self._gradients:
            return tensor_part(self._name, tensor, number)
        own = self._op_of_part(tensor.op, number)
        if own != tensor.op:
            return TensorRef(own, tensor.index)
        shape = self._graph.spec(tensor).shape
        has_rows = (
            shape is not None and len(shape) == len(self._shape) and shape[0] == self._shape[0]
        )
        if not (always or has_rows):
            return tensor
        self._slice(tensor)
        return tensor_part(self._name, tensor, number)

    def _slice(self, tensor: TensorRef) -> None:
        """The rows of a tensor that go with each part."""
        if tensor in self._sliced:
            return
        self._sliced.add(tensor)
        spec, device = self._graph.spec(tensor), self._nodes[tensor.op].device
        for number, (start, rows) in enumerate(
            zip(self._split.starts, self._split.rows, strict=True)
        ):
            name = tensor_part(self._name, tensor, number).op
            # All of each other dimension, which may be one where the variable's is longer.
            begin = np.array([start, *[0] * (len(self._shape) - 1)], np.int32)
            size = np.array([rows, *[-1] * (len(self._shape) - 1)], np.int32)
            others = (spec.shape or self._shape)[1:]
            self._writer.add(
                name,
                "Slice",
                [
                    tensor,
                    self._writer.constant(f"{name}/begin", begin, device=device),
                    self._writer.constant(f"{name}/size", size, device=device),
                ],
                device=device,
                outputs=[TensorSpec(spec.dtype, (rows, *others))],
                T=self._dtype(spec),
                Index="int32",
            )

    def _dtype(self, spec: TensorSpec) -> str:
        """The dtype of a value; a restored one has the variable's."""
        return self._split.parameter.spec.dtype if spec.dtype == "unknown" else spec.dtype

    def _node_like(self, node: Any, name: str) -> Any:
        """A new node with the attributes of another one, and no inputs."""
        self._writer.add(name, node.op, device=node.device)
        own = self._writer.last
        for key, value in node.attr.items():
            # The whole variable is nowhere, so nothing can be with it.
            if key != "_class":
                own.attr[key].CopyFrom(value)
        return own

    # Rows

    def _sort_rows(self, values: TensorRef, indices: TensorRef) -> None:
        """The rows of a sparse gradient that go with each part, numbered from its first row."""
        prefix, device = of_parts(self._name, "of", values.op), self._nodes[values.op].device
        dtype = self._graph.spec(indices).dtype
        parts = self._parts_of(prefix, indices, dtype, device)
        for tensor in (values, indices):
            spec = self._graph.spec(tensor)
            own = tensor_part(self._name, tensor, 0).op.rpartition("/")[0]
            sorted_rows = self._sorted(f"{own}/sorted", tensor, parts, spec, device)
            for number, rows in enumerate(sorted_rows):
                name = tensor_part(self._name, tensor, number).op
                if tensor == values:
                    self._add(name, "Identity", [rows], device, _rows_like(spec), T=spec.dtype)
                else:
                    self._own_numbers(name, rows, number, dtype, device)

    def _gather(self, op: Op, node: Any) -> None:
        """Let each part gather the rows that are its own, and put these into their order."""
        prefix, device, numbers = of_parts(op.name), node.device, op.inputs[1]
        dtype, out = self._graph.spec(numbers).dtype, op.outputs[0]
        flat = self._add(
            f"{prefix}/flat",
            "Reshape",
            [numbers, self._constant(f"{prefix}/flat/shape", np.array([-1], np.int32), device)],
            device,
            TensorSpec(dtype, (None,)),
            T=dtype,
            Tshape="int32",
        )
        parts = self._parts_of(prefix, flat, dtype, device)
        places, one = self._places(prefix, flat, dtype, device), TensorSpec("int32", (None,))
        asked = self._sorted(f"{prefix}/asked", flat, parts, TensorSpec(dtype, (None,)), device)
        ordered = self._sorted(f"{prefix}/places", places, parts, one, device)
        row = TensorSpec(out.dtype, (None, *self._shape[1:]))
        gathered = []
        for number, rows in enumerate(asked):
            own = self._own_numbers(f"{prefix}/own_{number}", rows, number, dtype, device)
            part = self._node_like(node, part_of(op.name, number))
            handle = part_of(op.inputs[0].op, number)
            controls = [text for text in node.input if text.startswith("^")]
            part.input.extend([handle, input_string(own), *controls])
            del part.attr["_output_shapes"]
            part.attr["_output_shapes"].list.shape.append(static_shape(row).as_proto())
            gathered.append(TensorRef(part.name))
        stitched = self._add(
            f"{prefix}/stitched",
            "DynamicStitch",
            [*ordered, *gathered],
            device,
            row,
            N=self._count,
            T=out.dtype,
        )
        self._become(node, "Reshape", [stitched, self._shape_of(prefix, op, device)], out)
        set_attribute(node, "T", out.dtype)
        set_attribute(node, "Tshape", "int32")

    def _places(self, prefix: str, flat: TensorRef, dtype: str, device: str) -> TensorRef:
        """The numbers from 0 on, as many as there are rows."""
        scalar = TensorSpec("int32", ())
        count = self._add(
            f"{prefix}/count", "Size", [flat], device, scalar, T=dtype, out_type="int32"
        )
        zero, one = (self._constant(f"{prefix}/{n}", np.array(n, np.int32), device) for n in (0, 1))
        places = TensorSpec("int32", (None,))
        return self._add(
            f"{prefix}/range", "Range", [zero, count, one], device, places, Tidx="int32"
        )

    def _shape_of(self, prefix: str, op: Op, device: str) -> TensorRef:
        """The shape of gathered rows: that of their numbers, and that of a row."""
        numbers = self._graph.spec(op.inputs[1])
        rank = None if numbers.shape is None else len(numbers.shape)
        outer = self._add(
            f"{prefix}/shape",
            "Shape",
            [op.inputs[1]],
            device,
            TensorSpec("int32", (rank,)),
            T=numbers.dtype,
            out_type="int32",
        )
        row = self._constant(f"{prefix}/row", np.array(self._shape[1:], np.int32), device)
        axis = self._constant(f"{prefix}/axis", np.array(0, np.int32), device)
        whole = TensorSpec("int32", (None if rank is None else rank + len(self._shape) - 1,))
        return self._add(
            f"{prefix}/whole",
            "ConcatV2",
            [outer, row, axis],
            device,
            whole,
            N=2,
            T="int32",
            Tidx="int32",
        )

    def _parts_of(self, prefix: str, numbers: TensorRef, dtype: str, device: str) -> TensorRef:
        """The part that has each row: so many others begin at it or before, but for the first."""
        spec = TensorSpec("int32", (None,))
        found = None
        for number, start in enumerate(self._split.starts[1:], start=1):
            name = f"{prefix}/in_{number}"
            first = self._constant(f"{name}/start", np.array(start, dtype), device)
            is_behind = self._add(
                f"{name}/behind",
                "GreaterEqual",
                [numbers, first],
                device,
                TensorSpec("bool", (None,)),
                T=dtype,
            )
            one = self._add(name, "Cast", [is_behind], device, spec, SrcT="bool", DstT="int32")
            if found is not None:
                one = self._add(f"{name}/sum", "AddV2", [found, one], device, spec, T="int32")
            found = one
        assert found is not None, "there are several parts"
        return found

    def _sorted(
        self, name: str, tensor: TensorRef, parts: TensorRef, spec: TensorSpec, device: str
    ) -> list[TensorRef]:
        """The rows of a tensor that go with each part, in their order."""
        rows = _rows_like(spec)
        self._writer.add(
            name,
            "DynamicPartition",
            [tensor, parts],
            device=device,
            outputs=[rows] * self._count,
            num_partitions=self._count,
            T=spec.dtype,
        )
        return [TensorRef(name, number) for number in range(self._count)]

    def _own_numbers(
        self, name: str, rows: TensorRef, number: int, dtype: str, device: str
    ) -> TensorRef:
        """Numbers of rows of the whole, as those of a part."""
        start = np.array(self._split.starts[number], dtype)
        first = self._constant(f"{name}/start", start, device)
        return self._add(name, "Sub", [rows, first], device, TensorSpec(dtype, (None,)), T=dtype)

    def _constant(self, name: str, value: np.ndarray, device: str) -> TensorRef:
        return self._writer.constant(name, value, device=device)

    def _add(
        self,
        name: str,
        kind: str,
        inputs: Sequence[TensorRef],
        device: str,
        output: TensorSpec,
        **attributes: Any,
    ) -> TensorRef:
        """Add a node with one output."""
        return self._writer.add(name, kind, inputs, device=device, outputs=[output], **attributes)

    # What there is of the whole

    def _read_aggregated(self) -> None:
        """Let what reads a gradient, but for updates, read the aggregated parts put together."""
        wholes = self._split.aggregated
        for tensor, whole in wholes.items():
            parts = [tensor_part(self._name, tensor, number) for number in range(self._count)]
            spec, device = self._graph.spec(tensor), self._nodes[tensor.op].device
            self._writer.add(whole.op, "NoOp", device=device)
            self._concatenate(self._writer.last, parts, spec)
        for name in {name for _, name in self._consumed}:
            own = {t: w for t, w in wholes.items() if (t, name) in self._consumed}
            read_instead(self._nodes[name], own)

    def _concatenate(self, node: Any, parts: Sequence[TensorRef], spec: TensorSpec) -> None:
        """Let a node put parts together; it keeps its control inputs."""
        axis = self._writer.constant(
            of_parts(node.name, "axis"), np.array(0, np.int32), device=node.device
        )
        self._become(node, "ConcatV2", [*parts, axis], spec)
        set_attribute(node, "N", len(parts))
        set_attribute(node, "T", spec.dtype)
        set_attribute(node, "Tidx", "int32")

    def _all(self, node: Any, parts: Sequence[TensorRef]) -> None:
        """Let a node say whether all parts are true."""
        spec = TensorSpec("bool", ())
        first, *others, last = parts
        for number, part in enumerate(others):
            first = self._writer.add(
                of_parts(node.name, str(number)),
                "LogicalAnd",
                [first, part],
                device=node.device,
                outputs=[spec],
            )
        self._become(node, "LogicalAnd", [first, last], spec)

    def _become_constant(self, node: Any, value: np.ndarray) -> None:
        self._become(node, "Const", [], TensorSpec(value.dtype.name, value.shape))
        set_attribute(node, "value", value)
        set_attribute(node, "dtype", value.dtype.name)

    def _wait_for_parts(self, node: Any) -> None:
        """Let a node do nothing but wait for what is done for each part."""
        parts = [control_string(part_of(node.name, number)) for number in range(self._count)]
        del node.input[:]
        node.op = "NoOp"
        node.attr.clear()
        node.input.extend(parts)

    @staticmethod
    def _become(node: Any, kind: str, inputs: Sequence[TensorRef], spec: TensorSpec) -> None:
        controls = [text for text in node.input if text.startswith("^")]
        del node.input[:]
        node.op = kind
        node.attr.clear()
        node.input.extend([*map(input_string, inputs), *controls])
        node.attr["_output_shapes"].list.shape.append(static_shape(spec).as_proto())


def _rows_like(spec: TensorSpec) -> TensorSpec:
    """Some rows of a tensor."""
    return TensorSpec(spec.dtype, (None, *(spec.shape or (None,))[1:]))
