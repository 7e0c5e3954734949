"""Snapshots: copies of all variables, in the memory of workers and servers, that outlive a session.

Each task copies what it has. What no other task has (a variable on a parameter server, or of a
replica that is spread over devices) is copied by a second one, too: so every variable is there
still, whichever task is lost.

Copies are in a container of their own, and their names do not tell the number of the worker: so
another session of the job reads them, also one with other workers. There are two *slots* for them.
A snapshot is taken into the free one while the other one holds the last snapshot; when all tasks
have the new one, that is let go of. No third copy of what a task has itself is ever there for that:
what is read of a variable shares its buffer until the next update.

Last of all a task notes the number of the snapshot in the slot, by which it is known later whether
it has that snapshot, and whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caramel.core import names
from caramel.core.devices import task_of
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import SCALAR, GraphWriter, static_shape
from caramel.modifiers.step_tokens import host_of
from caramel.modifiers.values_left import Source

SLOTS = 2

_HANDLE = TensorSpec("resource", ())
_NUMBER = TensorSpec("int64", ())
_TEXT = TensorSpec("string", ())


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a copy of a variable is.

    Attributes:
        variable: its name.
        task: which task has it, by its device.
        place: how many replicas on the task of the copied one are before that.
        spec: dtype and shape.
    """

    variable: str
    task: str
    place: int
    spec: TensorSpec


def tasks_of(plan: Plan) -> list[str]:
    """All tasks that have variables or keep copies, by their devices."""
    return [*_tasks(plan.hosts), *_tasks(plan.job.servers)]


def _tasks(devices: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(task for task in map(task_of, devices) if task is not None))


def kept_copies(plan: Plan, sources: Sequence[Source]) -> list[tuple[Source, Kept]]:
    """What is copied, and where to: where it is, and elsewhere if no other task has it.

    Args:
        plan: says which tasks there are.
        sources: all replicas of all variables.
    """
    places, having = _places(plan.job.devices), dict[str, set[str | None]]()
    for source in sources:
        having.setdefault(source.variable.name, set()).add(source.task)
    found = []
    for source in sources:
        tasks = [source.task]
        if len(having[source.variable.name]) == 1:
            tasks.append(_beside(source.task, plan))
        name, place, spec = source.variable.name, places[source.worker], source.variable.spec
        found += [(source, Kept(name, t, place, spec)) for t in tasks if t is not None]
    return found


def _places(devices: Sequence[str]) -> list[int]:
    """For each replica how many others are before it on its task."""
    tasks = [task_of(device) for device in devices]
    return [tasks[:worker].count(task) for worker, task in enumerate(tasks)]


def _beside(task: str | None, plan: Plan) -> str | None:
    """The task that copies what one alone has: the next one of its kind, or else one of another."""
    own, others = _tasks(plan.hosts), _tasks(plan.job.servers)
    if task in others:
        own, others = others, own
    if len(own) > 1 and task in own:
        return own[(own.index(task) + 1) % len(own)]
    return others[-1] if others else None


def keep_snapshots(
    plan: Plan, sources: Sequence[Source], container: str, earlier: Iterable[Kept] = ()
) -> Any:
    """A GraphDef of what takes snapshots, and what lets go of them.

    Args:
        plan: says which tasks there are.
        sources: all replicas of all variables.
        container: where snapshots are.
        earlier: further copies to let go of, of a session with other workers.
    """
    graph_def = tf.compat.v1.GraphDef()
    nodes = _Nodes(GraphWriter(graph_def), container)
    copied = [(nodes.value(source), source, kept) for source, kept in kept_copies(plan, sources)]
    for number, task in enumerate(tasks_of(plan)):
        own = [each for each in copied if each[2].task == task]
        known = [kept for _, _, kept in own]
        others = [kept for kept in earlier if kept.task == task and kept not in known]
        nodes.write_fed(number, task)
        for slot in range(SLOTS):
            nodes.write_slot(number, task, slot, own, others)
    return graph_def


def put_back_snapshot(
    plan: Plan, given: Sequence[tuple[Source, Kept]], container: str, slot: int
) -> Any:
    """A GraphDef of what gives variables the values of a snapshot.

    Args:
        plan: says which tasks there are.
        given: replicas of variables, each with the copy whose value it gets.
        container: where snapshots are.
        slot: where this one is.
    """
    graph_def = tf.compat.v1.GraphDef()
    nodes = _Nodes(GraphWriter(graph_def), container)
    for number, task in enumerate(tasks_of(plan)):
        own = [(source, kept) for source, kept in given if source.task == task]
        done = [nodes.put_back(source, kept, slot) for source, kept in own]
        nodes.group(names.snapshot(number, "put_back", slot), task, done)
    return graph_def


def kept_from(
    plan: Plan, source: Source, copies: Mapping[str, Sequence[Kept]], having: Iterable[str]
) -> Kept | None:
    """The copy from which a replica of a variable gets its value; None if there is none.

    Its own, or else another one on its task, or else any.

    Args:
        plan: that of the replica.
        source: the replica.
        copies: all copies of a snapshot by variable.
        having: the tasks that have the snapshot.
    """
    there = set(having)
    own = (source.task, _places(plan.job.devices)[source.worker])
    found = [kept for kept in copies.get(source.variable.name, ()) if kept.task in there]
    found.sort(key=lambda kept: ((kept.task, kept.place) != own, kept.task != source.task))
    return found[0] if found else None


class _Nodes:
    """The nodes of a part of a graph, which names no ops of others."""

    def __init__(self, writer: GraphWriter, container: str) -> None:
        self._writer, self._container = writer, container
        self._values: dict[str, TensorRef] = {}

    def value(self, source: Source) -> TensorRef:
        """What a replica of a variable is, where it is."""
        name = _name(source, "value")
        if name not in self._values:
            handle = self._original(source, _name(source, "original"))
            self._values[name] = self._read(name, handle, source.variable.spec)
        return self._values[name]

    def write_fed(self, number: int, task: str) -> None:
        """The placeholders of a snapshot's number and text."""
        given = (
            (names.snapshot_number_fed(number), _NUMBER),
            (names.snapshot_text_fed(number), _TEXT),
        )
        for fed, spec in given:
            self._writer.add(
                fed.op, "Placeholder", device=host_of(task), dtype=spec.dtype, shape=SCALAR
            )

    def write_slot(
        self,
        number: int,
        task: str,
        slot: int,
        copied: Iterable[tuple[TensorRef, Source, Kept]],
        others: Iterable[Kept],
    ) -> None:
        """What takes a snapshot of a task into a slot, and what empties that."""
        host, part = host_of(task), (str(slot), str(number))
        takes, drops = [], []
        for value, source, kept in copied:
            copy = self._copy(_name(source, *part, "copy"), kept, slot)
            name = _name(source, *part, "take")
            takes.append(self._assign(name, copy, value, kept.spec, host))
            drops.append(self._destroy(_name(source, *part, "drop"), copy, host))
        for kept in others:
            name = names.in_snapshot(0, *part, "earlier", str(kept.place), kept.variable)
            drops.append(self._destroy(f"{name}/drop", self._copy(name, kept, slot), host))
        name = names.in_snapshot(0, *part, "told")
        told = self._handle(name, names.snapshot_text(slot), _TEXT, host)
        text = names.snapshot_text_fed(number)
        takes.append(self._assign(f"{name}/take", told, text, _TEXT, host))
        drops.append(self._destroy(f"{name}/drop", told, host))
        name = names.in_snapshot(0, *part, "noted")
        noted = self._handle(name, names.snapshot_number(slot), _NUMBER, host)
        take, fed = names.snapshot(number, "take", slot), names.snapshot_number_fed(number)
        self._assign(take, noted, fed, _NUMBER, host, takes)
        drops.append(self._destroy(f"{name}/drop", noted, host))
        self.group(names.snapshot(number, "drop", slot), task, drops)

    def put_back(self, source: Source, kept: Kept, slot: int) -> str:
        """What gives a replica of a variable the value of a copy."""
        spec = source.variable.spec
        copy = self._copy(_name(source, "there"), kept, slot)
        value = self._read(_name(source, "back"), copy, spec)
        handle = self._original(source, _name(source, "original_put_back"))
        device = self._writer.last.device
        return self._assign(_name(source, "put_back"), handle, value, spec, device)

    def group(self, name: str, task: str, ops: Sequence[str]) -> None:
        """What does several things on a task."""
        self._writer.add(name, "NoOp", device=host_of(task), controls=ops)

    def _original(self, source: Source, name: str) -> TensorRef:
        """The handle of the replica itself."""
        handle = self._writer.add(name, "VarHandleOp", device=source.handle.device)
        self._writer.last.CopyFrom(source.handle)
        self._writer.last.name = name
        self._writer.last.attr.pop("_class", None)
        return handle

    def _copy(self, name: str, kept: Kept, slot: int) -> TensorRef:
        shared = names.snapshot_value(slot, kept.place, kept.variable)
        return self._handle(name, shared, kept.spec, host_of(kept.task))

    def _handle(self, name: str, shared: str, spec: TensorSpec, device: str) -> TensorRef:
        handle = self._writer.add(
            name,
            "VarHandleOp",
            device=device,
            outputs=[_HANDLE],
            dtype=spec.dtype,
            shape=static_shape(spec),
        )
        self._writer.last.attr["shared_name"].s = shared.encode()
        self._writer.last.attr["container"].s = self._container.encode()
        return handle

    def _read(self, name: str, handle: TensorRef, spec: TensorSpec) -> TensorRef:
        """What is behind the handle that was added last, where that is."""
        device = self._writer.last.device
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

    def _destroy(self, name: str, handle: TensorRef, device: str) -> str:
        self._writer.add(
            name, "DestroyResourceOp", [handle], device=device, ignore_lookup_error=True
        )
        return name


def _name(source: Source, *parts: str) -> str:
    return names.in_snapshot(source.worker, *parts, source.variable.name)
