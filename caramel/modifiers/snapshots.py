"""Snapshots: copies of all variables of a worker, in its own memory, that outlive a session.

They are in a container of their own, and their names do not tell the number of the worker: so
another session of the job reads them, also one with other workers. There are two *slots* for them.
A snapshot is taken into the free one while the other one holds the last snapshot; when all workers
have the new one, that is let go of. No third copy of the variables is ever there for that: what is
read of a variable shares its buffer until the next update.

Last of all a worker notes the number of the snapshot in the slot, by which it is known later
whether it has that snapshot, and whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import tensorflow as tf

from caramel.core.devices import task_of
from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, added, in_replica
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import SCALAR, GraphWriter, static_shape
from caramel.modifiers.step_tokens import host_of

SLOTS = 2

_HANDLE = TensorSpec("resource", ())
_NUMBER = TensorSpec("int64", ())

What = Literal["take", "drop", "put_back"]


def op_of(worker: int, what: What, slot: int) -> str:
    """Takes a snapshot of a worker into a slot, lets go of it, or gives variables its values."""
    return added(worker, "snapshot", str(slot), what)


def number_fed(worker: int) -> TensorRef:
    """Placeholder of the number of the snapshot that a worker takes."""
    return TensorRef(added(worker, "snapshot", "number"))


def originals(plan: Plan) -> set[str]:
    """The ops that put out handles of what snapshots hold."""
    workers = range(plan.workers)
    return {in_replica(worker, v.handle) for v in plan.job.variables for worker in workers}


def number_name(slot: int, place: int) -> str:
    """The shared name of the number of a slot.

    Args:
        slot: which.
        place: as `places` counts.
    """
    return f"number/{slot}/{place}"


def places(devices: Sequence[str]) -> list[int]:
    """For each replica how many others are before it on its task."""
    tasks = [task_of(device) for device in devices]
    return [tasks[:worker].count(task) for worker, task in enumerate(tasks)]


def keep_snapshots(plan: Plan, handles: Mapping[str, Any], container: str) -> Any:
    """A GraphDef of what takes snapshots, and what lets go of them.

    Args:
        plan: says which variables there are.
        handles: by name the nodes of `originals`.
        container: where snapshots are.
    """
    graph_def = tf.compat.v1.GraphDef()
    for own in _workers(plan, graph_def, container):
        own.write_numbers()
        values = {v: own.read(v, own.original(v, handles)) for v in plan.job.variables}
        for slot in range(SLOTS):
            own.write_slot(slot, values)
    return graph_def


def put_back_snapshot(
    plan: Plan, handles: Mapping[str, Any], container: str, slot: int, givers: Mapping[int, int]
) -> Any:
    """A GraphDef of what gives variables the values of a snapshot.

    Args:
        plan: says which variables there are.
        handles: by name the nodes of `originals`.
        container: where snapshots are.
        slot: where this one is.
        givers: for workers that do not have it, from which one they get it.
    """
    graph_def = tf.compat.v1.GraphDef()
    workers = list(_workers(plan, graph_def, container))
    for number, own in enumerate(workers):
        own.write_put_back(slot, workers[givers.get(number, number)], handles)
    return graph_def


def _workers(plan: Plan, graph_def: Any, container: str) -> Iterator[_Worker]:
    for worker, place in enumerate(places(plan.job.devices)):
        yield _Worker(GraphWriter(graph_def), plan, worker, place, container)


class _Worker:
    """The nodes for one worker."""

    def __init__(
        self, writer: GraphWriter, plan: Plan, worker: int, place: int, container: str
    ) -> None:
        self._writer, self._plan, self._worker, self._place = writer, plan, worker, place
        self._container, self._host = container, host_of(plan.job.devices[worker])

    def original(
        self, variable: Variable, handles: Mapping[str, Any], called: str = "original"
    ) -> TensorRef:
        """The handle of a variable itself; a part of a graph names no ops of others."""
        node = handles[in_replica(self._worker, variable.handle)]
        name = self._name(called, variable.name)
        handle = self._writer.add(name, "VarHandleOp", device=node.device)
        self._writer.last.CopyFrom(node)
        self._writer.last.name = name
        self._writer.last.attr.pop("_class", None)
        return handle

    def read(self, variable: Variable, handle: TensorRef) -> TensorRef:
        """What the variable behind the handle that was added last is."""
        return self._read(self._name("value", variable.name), variable, handle)

    def write_numbers(self) -> None:
        """The placeholder of a snapshot's number."""
        name = number_fed(self._worker).op
        self._writer.add(name, "Placeholder", device=self._host, dtype=_NUMBER.dtype, shape=SCALAR)

    def write_slot(self, slot: int, values: Mapping[Variable, TensorRef]) -> None:
        """What takes a snapshot into a slot, and what empties that."""
        part = str(slot)
        copies = {v: self.copy(slot, v, self._name(part, "copy", v.name)) for v in values}
        takes = [
            self._assign(self._name(part, "take", v.name), copies[v], value, v.spec, self._host)
            for v, value in values.items()
        ]
        number = self._number(slot)
        take = op_of(self._worker, "take", slot)
        fed = number_fed(self._worker)
        self._assign(take, number, fed, _NUMBER, self._host, takes)
        drops = [self._destroy(self._name(part, "number_dropped"), number)]
        drops += [self._destroy(self._name(part, "drop", v.name), copies[v]) for v in values]
        self._group(op_of(self._worker, "drop", slot), drops)

    def write_put_back(self, slot: int, giver: _Worker, handles: Mapping[str, Any]) -> None:
        """What gives all variables the values of a snapshot, perhaps of another worker's."""
        done = []
        for variable in self._plan.job.variables:
            handle = self.original(variable, handles, "original_put_back")
            device = self._writer.last.device
            copy = giver.copy(slot, variable, self._name("there", variable.name))
            value = self._read(self._name("back", variable.name), variable, copy)
            name = self._name("put_back", variable.name)
            done.append(self._assign(name, handle, value, variable.spec, device))
        self._group(op_of(self._worker, "put_back", slot), done)

    def copy(self, slot: int, variable: Variable, name: str) -> TensorRef:
        """The handle of a variable's copy in a slot, as a node of this name."""
        shared = f"value/{slot}/{self._place}/{variable.name}"
        return self._handle(name, shared, variable.spec)

    def _number(self, slot: int) -> TensorRef:
        return self._handle(
            self._name(str(slot), "number"), number_name(slot, self._place), _NUMBER
        )

    def _handle(self, name: str, shared: str, spec: TensorSpec) -> TensorRef:
        handle = self._writer.add(
            name,
            "VarHandleOp",
            device=self._host,
            outputs=[_HANDLE],
            dtype=spec.dtype,
            shape=static_shape(spec),
        )
        self._writer.last.attr["shared_name"].s = shared.encode()
        self._writer.last.attr["container"].s = self._container.encode()
        return handle

    def _read(self, name: str, variable: Variable, handle: TensorRef) -> TensorRef:
        """What is behind the handle that was added last, where that is."""
        spec, device = variable.spec, self._writer.last.device
        return self._writer.add(
            name, "ReadVariableOp", [handle], device=device, outputs=[spec], dtype=spec.dtype
        )

    def _assign(
        self,
        name: str,
        handle: TensorRef,
        value: TensorRef,
        spec: TensorSpec,
        device: str,
        controls: Sequence[str] = (),
    ) -> str:
        self._writer.add(
            name,
            "AssignVariableOp",
            [handle, value],
            device=device,
            controls=controls,
            dtype=spec.dtype,
        )
        return name

    def _destroy(self, name: str, handle: TensorRef) -> str:
        self._writer.add(
            name, "DestroyResourceOp", [handle], device=self._host, ignore_lookup_error=True
        )
        return name

    def _group(self, name: str, ops: Sequence[str]) -> None:
        self._writer.add(name, "NoOp", device=self._host, controls=ops)

    def _name(self, *parts: str) -> str:
        return added(self._worker, "snapshot", *parts)
