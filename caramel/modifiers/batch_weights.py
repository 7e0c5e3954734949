"""Says how much each worker's part of a batch counts.

A worker's *share* is its number of examples times the number of workers, divided by the number of
examples of all: 1 if parts are equal. Its gradient, the mean over its own part, counts that much in
the mean over the workers, which is then the mean over the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.core.dtypes import dtype_number
from caramel.core.facts import MEAN, Divisor, Weight
from caramel.core.graph import TensorSpec
from caramel.core.graph_reader import read_outputs
from caramel.core.names import TensorRef, added, in_replica, parse_input, tensor_in_replica
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import SCALAR, GraphWriter, copy_of

SHARE_DTYPE = "float64"
_SCALAR = TensorSpec(SHARE_DTYPE, ())


def share(worker: int, weight: Weight = MEAN) -> TensorRef:
    """The worker's share, by a weight."""
    return TensorRef(added(worker, *_scope(weight), "share"))


def uneven(worker: int, weight: Weight = MEAN) -> TensorRef:
    """Whether the worker's share is not 1."""
    return TensorRef(added(worker, *_scope(weight), "uneven"))


def counted(worker: int, weight: Weight) -> TensorRef:
    """How many times what is the same on every worker would count, by a weight; on a worker."""
    return TensorRef(added(worker, *_scope(weight), "counted"))


def multiplication(weight: Weight) -> str:
    """The kind of op by which a gradient is multiplied by a share.

    Where a loss is divided by a count, a worker that counts nothing may have divided by 0.
    """
    return "MulNoNan" if weight.divisors else "Mul"


def _scope(weight: Weight) -> tuple[str, ...]:
    return () if weight == MEAN else ("weight", weight.name.replace(" ", "_").replace(":", "_"))


def counts(worker: int) -> TensorRef:
    """The numbers of examples of all workers, where pipelines deliver them."""
    return TensorRef(added(worker, "counts"))


def weigh(graph_def: Any, plan: Plan) -> Any:
    """Add each worker's share."""
    if plan.workers == 1:
        return graph_def
    weighed = copy_of(graph_def)
    writer = GraphWriter(weighed)
    if plan.job.examples is None:
        for worker, device in enumerate(plan.job.devices):
            _add_fed_share(writer, worker, device)
    else:
        counted = [
            _add_count(
                writer, worker, device, tensor_in_replica(worker, plan.job.examples), graph_def
            )
            for worker, device in enumerate(plan.job.devices)
        ]
        for worker, device in enumerate(plan.job.devices):
            _add_counted_share(writer, worker, device, counted)
    if plan.job.weights:
        nodes = {node.name: node for node in graph_def.node}
        for weight in plan.job.weights:
            _Shares(writer, plan, weight, nodes).add()
    return weighed


def _add_fed_share(writer: GraphWriter, worker: int, device: str) -> None:
    """A share that the client feeds where it has split the batch into parts that are not equal."""
    flag = TensorSpec("bool", ())
    # Equal parts, unless something else is fed.
    one = writer.constant(added(worker, "share/default"), np.array(1.0), device=device)
    even = writer.constant(added(worker, "uneven/default"), np.array(False), device=device)
    kind = "PlaceholderWithDefault"
    writer.add(
        share(worker).op,
        kind,
        [one],
        device=device,
        outputs=[_SCALAR],
        dtype=SHARE_DTYPE,
        shape=SCALAR,
    )
    writer.add(
        uneven(worker).op,
        kind,
        [even],
        device=device,
        outputs=[flag],
        dtype="bool",
        shape=SCALAR,
    )


def _add_count(
    writer: GraphWriter, worker: int, device: str, examples: TensorRef, graph_def: Any
) -> TensorRef:
    """The first dimension of the worker's batch, as a scalar."""
    node = next(node for node in graph_def.node if node.name == examples.op)
    number = node.attr["output_types"].list.type[examples.index]
    shape_op = writer.add(
        added(worker, "count/shape"), "Shape", [examples], device=device, out_type="int64"
    )
    writer.last.attr["T"].type = number
    zero = writer.constant(added(worker, "count/axis"), np.array(0, np.int32), device=device)
    first = writer.add(
        added(worker, "count/first"),
        "GatherV2",
        [shape_op, zero, zero],
        device=device,
        outputs=[TensorSpec("int64", ())],
        Tparams="int64",
        Tindices="int32",
        Taxis="int32",
    )
    return writer.add(
        added(worker, "count"),
        "Cast",
        [first],
        device=device,
        outputs=[_SCALAR],
        SrcT="int64",
        DstT=SHARE_DTYPE,
    )


def _add_counted_share(
    writer: GraphWriter, worker: int, device: str, counted: list[TensorRef]
) -> None:
    """A share of what an input pipeline delivers, from the numbers of examples of all workers."""
    workers = len(counted)
    packed = writer.add(
        counts(worker).op,
        "Pack",
        counted,
        device=device,
        outputs=[TensorSpec(SHARE_DTYPE, (workers,))],
        T=SHARE_DTYPE,
        N=workers,
        axis=0,
    )
    axis = writer.constant(added(worker, "total/axis"), np.array([0], np.int32), device=device)
    total = writer.add(
        added(worker, "total"),
        "Sum",
        [packed, axis],
        device=device,
        outputs=[_SCALAR],
        T=SHARE_DTYPE,
        Tidx="int32",
        keep_dims=False,
    )
    number = writer.constant(
        added(worker, "share/workers"), np.array(float(workers)), device=device
    )
    scaled = writer.add(
        added(worker, "share/scaled"),
        "Mul",
        [counted[worker], number],
        device=device,
        outputs=[_SCALAR],
        T=SHARE_DTYPE,
    )
    own = writer.add(
        share(worker).op,
        "RealDiv",
        [scaled, total],
        device=device,
        outputs=[_SCALAR],
        T=SHARE_DTYPE,
    )
    one = writer.constant(added(worker, "uneven/one"), np.array(1.0), device=device)
    writer.add(
        uneven(worker).op,
        "NotEqual",
        [own, one],
        device=device,
        outputs=[TensorSpec("bool", ())],
        T=SHARE_DTYPE,
        incompatible_shape_error=True,
    )


# Weights ----------------------------------------------------------------------------------------


class _Shares:
    """The shares of all workers by a weight.

    Where a loss is divided by another count, such as the sum of a mask, that counts in place of the
    number of examples (`Weight`). The workers tell each other the sums from which it is computed,
    and each computes it again from the sums over all workers: the number by which one device would
    divide.

    Args:
        nodes: of the replicas, by name.
    """

    def __init__(
        self, writer: GraphWriter, plan: Plan, weight: Weight, nodes: Mapping[str, Any]
    ) -> None:
        self._writer, self._plan, self._weight, self._nodes = writer, plan, weight, nodes
        self._constants: dict[Any, TensorRef] = {}

    def add(self) -> None:
        """Add them."""
        leaves = {
            tensor: [self._leaf(worker, number, divisor, tensor) for worker in self._workers]
            for number, (divisor, tensor) in enumerate(self._leaves())
        }
        for worker in self._workers:
            totals = {
                tensor: self._total(worker, str(number), own)
                for number, (tensor, own) in enumerate(leaves.items())
            }
            self._add_share(worker, totals)
        # For what is the same on every worker, which `count_once` divides by this.
        if self._weight in self._plan.balanced_weights:
            shares = [share(worker, self._weight) for worker in self._workers]
            for worker in self._workers:
                total = self._total(worker, "shares", shares)
                inputs = [total, self._constant(worker, self._plan.workers)]
                self._op(worker, "counted", "RealDiv", inputs)

    @property
    def _workers(self) -> range:
        return range(self._plan.workers)

    def _leaves(self) -> list[tuple[Divisor, TensorRef]]:
        found = {
            tensor: divisor
            for divisor in self._weight.divisors
            for tensor in (*divisor.sums, *divisor.means)
        }
        return [(divisor, tensor) for tensor, divisor in found.items()]

    def _leaf(self, worker: int, number: int, divisor: Divisor, tensor: TensorRef) -> TensorRef:
        """What a worker adds to a sum over all: a sum of its own, or its part of a mean."""
        name = f"leaf/{number}"
        own = self._number(worker, name, divisor, tensor)
        if tensor in divisor.means:
            part = self._op(worker, f"{name}/part", "Mul", [own, share(worker)])
            own = self._op(
                worker,
                f"{name}/mean",
                "RealDiv",
                [part, self._constant(worker, self._plan.workers)],
            )
        return own

    def _number(self, worker: int, name: str, divisor: Divisor, tensor: TensorRef) -> TensorRef:
        """A scalar of a worker, or its number of rows, as a float64."""
        own, dtype = tensor_in_replica(worker, tensor), self._dtype(worker, tensor)
        if divisor.rows:
            shape = self._op(worker, f"{name}/shape", "Shape", [own], None, out_type="int64")
            self._writer.last.attr["T"].type = dtype
            zero = self._constant(worker, 0, np.int32)
            own = self._op(
                worker,
                f"{name}/rows",
                "GatherV2",
                [shape, zero, zero],
                None,
                Tparams="int64",
                Tindices="int32",
                Taxis="int32",
            )
            dtype = dtype_number("int64")
        flat = self._op(worker, f"{name}/own", "Cast", [own], None, DstT=SHARE_DTYPE)
        self._writer.last.attr["SrcT"].type = dtype
        return self._op(
            worker,
            name,
            "Reshape",
            [flat, self._constant(worker, [], np.int32)],
            Tshape="int32",
        )

    def _total(self, worker: int, number: str, leaves: Sequence[TensorRef]) -> TensorRef:
        """The sum over all workers."""
        count, vector = len(leaves), TensorSpec(SHARE_DTYPE, (len(leaves),))
        packed = self._op(worker, f"all/{number}", "Pack", leaves, vector, N=count, axis=0)
        axis = self._constant(worker, [0], np.int32)
        return self._op(
            worker, f"total/{number}", "Sum", [packed, axis], Tidx="int32", keep_dims=False
        )

    def _add_share(self, worker: int, totals: Mapping[TensorRef, TensorRef]) -> None:
        """How many times the mean over the workers a worker counts."""
        workers = self._constant(worker, self._plan.workers)
        result = workers
        for number in range(self._weight.examples):
            part = self._op(worker, f"part/{number}", "RealDiv", [share(worker), workers])
            result = self._op(worker, f"examples/{number}", "Mul", [result, part])
        none = None
        for number, divisor in enumerate(self._weight.divisors):
            own = self._number(worker, f"own/{number}", divisor, divisor.tensor)
            whole = self._whole(worker, f"whole/{number}", divisor, totals)
            scaled = self._op(worker, f"scaled/{number}", "Mul", [result, own])
            result = self._op(worker, f"divided/{number}", "DivNoNan", [scaled, whole])
            none = self._or(worker, f"none/{number}", none, self._is_zero(worker, number, whole))
        if none is not None:  # no worker has anything: as one device, each alike
            one = self._constant(worker, 1.0)
            result = self._op(worker, "alike", "SelectV2", [none, one, result])
        self._op(worker, "share", "Identity", [result])
        flag = TensorSpec("bool", ())
        inputs = [share(worker, self._weight), self._constant(worker, 1.0)]
        self._op(worker, "uneven", "NotEqual", inputs, flag, incompatible_shape_error=True)

    def _whole(
        self, worker: int, name: str, divisor: Divisor, totals: Mapping[TensorRef, TensorRef]
    ) -> TensorRef:
        """What one device would divide by: computed again from the sums over all workers."""
        if not divisor.ops:
            return totals[divisor.tensor]
        replaced = {
            tensor_in_replica(worker, tensor): self._as_before(
                worker, f"{name}/{number}", tensor, totals[tensor]
            )
            for number, tensor in enumerate((*divisor.sums, *divisor.means))
        }
        for op in divisor.ops:
            node = self._nodes[in_replica(worker, op)]
            again = self._copy(worker, f"{name}/{op}", node, replaced)
            # How many outputs an op has is not looked up: names of more do no harm.
            for index in range(_MOST_OUTPUTS):
                replaced[TensorRef(node.name, index)] = TensorRef(again, index)
        tensor = replaced[tensor_in_replica(worker, divisor.tensor)]
        flat = self._op(worker, f"{name}/cast", "Cast", [tensor], None, DstT=SHARE_DTYPE)
        self._writer.last.attr["SrcT"].type = self._dtype(worker, divisor.tensor)
        return self._op(
            worker, name, "Reshape", [flat, self._constant(worker, [], np.int32)], Tshape="int32"
        )

    def _copy(
        self, worker: int, name: str, node: Any, replaced: Mapping[TensorRef, TensorRef]
    ) -> str:
        """The op of a replica once more, with other inputs."""
        reads = [parse_input(text) for text in node.input]
        inputs = [replaced.get(tensor, tensor) for tensor in reads if tensor is not None]
        self._op(worker, name, node.op, inputs, None, typed=False)
        for key, value in node.attr.items():
            # These are about the other node's place, and about its outputs.
            if key not in ("_class", "_output_shapes"):
                self._writer.last.attr[key].CopyFrom(value)
        return str(self._writer.last.name)

    def _as_before(self, worker: int, name: str, tensor: TensorRef, total: TensorRef) -> TensorRef:
        """A sum over all workers in the dtype and shape of the worker's own."""
        dtype, own = self._dtype(worker, tensor), tensor_in_replica(worker, tensor)
        number = self._op(worker, f"{name}/as", "Cast", [total], None, SrcT=SHARE_DTYPE)
        self._writer.last.attr["DstT"].type = dtype
        shape = self._op(worker, f"{name}/shape", "Shape", [own], None, out_type="int32")
        self._writer.last.attr["T"].type = dtype
        shaped = self._op(
            worker, f"{name}/total", "Reshape", [number, shape], None, typed=False, Tshape="int32"
        )
        self._writer.last.attr["T"].type = dtype
        return shaped

    def _is_zero(self, worker: int, number: int, whole: TensorRef) -> TensorRef:
        zero, flag = self._constant(worker, 0.0), TensorSpec("bool", ())
        return self._op(
            worker, f"zero/{number}", "Equal", [whole, zero], flag, incompatible_shape_error=True
        )

    def _or(self, worker: int, name: str, first: TensorRef | None, second: TensorRef) -> TensorRef:
        if first is None:
            return second
        flag = TensorSpec("bool", ())
        return self._op(worker, name, "LogicalOr", [first, second], flag, typed=False)

    # Nodes

    def _dtype(self, worker: int, tensor: TensorRef) -> int:
        """The number of a tensor's dtype."""
        node = self._nodes[in_replica(worker, tensor.op)]
        kind = _definition(node.op)
        return dtype_number(read_outputs(node, kind)[tensor.index].dtype)

    def _constant(self, worker: int, value: Any, dtype: Any = np.float64) -> TensorRef:
        array = np.array(value, dtype)
        key = (worker, str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = added(worker, *_scope(self._weight), "constant", str(len(self._constants)))
            device = self._plan.job.devices[worker]
            self._constants[key] = self._writer.constant(name, array, device=device)
        return self._constants[key]

    def _op(
        self,
        worker: int,
        name: str,
        kind: str,
        inputs: Sequence[TensorRef],
        output: TensorSpec | None = _SCALAR,
        *,
        typed: bool = True,
        **attributes: Any,
    ) -> TensorRef:
        """A node of the weight's on a worker; `T` is float64 where the kind has it."""
        if typed and kind not in _UNTYPED:
            attributes["T"] = SHARE_DTYPE
        return self._writer.add(
            added(worker, *_scope(self._weight), name),
            kind,
            inputs,
            device=self._plan.job.devices[worker],
            outputs=() if output is None else [output],
            **attributes,
        )


_UNTYPED = frozenset({"Cast", "GatherV2", "Shape"})
_MOST_OUTPUTS = 4


@cache
def _definition(kind: str) -> Any:
    return tf.Graph().op_def_for_type(kind)
