"""How long would each op of a step take on an accelerator?

The roofline: an op takes as long as its arithmetic at the device's speed, or its bytes at the
memory's, whichever is longer. Arithmetic of convolutions, matrix products and their gradients is
counted from shapes, two operations for each multiplication and addition; everything else counts by
the bytes it reads and writes. Ops that only rename or measure a tensor take no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from benchmarks.emulate.errors import EmulationError
from benchmarks.emulate.region import computation
from caramel import Context
from caramel.core import op_types
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.graph_reader import read_graph

tf1 = tf.compat.v1


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator.

    Attributes:
        flops_per_s: peak floating-point operations per second.
        efficiency: the part of the peak that products and most convolutions reach.
        square_efficiency: the part that convolutions with square windows larger than 1x1 reach; it
            may exceed 1, since Winograd's method needs less arithmetic than is counted (a factor of
            2.25 for 3x3: Lavin & Gray, arXiv:1509.09308).
        bytes_per_s: bandwidth of its memory.
    """

    flops_per_s: float
    efficiency: float
    square_efficiency: float
    bytes_per_s: float


# Peaks and bandwidths are from NVIDIA's data sheets; K80 is one of the two processors of the card
# (half of 8.73 TFLOPS and 480 GB/s), P100 and V100 are SXM2, H100 is SXM. All peaks are float32,
# H100's is TF32 without sparsity, which TensorFlow uses for float32 there.
# The efficiencies of K80 and P100 are fitted to TensorFlow's own benchmarks of May 2017
# (tensorflow/docs_src/performance/benchmarks.md), synthetic data on one processor, in images/s:
#            Inception v3  ResNet-50  ResNet-152  AlexNet  VGG-16
#   K80      30.5          51.9       20.0        656      35.4
#   fitted   33.9          54.0       18.0        678      34.6
#   P100     142           219        82.7        2987     144
#   fitted   149           233        77.6        2901     146
# (P100: ResNet-152 and VGG-16 with batches of 32.) No such measurement stands behind the others:
# they are taken to be like P100, H100 half as efficient, since its memory seldom keeps up.
DEVICES: Mapping[str, Device] = {
    "K80": Device(4.37e12, 0.18, 0.80, 240e9),
    "P100": Device(10.6e12, 0.34, 1.44, 732e9),
    "T4": Device(8.1e12, 0.34, 1.44, 320e9),
    "V100": Device(15.7e12, 0.34, 1.44, 900e9),
    "H100": Device(494.7e12, 0.17, 0.72, 3350e9),
}

_FREE = frozenset(
    {
        *op_types.SHAPE_ONLY,
        "BroadcastGradientArgs",
        "ConcatOffset",
        "Const",
        "ExpandDims",
        "Identity",
        "IdentityN",
        "InvertPermutation",
        "NoOp",
        "PreventGradient",
        "Reshape",
        "Squeeze",
        "StopGradient",
    }
)


def flops_times(context: Context, *, device: str | Device = "K80", batch: int) -> dict[str, float]:
    """Seconds that each op of the computation of a step takes on a device.

    Args:
        device: one of `DEVICES`, or another.
        batch: examples of one worker's batch.

    Raises:
        EmulationError: an unknown device, or a convolution or product whose shapes are not known
            even for a known batch.
    """
    if isinstance(device, str):
        if device not in DEVICES:
            raise EmulationError(f"there is no device '{device}'; there are {', '.join(DEVICES)}")
        device = DEVICES[device]
    graph = sized(context, batch)
    return {name: _seconds(graph, graph[name], device) for name in computation(context).order}


def flops_of(context: Context, *, batch: int) -> dict[str, float]:
    """Floating-point operations of each op of the computation whose arithmetic is counted."""
    graph = sized(context, batch)
    ops = (graph[name] for name in computation(context).order)
    return {op.name: flops(graph, op) for op in ops if op.kind in _FLOPS}


def _seconds(graph: OpGraph, op: Op, device: Device) -> float:
    if op.kind in _FREE:
        return 0.0
    efficiency = device.square_efficiency if _is_square(graph, op) else device.efficiency
    return max(
        flops(graph, op) / (device.flops_per_s * efficiency),
        _moved_bytes(graph, op) / device.bytes_per_s,
    )


def _moved_bytes(graph: OpGraph, op: Op) -> int:
    """Bytes that an op reads and writes; those of tensors of unknown size count as none."""
    inputs = [graph.spec(tensor).bytes for tensor in dict.fromkeys(op.inputs)]
    return sum(size or 0 for size in (*inputs, *op.output_bytes))


# Arithmetic -------------------------------------------------------------------------------------

# Of an op: the position of the tensor that has one entry for each sum, negative for the output;
# and that of the filter.
_CONVOLUTIONS: Mapping[str, tuple[int, int]] = {
    "Conv2D": (-1, 1),
    "Conv2DBackpropInput": (2, 1),
    "Conv2DBackpropFilter": (2, -1),
    "Conv3D": (-1, 1),
    "Conv3DBackpropInputV2": (2, 1),
    "Conv3DBackpropFilterV2": (2, -1),
}
_DEPTHWISE: Mapping[str, tuple[int, int]] = {
    "DepthwiseConv2dNative": (-1, 1),
    "DepthwiseConv2dNativeBackpropInput": (2, 1),
    "DepthwiseConv2dNativeBackpropFilter": (2, -1),
}


def flops(graph: OpGraph, op: Op) -> float:
    """Floating-point operations of an op; 0 for kinds whose arithmetic is not counted.

    Raises:
        EmulationError: a shape that is needed is not known.
    """
    count = _FLOPS.get(op.kind)
    return 0.0 if count is None else count(graph, op)


def _convolution(graph: OpGraph, op: Op) -> float:
    """Each entry of the result is a sum over the filter's window and input channels."""
    results, taps = (_shape(graph, op, position) for position in _CONVOLUTIONS[op.kind])
    return 2.0 * math.prod(results) * math.prod(taps[:-1])


def _is_square(graph: OpGraph, op: Op) -> bool:
    """Whether an op is a convolution with a square window larger than 1x1."""
    if op.kind not in _CONVOLUTIONS:
        return False
    height, width, *_ = _shape(graph, op, _CONVOLUTIONS[op.kind][1])
    return height == width > 1


def _depthwise(graph: OpGraph, op: Op) -> float:
    """Each entry of the result is a sum over the filter's window."""
    results, taps = (_shape(graph, op, position) for position in _DEPTHWISE[op.kind])
    return 2.0 * math.prod(results) * math.prod(taps[:2])


def _product(graph: OpGraph, op: Op) -> float:
    """2mkn, which is twice the root of mk * kn * mn however the matrices are transposed."""
    left, right, result = (_shape(graph, op, position) for position in (0, 1, -1))
    matrices = math.prod(result[:-2])
    sizes = (math.prod(shape[-2:]) for shape in (left, right, result))
    return 2.0 * matrices * math.sqrt(math.prod(sizes))


_FLOPS: Mapping[str, Callable[[OpGraph, Op], float]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_DEPTHWISE, _depthwise),
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _product),
}


def _shape(graph: OpGraph, op: Op, position: int) -> tuple[int, ...]:
    spec = op.outputs[0] if position < 0 else graph.spec(op.inputs[position])
    if spec.shape is None or None in spec.shape:
        which = "its output" if position < 0 else f"its input '{op.inputs[position]}'"
        raise EmulationError(
            f"the arithmetic of '{op.name}' ({op.kind}) cannot be counted: the shape of {which} is "
            "not known; give its time in a table"
        )
    return tuple(size for size in spec.shape if size is not None)


# Shapes for a batch -----------------------------------------------------------------------------


def sized(context: Context, batch: int) -> OpGraph:
    """The graph with the shapes it has for batches of `batch` examples.

    Every input (placeholder or output of a pipeline) whose first dimension is open gets that size.
    """
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(context.graph_def)
    for node in graph_def.node:
        node.attr.pop("_output_shapes", None)
    with tf.Graph().as_default() as graph:
        inputs = {
            f"{op.name}:{index}": tf1.placeholder(spec.dtype, [batch, *spec.shape[1:]])
            for op, index, spec in _open_inputs(context.op_graph)
            if spec.shape
        }
        tf.graph_util.import_graph_def(graph_def, input_map=inputs, name="")
    definitions = {op.type: op.op_def for op in graph.get_operations()}
    return read_graph(graph.as_graph_def(add_shapes=True), definitions)


def _open_inputs(graph: OpGraph) -> Iterable[tuple[Op, int, TensorSpec]]:
    for op in graph:
        if op.kind in op_types.PLACEHOLDERS or op.kind in op_types.INPUTS:
            for index, spec in enumerate(op.outputs):
                if spec.shape and spec.shape[0] is None:
                    yield op, index, spec
