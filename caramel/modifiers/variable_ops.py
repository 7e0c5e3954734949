"""Ops beside the training step that read, broadcast, merge and restore variables.

The *source* of a variable is the copy in which it is initialised and restored: the evaluation copy
if there is one, else worker 0's (they share all but local variables).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.core import names
from caramel.core.dtypes import is_differentiable
from caramel.core.facts import Variable
from caramel.core.names import TensorRef, added
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, copy_of, static_shape
from caramel.modifiers.serving.servers import prefix_of

# Of the tree along which a variable is broadcast: whoever has received it sends it on to so many
# others at most. So no link carries it once for each worker, and no sender holds as many copies.
BRANCHES = 2

_SEED_STRIDE, _SEED_MASK = 0x9E3779B1, 0x7FFFFFFF  # spreads seeds over what all integers can hold


def source_prefix(plan: Plan) -> str:
    """The prefix of the copy in which variables are initialised and restored."""
    return names.EVALUATION if plan.consequences.evaluation else names.replica_prefix(0)


def value_on(plan: Plan, worker: int, variable: Variable) -> TensorRef:
    """A variable's value on one worker; of one on a server its value there."""
    prefix = prefix_of(plan, variable.name, worker)
    return TensorRef(names.in_copy(prefix, variable.read))


def _sent_value(worker: int, variable: Variable) -> TensorRef:
    """The same, to be sent to worker 0 to be merged."""
    return TensorRef(added(worker, "read", variable.name))


def source_value(variable: Variable) -> TensorRef:
    """A variable's value at its source."""
    return TensorRef(added(0, "source", variable.name))


def merged_value(variable: Variable) -> TensorRef:
    """The sum or the mean of a local variable over the workers."""
    return TensorRef(added(0, "merged", variable.name))


def broadcast_op(worker: int, variable: Variable) -> str:
    """Assigns the source's value to a worker's variable."""
    return added(worker, "broadcast", variable.name)


def refresh_op(variable: Variable) -> str:
    """Assigns what a local variable is on all workers together to the evaluation copy's."""
    return added(0, "refresh", variable.name)


def restore_op(variable: Variable) -> str:
    """Assigns what is fed to `restored_value` to the source's variable."""
    return added(0, "restore", variable.name)


def restored_value(variable: Variable) -> TensorRef:
    """Placeholder of the value that `restore_op` assigns."""
    return TensorRef(added(0, "restored", variable.name))


def has_parts(variable: Variable, plan: Plan) -> bool:
    """Whether a variable is a sum or a mean over the workers, however many there are; there is no
    mean of integers."""
    is_float = is_differentiable(variable.spec.dtype)
    return variable.name in plan.job.summed or (variable.name in plan.job.local and is_float)


def is_merged(variable: Variable, plan: Plan) -> bool:
    """Whether a variable is a sum or a mean over several workers."""
    return has_parts(variable, plan) and plan.workers > 1


def broadcast_targets(variable: Variable, plan: Plan) -> range:
    """The workers whose copy of a variable is not the source's.

    None has a copy of one that is on a server.
    """
    if variable.name in plan.job.served:
        return range(0)
    own_source = plan.consequences.evaluation and variable.name in plan.job.local
    return range(0 if own_source else 1, plan.workers)


def drawing_offset(plan: Plan, worker: int, variable: Variable) -> np.ndarray | None:
    """What a worker adds to a variable from which it draws otherwise than worker 0; else None."""
    spec = variable.spec
    if variable.name not in plan.job.drawing or not spec.shape:
        return None
    offset = np.zeros(spec.elements or 0, tf.as_dtype(spec.dtype).as_numpy_dtype)
    if variable.name in plan.job.seeds:
        # The last element may count. Users' seeds are often neighbours: 1, 2, 3.
        offset[0] = worker * _SEED_STRIDE & _SEED_MASK
    else:
        offset[-1] = worker  # of a generator's state, which ends with its key
    return offset


def synchronise(graph_def: Any, plan: Plan) -> Any:
    """Add the ops that read, broadcast, average and restore variables."""
    synchronised = copy_of(graph_def)
    devices = {node.name: node.device for node in graph_def.node}
    for variable in plan.job.variables:
        _VariableOps(GraphWriter(synchronised), plan, variable, devices).write()
    return synchronised


class _VariableOps:
    """The ops for one variable."""

    def __init__(
        self, writer: GraphWriter, plan: Plan, variable: Variable, devices: dict[str, str]
    ) -> None:
        self._writer, self._plan, self._variable, self._devices = writer, plan, variable, devices
        self._home = devices[names.in_copy(source_prefix(plan), variable.handle)]

    def write(self) -> None:
        variable, plan = self._variable, self._plan
        source_handle = TensorRef(names.in_copy(source_prefix(plan), variable.handle))
        source = self._read(source_value(variable).op, source_handle, self._home)
        self._write_broadcasts(source)
        merges = is_merged(variable, plan)
        if merges:
            self._write_merged()
        if variable.name in plan.job.local and plan.consequences.evaluation:
            value = merged_value(variable) if merges else value_on(plan, 0, variable)
            self._assign(refresh_op(variable), source_handle, value, self._home)
        placeholder = self._writer.add(
            restored_value(variable).op,
            "Placeholder",
            device=self._home,
            dtype=variable.spec.dtype,
            shape=static_shape(variable.spec),
        )
        self._assign(restore_op(variable), source_handle, placeholder, self._home)

    def _read(self, name: str, handle: TensorRef, device: str) -> TensorRef:
        spec = self._variable.spec
        return self._writer.add(
            name, "ReadVariableOp", [handle], device=device, outputs=[spec], dtype=spec.dtype
        )

    def _assign(self, name: str, handle: TensorRef, value: TensorRef, device: str) -> None:
        self._writer.add(
            name,
            "AssignVariableOp",
            [handle, value],
            device=device,
            dtype=self._variable.spec.dtype,
        )

    def _write_broadcasts(self, source: TensorRef) -> None:
        """Down a binary tree of workers with the source, which is with worker 0, at its root."""
        received = [source]
        for worker in broadcast_targets(self._variable, self._plan):
            if worker:
                value = received[(worker - 1) // BRANCHES]
                # Only workers that send it on to others.
                if BRANCHES * worker + 1 < self._plan.workers:
                    value = self._relay(worker, value)
                received.append(value)
            self._write_broadcast(worker, received[worker])

    def _relay(self, worker: int, value: TensorRef) -> TensorRef:
        """A value that was sent to a worker, to be sent on from there."""
        variable = self._variable
        return self._writer.add(
            added(worker, "relay", variable.name),
            "Identity",
            [value],
            device=self._device(worker),
            outputs=[variable.spec],
            T=variable.spec.dtype,
        )

    def _write_broadcast(self, worker: int, value: TensorRef) -> None:
        """Assign on a worker what came from the source."""
        variable, device = self._variable, self._device(worker)
        # A sum is whole on worker 0, so the others begin at zero.
        if variable.name in self._plan.job.summed and worker:
            value = self._writer.add(
                added(worker, "broadcast_zeros", variable.name),
                "ZerosLike",
                [value],
                device=device,
                outputs=[variable.spec],
                T=variable.spec.dtype,
            )
        offset = drawing_offset(self._plan, worker, variable)
        if offset is not None:
            constant = self._writer.constant(
                added(worker, "broadcast_offset", variable.name), offset, device=device
            )
            value = self._writer.add(
                added(worker, "broadcast_state", variable.name),
                "AddV2",
                [value, constant],
                device=device,
                outputs=[variable.spec],
                T=variable.spec.dtype,
            )
        handle = TensorRef(names.in_replica(worker, variable.handle))
        self._assign(broadcast_op(worker, variable), handle, value, device)

    def _device(self, worker: int) -> str:
        """Where a worker has the variable."""
        return self._devices[names.in_replica(worker, self._variable.handle)]

    def _write_merged(self) -> None:
        """What the local variables of all workers are together: that is saved and evaluated."""
        variable, plan = self._variable, self._plan
        spec, device = variable.spec, self._home
        adds = variable.name in plan.job.summed
        last = plan.workers - 1
        total, *others = self._values()
        for worker, value in enumerate(others, start=1):  # `AddN` has no fixed order
            is_result = adds and worker == last
            name = added(0, "total", str(worker), variable.name)
            total = self._writer.add(
                merged_value(variable).op if is_result else name,
                "AddV2",
                [total, value],
                device=device,
                outputs=[spec],
                T=spec.dtype,
            )
        if adds:
            return
        number = self._writer.constant(
            added(0, "merged", variable.name, "workers"),
            np.array(plan.workers, tf.as_dtype(spec.dtype).as_numpy_dtype),
            device=device,
        )
        self._writer.add(
            merged_value(variable).op,
            "RealDiv",
            [total, number],
            device=device,
            outputs=[spec],
            T=spec.dtype,
        )

    def _values(self) -> Iterator[TensorRef]:
        for worker in range(self._plan.workers):
            handle = TensorRef(names.in_replica(worker, self._variable.handle))
            name = _sent_value(worker, self._variable).op
            yield self._read(name, handle, self._devices[handle.op])
