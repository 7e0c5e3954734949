"""The emulated graph: a wait in place of each kernel, everything outside the computation as it was.

An op of the computation becomes a *point*: it waits for the points before it and for the parameters
it reads, and puts out a *token*, the time at which the op is done. Times are those of a device that
is never late: each kernel begins when what it reads is there and the kernel before it is done, by
their tokens, and sleeps until its own end. So the delays of a busy processor do not add up; only
what really arrives (parameters) is timed by the clock. On each device a lock lets one kernel sleep
at a time, and a variable that Caramel does not see holds the end of the last.

Where something outside reads the op's output, an ``IdentityN`` under the op's own name puts out a
constant of that dtype and shape. Every dependency is an edge that carries data, none is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.emulate.errors import EmulationError
from benchmarks.emulate.region import Computation, Links
from caramel.core.dtypes import dtype_number
from caramel.core.graph import OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.variable_access import handle_of
from caramel.modifiers.graph_writer import SCALAR, GraphWriter

tf1 = tf.compat.v1

_PREFIX = "emulated"
_TOKEN = TensorSpec("float64", ())  # seconds since 1970
_FLOAT_VALUE = 1e-3  # in every gradient: small enough for parameters to stay finite


@dataclass(frozen=True, slots=True)
class Points:
    """What is to be written for the computation.

    Attributes:
        before: each point with the points it waits for, in topological order.
        waits_s: how long a point's wait is, in seconds.
        overhead_s: how long a sleep takes more than it is told to.
        shapes: the graph with shapes of outputs known as far as possible.
        variables: what is known of each variable, by its handle.
        rows: for the row numbers of sparse gradients, how many rows there are to choose from.
    """

    before: Mapping[str, tuple[str, ...]]
    waits_s: Mapping[str, float]
    overhead_s: float
    shapes: OpGraph
    variables: Mapping[str, TensorSpec]
    rows: Mapping[TensorRef, int]


def write(graph_def: Any, computation: Computation, points: Points) -> Any:
    """The emulated GraphDef.

    Raises:
        EmulationError: something outside reads an output of unknown shape.
    """
    written = tf1.GraphDef()
    written.versions.CopyFrom(graph_def.versions)
    written.library.CopyFrom(graph_def.library)
    emulation = _Emulation(written, computation, points)
    for node in graph_def.node:
        if node.name in computation.kept:
            _copy(written.node.add(), node, computation.kept)
        elif node.name in points.before:
            emulation.add(node.name)
    return written


def _copy(target: Any, node: Any, kept: frozenset[str]) -> None:
    """A node that stays; it is colocated only with others that stay."""
    target.CopyFrom(node)
    target.attr.pop("_output_shapes", None)
    if "_class" in target.attr:
        groups = [
            group
            for group in target.attr.pop("_class").list.s
            if group.decode().removeprefix("loc:@") in kept
        ]
        if groups:
            target.attr["_class"].list.s.extend(groups)


class _Emulation:
    """Adds the nodes of points, and what they share."""

    def __init__(self, graph_def: Any, computation: Computation, points: Points) -> None:
        self._writer = GraphWriter(graph_def)
        self._computation, self._points = computation, points
        self._graph = computation.graph
        self._shared: dict[Any, TensorRef] = {}  # constants and locks, by what they are

    def add(self, name: str) -> None:
        """Add the point of an op, and the op's outputs if something outside reads them."""
        device, links = self._graph[name].device, self._computation.links.get(name, Links())
        prefix = f"{name}/{_PREFIX}"
        tokens = [_token(source) for source in self._points.before[name]] or [self._start()]
        linked = self._linked(prefix, links, device)
        if linked or links.controls:
            tokens.append(self._arrival(prefix, linked, links.controls, device))
        ready = self._latest(prefix, tokens, device)
        if linked:
            tensors, specs = zip(*linked, strict=True)
            ready = self._identity(f"{prefix}/ready", [ready, *tensors], [_TOKEN, *specs], device)
        if name in self._points.waits_s:
            ready = self._kernel(prefix, ready, self._points.waits_s[name], device)
            controls = [f"{prefix}/release"]
        else:
            controls = []
        self._identity(_token(name).op, [ready], [_TOKEN], device, controls)
        if name in self._computation.awaited:
            self._outputs(name, device)

    # Tokens

    def _start(self) -> TensorRef:
        """The token of points that wait for no other: the begin of the step.

        The clock differs between workers, so everything computed from it counts as worker's own.
        """
        if "start" not in self._shared:
            resets = [self._reset(device) for device in dict.fromkeys(self._devices())]
            self._shared["start"] = self._clock(f"{_PREFIX}/start", "", resets)
        return self._shared["start"]

    def _devices(self) -> Iterator[str]:
        """Where kernels run."""
        return (self._graph[name].device for name in self._points.waits_s)

    def _reset(self, device: str) -> str:
        """At the begin of a step, a device is free."""
        handle = self._busy_until(device)
        zero = self._writer.constant(f"{handle.op}/zero", np.array(0.0), device=device)
        name = f"{handle.op}/reset"
        self._writer.add(
            name, "AssignVariableOp", [handle, zero], device=device, dtype=_TOKEN.dtype
        )
        return name

    def _linked(self, prefix: str, links: Links, device: str) -> list[tuple[TensorRef, TensorSpec]]:
        """The values from outside that an op reads."""
        linked = [(tensor, self._graph.spec(tensor)) for tensor in links.tensors]
        for number, handle in enumerate(links.handles):
            spec = self._points.variables[handle_of(self._graph, handle)]
            read = f"{prefix}/read_{number}"
            self._writer.add(read, "ReadVariableOp", [handle], device=device, dtype=spec.dtype)
            linked.append((TensorRef(read), spec))
        return linked

    def _arrival(
        self,
        prefix: str,
        linked: Sequence[tuple[TensorRef, TensorSpec]],
        controls: Sequence[str],
        device: str,
    ) -> TensorRef:
        """When all that comes from outside is there."""
        awaited = list(controls)
        if linked:
            tensors, specs = zip(*linked, strict=True)
            awaited.append(self._identity(f"{prefix}/arrived", tensors, specs, device).op)
        return self._clock(f"{prefix}/arrival", device, awaited)

    def _clock(self, name: str, device: str, controls: Sequence[str]) -> TensorRef:
        return self._writer.add(name, "Timestamp", device=device, controls=controls)

    def _latest(self, prefix: str, tokens: Sequence[TensorRef], device: str) -> TensorRef:
        if len(tokens) == 1:
            return tokens[0]
        name, dtype = f"{prefix}/latest", _TOKEN.dtype
        packed = self._writer.add(
            f"{name}/of", "Pack", tokens, device=device, T=dtype, N=len(tokens), axis=0
        )
        axis = self._number("axis", np.array(0, np.int32), device)
        return self._writer.add(
            name, "Max", [packed, axis], device=device, T=dtype, Tidx="int32", keep_dims=False
        )

    def _identity(
        self,
        name: str,
        inputs: Sequence[TensorRef],
        specs: Sequence[TensorSpec],
        device: str,
        controls: Sequence[str] = (),
    ) -> TensorRef:
        tensor = self._writer.add(name, "IdentityN", inputs, device=device, controls=controls)
        dtypes = [dtype_number(spec.dtype) for spec in specs]
        self._writer.last.attr["T"].list.type.extend(dtypes)
        return tensor

    # Waits

    def _kernel(self, prefix: str, ready: TensorRef, seconds: float, device: str) -> TensorRef:
        """Hold the device's lock until the kernel's end, which is put out.

        The lock is free again as soon as nothing holds the tensor, so an op that consumes it
        stands after the sleep. Waiters get it in the order in which they asked for it.
        """
        lock = self._writer.add(
            f"{prefix}/lock", "MutexLock", [self._mutex(device)], device=device, controls=[ready.op]
        )
        free = self._writer.add(
            f"{prefix}/free",
            "ReadVariableOp",
            [self._busy_until(device)],
            device=device,
            controls=[lock.op],
            dtype=_TOKEN.dtype,
        )
        begin = self._compute(f"{prefix}/begin", "Maximum", [ready, free], device)
        duration = self._writer.constant(
            f"{prefix}/seconds", np.array(seconds, np.float64), device=device
        )
        end = self._compute(f"{prefix}/end", "AddV2", [begin, duration], device)
        self._writer.add(
            f"{prefix}/busy",
            "AssignVariableOp",
            [self._busy_until(device), end],
            device=device,
            dtype=_TOKEN.dtype,
        )
        slept = self._sleep(prefix, end, free.op, device)
        self._writer.add(
            f"{prefix}/release",
            "ConsumeMutexLock",
            [lock],
            device=device,
            controls=[slept.op, f"{prefix}/busy"],
        )
        return slept

    def _mutex(self, device: str) -> TensorRef:
        key = ("mutex", device)
        if key not in self._shared:
            name = f"{_PREFIX}/device_{len(self._shared)}"
            self._shared[key] = self._writer.add(name, "MutexV2", device=device)
            self._writer.last.attr["shared_name"].s = name.encode()
        return self._shared[key]

    def _busy_until(self, device: str) -> TensorRef:
        """The variable that holds the end of a device's last kernel; no variable of the job."""
        key = ("busy until", device)
        if key not in self._shared:
            name = f"{_PREFIX}/busy_until_{len(self._shared)}"
            self._shared[key] = self._writer.add(
                name, "VarHandleOp", device=device, dtype=_TOKEN.dtype, shape=SCALAR
            )
            self._writer.last.attr["shared_name"].s = name.encode()
        return self._shared[key]

    def _sleep(self, prefix: str, end: TensorRef, locked: str, device: str) -> TensorRef:
        """The token, at the time it says.

        The sleeping dataset sleeps before every element. Its end would be one more, so another
        dataset takes only the first.
        """
        now = self._clock(f"{prefix}/now", device, [locked])
        left = self._compute(f"{prefix}/left", "Sub", [end, now], device)
        left = self._compute(f"{prefix}/early", "Sub", [left, self._lead(device)], device)
        million = self._number("million", np.array(1e6), device)
        pause = self._compute(f"{prefix}/microseconds", "Mul", [left, million], device)
        nothing = self._number("nothing", np.array(0.0), device)
        pause = self._compute(f"{prefix}/positive", "Maximum", [pause, nothing], device)
        pause = self._writer.add(
            f"{prefix}/pause", "Cast", [pause], device=device, SrcT=_TOKEN.dtype, DstT="int64"
        )
        one = self._number("one", np.array(1, np.int64), device)
        data = self._dataset(f"{prefix}/kernel", "TensorDataset", [end], device)
        data = self._dataset(f"{prefix}/sleep", "SleepDataset", [data, pause], device)
        data = self._dataset(f"{prefix}/once", "TakeDataset", [data, one], device)
        return self._dataset(f"{prefix}/slept", "DatasetToSingleElement", [data], device)

    def _lead(self, device: str) -> TensorRef:
        """How much earlier than it should end a sleep is told to end, since it ends late."""
        return self._number("lead", np.array(self._points.overhead_s, np.float64), device)

    def _compute(self, name: str, kind: str, inputs: Sequence[TensorRef], device: str) -> TensorRef:
        return self._writer.add(name, kind, inputs, device=device, T=_TOKEN.dtype)

    def _number(self, name: str, value: np.ndarray, device: str) -> TensorRef:
        """A constant that all kernels of a device share."""
        key = (name, device)
        if key not in self._shared:
            name = f"{_PREFIX}/{name}_{len(self._shared)}"
            self._shared[key] = self._writer.constant(name, value, device=device)
        return self._shared[key]

    def _dataset(
        self,
        name: str,
        kind: str,
        inputs: Sequence[TensorRef],
        device: str,
        controls: Sequence[str] = (),
    ) -> TensorRef:
        tensor = self._writer.add(name, kind, inputs, device=device, controls=controls)
        attributes = self._writer.last.attr
        types = "Toutput_types" if kind == "TensorDataset" else "output_types"
        attributes[types].list.type.append(dtype_number(_TOKEN.dtype))
        attributes["output_shapes"].list.shape.add()
        return tensor

    # Outputs

    def _outputs(self, name: str, device: str) -> None:
        """Put out real bytes where something outside reads them, and tokens elsewhere."""
        wanted = [t.index for t in self._computation.exports if t.op == name]
        inputs, specs = [], []
        for index in range(max(wanted, default=-1) + 1):
            spec = self._points.shapes[name].outputs[index] if index in wanted else _TOKEN
            tensor = TensorRef(name, index)
            inputs.append(self._constant(tensor, spec, device) if index in wanted else _token(name))
            specs.append(spec)
        self._identity(name, [*inputs, _token(name)], [*specs, _TOKEN], device)

    def _constant(self, tensor: TensorRef, spec: TensorSpec, device: str) -> TensorRef:
        """A constant that all tensors of this dtype and shape share.

        Only one number of it is in the GraphDef; each worker makes the whole once.
        """
        if spec.elements is None:
            raise EmulationError(
                f"'{tensor}' is read by what is not emulated, and its shape ({spec.shape}) is not "
                "known; say with batch= how many examples a worker has"
            )
        rows = self._points.rows.get(tensor)
        key = (spec, device, rows)
        if key not in self._shared:
            value: Any = _FLOAT_VALUE if spec.dtype.startswith(("float", "bfloat")) else 0
            if rows:
                value = np.arange(spec.elements) % rows
            name = f"{_PREFIX}/value_{len(self._shared)}"
            self._shared[key] = self._writer.add(name, "Const", device=device, dtype=spec.dtype)
            self._writer.last.attr["value"].tensor.CopyFrom(
                tf.make_tensor_proto(value, spec.dtype, list(spec.shape or ()))
            )
        return self._shared[key]


def _token(op: str) -> TensorRef:
    """The scalar that says that an op is done."""
    return TensorRef(f"{op}/{_PREFIX}")
