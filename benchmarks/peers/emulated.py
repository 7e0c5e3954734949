"""The emulated computation of a case: written once, imported by every peer that runs TensorFlow.

`write` emulates one worker's step and keeps what its raw gradients and loss need: waits, locks,
constants, but no variable of the job. `Emulated.gradients` puts that into the default graph. Its
nodes get the device of the scope they are imported in, so its locks are each worker's own.

Moving averages are left out: nothing that is timed depends on them.

Large gradients are mapped from one file that all processes share. As constants they would be in
memory once for each program that a process runs, which with large networks and many workers is more
than a machine has.

Inside a `tf.function`, TensorFlow orders ops that share a resource, so kernels there run in the
order of the graph instead of any that their inputs allow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.emulate import emulate, flops_times
from benchmarks.peers.data import KERNELS, Case
from benchmarks.peers.kernels import layers_of
from caramel import Context
from caramel.core.graph import TensorSpec
from caramel.modifiers.graph_writer import GraphWriter, static_shape

tf1 = tf.compat.v1

GRAPH, NAMES, VALUES = "emulated.pb", "emulated.json", "gradients.bin"
SCOPE = "emulation"
MAPPED_BYTES = 2**20  # from this size on, a constant is mapped
SHORTEST_PART = 1e-6  # what rounding may lose of a step's time


@dataclass(frozen=True)
class Emulated:
    """One worker's emulated step.

    Attributes:
        graph_def: waits and constants.
        loss: the tensor of the loss.
        gradients_of: each parameter's raw gradient.
        reads: what each tensor that the graph takes from outside is: the value of a parameter.
    """

    graph_def: Any
    loss: str
    gradients_of: Mapping[str, str]
    reads: Mapping[str, str]

    @staticmethod
    def read(directory: str | Path) -> Emulated:
        """What was prepared in a directory."""
        graph_def = tf1.GraphDef.FromString((Path(directory) / GRAPH).read_bytes())
        return Emulated(graph_def, **json.loads((Path(directory) / NAMES).read_text()))

    def gradients(self, parameters: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The loss, and the raw gradient of each parameter.

        Args:
            parameters: their values, as tensors of the graph that this goes into.
        """
        wanted = [self.loss, *self.gradients_of.values()]
        loss, *gradients = tf.graph_util.import_graph_def(
            self.graph_def,
            input_map={tensor: parameters[name] for tensor, name in self.reads.items()},
            return_elements=wanted,
            name=SCOPE,
        )
        return loss, dict(zip(self.gradients_of, gradients, strict=True))


def write(directory: Path, case: Case, context: Context) -> None:
    """Write the emulated step of a case, and its layers.

    Args:
        directory: where to.
        case: which accelerator is emulated, and for what batch.
        context: the case's job for one device.

    Raises:
        EmulationError: the computation cannot be emulated.
    """
    times = times_of(case, context)
    made = _computation(emulate(context, times, batch=case.batch))
    layers = layers_of(context, times)
    sums = [sum(times.values()), _waits_s(made.graph_def)]
    sums.append(sum(layer.forward_s + layer.backward_s for layer in layers))
    assert np.allclose(sums, sums[0], rtol=SHORTEST_PART), f"times differ: {sums}"
    mapped = map_constants(made.graph_def, directory / VALUES)
    (directory / GRAPH).write_bytes(mapped.SerializeToString())
    names = {"loss": made.loss, "gradients_of": made.gradients_of, "reads": made.reads}
    (directory / NAMES).write_text(json.dumps(names))
    kernels = [
        {"shapes": layer.shapes, "forward_s": layer.forward_s, "backward_s": layer.backward_s}
        for layer in layers
    ]
    (directory / KERNELS).write_text(json.dumps(kernels))


def times_of(case: Case, context: Context) -> dict[str, float]:
    """What the kernels of a case take, in seconds, by the names of their ops."""
    times = flops_times(context, device=str(case.accelerator), batch=case.batch)
    factor = case.slowdown
    if case.computation_s_per_byte is not None:
        wanted_s = case.computation_s_per_byte * _parameter_bytes(context)
        factor = wanted_s / sum(times.values())
    return {name: seconds * factor for name, seconds in times.items()}


def _parameter_bytes(context: Context) -> int:
    job = context.job
    return sum(job.variable(each.parameter).spec.bytes or 0 for each in job.given_gradients)


def _computation(emulated: Context) -> Emulated:
    """What the raw gradients and the loss need, without the job's variables."""
    graph, job = emulated.op_graph, emulated.job
    handles = {variable.handle for variable in job.variables}
    gradients = {
        job.variable(each.parameter).handle: str(each.values) for each in job.given_gradients
    }
    ends = [job.loss.op, *(each.values.op for each in job.given_gradients)]
    needed = graph.ancestors(ends) - handles
    reads = {
        f"{name}:0": graph[name].inputs[0].op
        for name in sorted(needed)
        if graph[name].kind == "ReadVariableOp" and graph[name].inputs[0].op in handles
    }
    graph_def = tf1.GraphDef(versions=emulated.graph_def.versions)
    graph_def.library.CopyFrom(emulated.graph_def.library)
    for node in emulated.graph_def.node:
        if node.name in needed and f"{node.name}:0" not in reads:
            added = graph_def.node.add()
            added.CopyFrom(node)
            for key in ("_class", "_output_shapes"):
                added.attr.pop(key, None)
    return Emulated(graph_def, str(job.loss), gradients, reads)


def map_constants(graph_def: Any, path: Path, least_bytes: int = MAPPED_BYTES) -> Any:
    """The graph with large constants mapped from a file, which is written.

    What is mapped cannot be written to. A variable holds it, so that no op takes it for its own and
    puts its result there; each step assigns it anew, which copies nothing.

    Args:
        graph_def: large constants of it are one float32 number over and over, the same in all.
        path: of the file, which is as large as the largest of them.
        least_bytes: smaller constants stay.
    """
    mapped, largest = tf1.GraphDef(), 0
    numbers: set[float] = set()
    mapped.versions.CopyFrom(graph_def.versions)
    mapped.library.CopyFrom(graph_def.library)
    for node in graph_def.node:
        spec = _constant_spec(node)
        if spec is None or (spec.bytes or 0) < least_bytes:
            mapped.node.add().CopyFrom(node)
            continue
        (number,) = node.attr["value"].tensor.float_val
        numbers.add(number)
        largest = max(largest, spec.elements or 0)
        _write_mapped(GraphWriter(mapped), node, spec, path)
    if numbers:
        (number,) = numbers
        np.full(largest, number, np.float32).tofile(path)
    return mapped


def _constant_spec(node: Any) -> TensorSpec | None:
    """Dtype and shape of a float32 constant."""
    if node.op != "Const" or node.attr["dtype"].type != tf.float32.as_datatype_enum:
        return None
    shape = node.attr["value"].tensor.tensor_shape
    return TensorSpec("float32", tuple(dimension.size for dimension in shape.dim))


def _write_mapped(writer: GraphWriter, node: Any, spec: TensorSpec, path: Path) -> None:
    """What stands in place of a constant, under its name."""
    where: dict[str, Any] = {"device": node.device, "dtype": spec.dtype}
    shape = static_shape(spec)
    handle = writer.add(f"{node.name}/held", "VarHandleOp", shape=shape, **where)
    writer.last.attr["shared_name"].s = handle.op.encode()
    value = writer.add(f"{node.name}/mapped", "ImmutableConst", shape=shape, **where)
    writer.last.attr["memory_region_name"].s = str(path).encode()
    hold = writer.add(f"{node.name}/hold", "AssignVariableOp", [handle, value], **where)
    writer.add(node.name, "ReadVariableOp", [handle], controls=[hold.op], outputs=[spec], **where)


def _waits_s(graph_def: Any) -> float:
    return sum(
        node.attr["value"].tensor.double_val[0]
        for node in graph_def.node
        if node.name.endswith("/emulated/seconds")
    )
