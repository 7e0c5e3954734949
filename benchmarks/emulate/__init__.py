"""Emulated accelerators: a training step whose kernels are waits that use no processor.

`emulate` takes a `caramel.Context` and gives another one, which goes into `caramel.ARModel` like
any other. In it the computation of a step (forward pass and differentiation) is replaced by timed
waits, one kernel at a time on each device. Variables, raw gradients (their readers, dtypes, shapes
and bytes), post-processing, updates and the order of everything are kept: each gradient appears
when the kernels before it are done, and a kernel starts only when the parameters it reads are
there. So what the network does can be measured on a machine without an accelerator, with many
workers on few cores.

================ ==================================================================================
`region`         which part of a step is computation?
`flops`          how long would its ops take on an accelerator?
`merge`          few long waits in place of many short ones
`write`          the emulated graph
================ ==================================================================================

**Order.** Ready kernels get their device in the order in which TensorFlow's executor comes to them,
which is as arbitrary as on an accelerator, where that order is the order of launches. Nothing is
added that would fix it.

**Time.** A kernel ends when it would end on a device that is never late: the time it takes after
the end of the kernel before it or of what it waits for, counted in those ends and not by the clock.
So a processor that is busy with other things delays a gradient by its own delay, but these delays
do not add up over the step, as they would not in the launch queue of an accelerator. A parameter
counts from when it is there by the clock.

**Costs.** A wait costs some 0.3 ms of processor. Short kernels are therefore joined (`grain_s`);
with that, parameters are read and gradients appear earlier or later than in the original by about a
grain. Each worker holds one constant for each different shape of gradients, so at most as many
bytes as the gradients have.

**Updates** are real and cost real processor time and memory bandwidth: some 0.3 ms for each MB. On
an accelerator they are part of its work. Where they disturb, ``updates="none"`` replaces each dense
update of an optimizer (``ResourceApply...``) by the assignment of the gradient to the parameter,
which costs nothing; slots are then not read or written.

**Not modelled.** Copies between the accelerator and its host; launch queues, kernels that overlap,
bandwidth that kernels share, and caches; memory running full; the processor's work beside the
kernels, such as launching them; transfers between devices of one worker. Inputs are left out unless
asked for, so a step needs no feeds. Kernels do not vary from step to step. Values mean nothing: all
gradients and the loss are constants. Ops that only serve as fetches (summaries, metrics) are gone.
v1 loops and conditionals inside the computation are refused; v2's are one kernel each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import tensorflow as tf
from tensorflow.core.framework.variable_pb2 import SaveSliceInfoDef, VariableDef

from benchmarks.emulate.errors import EmulationError
from benchmarks.emulate.flops import DEVICES, Device, flops_of, flops_times, sized
from benchmarks.emulate.merge import contract, gather_times
from benchmarks.emulate.region import Computation, Inputs, computation
from benchmarks.emulate.write import Points, write
from caramel import Context
from caramel.core.facts import RawGradient, TrainingJob, Variable
from caramel.core.names import TensorRef

__all__ = [
    "DEVICES",
    "Device",
    "EmulationError",
    "emulate",
    "flops_times",
    "kernel_times",
    "traced_times",
]

tf1 = tf.compat.v1

GRAIN_S = 2e-3
OVERHEAD_S = 0.25e-3  # measured on a machine of two cores

Updates = Literal["real", "none"]


def emulate(
    context: Context,
    op_times: Mapping[str, float] | float,
    *,
    batch: int | None = None,
    grain_s: float = GRAIN_S,
    overhead_s: float = OVERHEAD_S,
    inputs: Inputs = "drop",
    updates: Updates = "real",
) -> Context:
    """The job with waits in place of its computation.

    Args:
        context: the job; it stays as it is.
        op_times: seconds that each op takes, by name, such as `flops_times` or `traced_times`
            gives; ops that are missing take no time, and ops that are not emulated take their own
            whatever is given. Or the seconds that all of them take together, spread over them by
            their arithmetic (evenly if there is none to count).
        batch: examples of one worker's batch; needed only if something outside the computation
            reads a tensor whose shape depends on it.
        grain_s: shortest wait, in seconds; shorter kernels are joined.
        overhead_s: how much longer than it is told to a sleep takes, in seconds; it is told to take
            that much less.
        inputs: "keep" if steps are to read (and need to be fed) what the original reads.
        updates: "none" makes the updates of parameters cost nothing.

    Raises:
        EmulationError: the computation cannot be replaced, or the times do not fit the graph.
    """
    found = computation(context, inputs=inputs)
    seconds = _op_seconds(context, found, op_times)
    devices = {name: found.graph[name].device for name in found.order}
    waits = gather_times(found.order, found.before, seconds, devices, grain_s)
    needed = {*waits, *found.links, *found.awaited}
    points = Points(
        before=contract(found.order, found.before, needed),
        waits_s=waits,
        overhead_s=overhead_s,
        shapes=context.op_graph if batch is None else sized(context, batch),
        rows=_rows(context.job, found),
        variables={variable.handle: variable.spec for variable in context.job.variables},
    )
    graph_def = write(context.graph_def, found, points)
    if updates == "none":
        _drop_updates(graph_def, context)
    return _captured(graph_def, context.job, found)


def traced_times(metadata: Any) -> dict[str, float]:
    """Seconds that each op took in a traced step.

    Args:
        metadata: the `tf.compat.v1.RunMetadata` of a step run with a full trace.
    """
    times: dict[str, float] = {}
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            seconds = (node.op_end_rel_micros - node.op_start_rel_micros) * 1e-6
            times[node.node_name] = times.get(node.node_name, 0.0) + seconds
    return times


def kernel_times(emulated: Context) -> dict[str, float]:
    """Seconds of each kernel of an emulated job, by the op whose end is that of the kernel.

    A trace of such a job would count the time in which a kernel waits for the device, too.
    """
    times = {}
    for node in emulated.graph_def.node:
        prefix, _, last = node.name.rpartition("/")
        if last == "seconds" and f"{prefix}/slept" in emulated.op_graph:
            times[f"{prefix}/slept"] = float(tf.make_ndarray(node.attr["value"].tensor))
    return times


# Times ------------------------------------------------------------------------------------------


def _op_seconds(
    context: Context, found: Computation, op_times: Mapping[str, float] | float
) -> dict[str, float]:
    """Seconds of every op of the computation that takes any."""
    if not isinstance(op_times, Mapping):
        return _spread(context, found, op_times)
    for name, seconds in op_times.items():
        if name not in context.op_graph:
            raise EmulationError(f"a time is given for '{name}', which is not an op of the graph")
        if not (seconds >= 0 and math.isfinite(seconds)):
            raise EmulationError(f"'{name}' cannot take {seconds} s")
    return {name: op_times[name] for name in found.order if op_times.get(name)}


def _spread(context: Context, found: Computation, total_s: float) -> dict[str, float]:
    if not (total_s >= 0 and math.isfinite(total_s)):
        raise EmulationError(f"a step cannot take {total_s} s")
    weights = flops_of(context, batch=1) or dict.fromkeys(found.order, 1.0)
    total = sum(weights.values())
    return {name: total_s * weight / total for name, weight in weights.items() if weight}


# The graph --------------------------------------------------------------------------------------


def _rows(job: TrainingJob, found: Computation) -> dict[TensorRef, int]:
    """Of the row numbers of sparse gradients, the rows of their parameter."""
    rows = {}
    for cut in found.cuts:
        shape = job.variable(cut.gradient.parameter).spec.shape
        if cut.gradient.indices is not None and shape and shape[0]:
            rows[cut.gradient.indices] = shape[0]
    return rows


def _drop_updates(graph_def: Any, context: Context) -> None:
    """Assign gradients to parameters in place of what dense updates compute."""
    graph = context.op_graph
    specs = {variable.handle: variable.spec for variable in context.job.variables}
    for node in graph_def.node:
        if not node.op.startswith("ResourceApply"):
            continue
        op = graph[node.name]
        spec = specs.get(op.inputs[0].op)
        values = [t for t in op.inputs if spec is not None and _fits(graph.spec(t), spec)]
        if spec is None or len(values) != 1:
            raise EmulationError(
                f"cannot tell which input of '{node.name}' ({node.op}) is the gradient; "
                "use updates='real'"
            )
        controls = [text for text in node.input if text.startswith("^")]
        del node.input[:]
        node.input.extend([str(op.inputs[0]), str(values[0]), *controls])
        node.op = "AssignVariableOp"
        for key in list(node.attr):
            if key != "_class":
                del node.attr[key]
        node.attr["dtype"].type = tf.as_dtype(spec.dtype).as_datatype_enum


def _fits(spec: Any, wanted: Any) -> bool:
    return spec.dtype == wanted.dtype and spec.shape == wanted.shape


def _captured(graph_def: Any, job: TrainingJob, found: Computation) -> Context:
    """The GraphDef as a job with the variables and raw gradients of the original one."""
    with tf.Graph().as_default() as graph:
        tf1.train.import_meta_graph(_meta_graph(graph_def, job))
        emulated = Context(
            graph,
            train_op=job.train_op,
            loss=str(job.loss),
            gradients=[_gradient(graph, cut.gradient) for cut in found.cuts],
            loss_reduction=job.reduction,
            replicated_feeds=[name for name in job.replicated_feeds if name in found.kept],
        )
    if emulated.job.variables != job.variables:
        before, after = set(job.variables), set(emulated.job.variables)
        raise EmulationError(f"variables changed: {before ^ after}")
    return emulated


def _meta_graph(graph_def: Any, job: TrainingJob) -> Any:
    """The GraphDef with the collections of variables and tables that the job's graph had."""
    meta_graph = tf1.MetaGraphDef(graph_def=graph_def)
    keys, collections = tf1.GraphKeys, meta_graph.collection_def
    for variable in job.variables:
        definition = _definition(variable).SerializeToString()
        key = keys.GLOBAL_VARIABLES if variable.saved else keys.LOCAL_VARIABLES
        collections[key].bytes_list.value.append(definition)
        if variable.trainable:
            collections[keys.TRAINABLE_VARIABLES].bytes_list.value.append(definition)
    if job.table_initializers:
        tables = collections[keys.TABLE_INITIALIZERS].node_list
        tables.value.extend(job.table_initializers)
    # Without a saver, the import would add one to the graph.
    meta_graph.saver_def.save_tensor_name = meta_graph.saver_def.restore_op_name = job.loss.op
    return meta_graph


def _definition(variable: Variable) -> Any:
    """The variable as TensorFlow describes it."""
    definition = VariableDef(
        variable_name=f"{variable.handle}:0",
        initializer_name=variable.initializer,
        snapshot_name=f"{variable.read}:0",
        is_resource=True,
        trainable=variable.trainable,
    )
    if variable.slice_spec:
        definition.save_slice_info_def.CopyFrom(_slice_info(variable))
    return definition


def _slice_info(variable: Variable) -> Any:
    """The whole that a variable is a slice of, and which: ``10 4 0,5:0,4`` for rows 0 to 4."""
    *whole, parts = variable.slice_spec.split(" ")
    pairs = [part.split(",") for part in parts.split(":")]
    return SaveSliceInfoDef(
        full_name=variable.full_name,
        full_shape=[int(size) for size in whole],
        var_offset=[int(offset) for offset, _ in pairs],
        var_shape=[int(length) for _, length in pairs],
    )


def _gradient(graph: tf.Graph, gradient: RawGradient) -> tuple[Any, str]:
    values = graph.get_tensor_by_name(str(gradient.values))
    if gradient.indices is None:
        return values, gradient.parameter
    indices = graph.get_tensor_by_name(str(gradient.indices))
    return tf.IndexedSlices(values, indices), gradient.parameter
