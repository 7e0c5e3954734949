"""Leaves marks by which the client can tell how far a running step has come.

For each group, each worker counts how often its raw gradients were complete there, and how often it
has arrived there aggregated. With parameter servers, this is counted where it is aggregated, and
workers count how often they have received each variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from caramel.core.graph import TensorSpec
from caramel.core.names import (
    Mark,
    TensorRef,
    added,
    in_replica,
    mark_of,
    marks,
    marks_cleared,
    marks_made,
    marks_read,
    pulled,
    server_at,
)
from caramel.core.plan import Marked, Plan
from caramel.modifiers.aggregation.results import arrival_of
from caramel.modifiers.graph_writer import GraphWriter, copy_of, static_shape
from caramel.modifiers.step_tokens import host_of

KINDS: tuple[Mark, ...] = get_args(Mark)
_DTYPE = "int64"


def mark(graph_def: Any, plan: Plan) -> Any:
    """Add the variables, and what marks, reads and clears them."""
    if not plan.marked:
        return graph_def
    extended = copy_of(graph_def)
    for place, marked in plan.marked.items():
        writer = GraphWriter(extended)
        board = _Board(writer, place, host_of(_device(plan, place)), marked)
        for number, name in enumerate(marked.ready):
            board.mark("ready", number, name, _complete(plan, name, place))
        for number, name in enumerate(marked.arrived):
            after, moved = _arrival(plan, name, place)
            board.mark("arrived", number, name, [after], moved=moved)
        board.finish()
    return extended


def marked_parts(plan: Plan, *, moved: bool) -> list[str]:
    """What makes all marks of a step, or of its moved part; an op for each worker or server."""
    # Only deferred groups arrive in the moved part.
    if moved and not any(group.deferred for group in plan.marked_groups):
        return []
    return [marks_made(place, moved=moved) for place in plan.marked]


def _device(plan: Plan, place: int) -> str:
    server = server_at(place)
    return plan.job.devices[place] if server is None else plan.job.servers[server]


def _complete(plan: Plan, group: str, worker: int) -> list[str]:
    """What has run on a worker when the raw gradients of a group are complete."""
    members = [plan.gradient(name) for name in plan.group(group).members]
    raw = [t.op for each in members for t in (each.values, each.indices) if t is not None]
    return list(dict.fromkeys(in_replica(worker, op) for op in raw))


def _arrival(plan: Plan, name: str, place: int) -> tuple[str, bool]:
    """What has run when something has arrived, and whether that is in the moved part."""
    if plan.job.servers and server_at(place) is None:
        return pulled(place, name), False
    group = plan.group(name)
    return arrival_of(plan, group, place), group.deferred


class _Board:
    """The marks of one worker or server, in variables that are no user's: neither saved nor
    broadcast."""

    def __init__(self, writer: GraphWriter, place: int, host: str, marked: Marked) -> None:
        self._writer, self._place, self._host = writer, place, host
        self._constants: dict[str, TensorRef] = {}
        self._one = self._constant("one", np.array(1))
        counts = {kind: len(marked.of(kind)) for kind in KINDS}
        self._handles = {kind: self._variable(kind, n) for kind, n in counts.items() if n}
        self._made: dict[bool, list[str]] = {False: [], True: []}  # in the moved part or not

    def mark(
        self, kind: Mark, number: int, name: str, after: Sequence[str], *, moved: bool = False
    ) -> None:
        """Mark something when some ops have run."""
        index = self._constant(f"index_{number}", np.array(number, np.int32))
        marking = mark_of(name, self._place, kind)
        self._writer.add(
            marking,
            # Behind a control edge, on the worker's own processor: it crosses no link, and nothing
            # waits for it but the step's end.
            "ResourceScatterAdd",
            [self._handles[kind], index, self._one],
            device=self._host,
            controls=after,
            dtype=_DTYPE,
            Tindices="int32",
        )
        self._made[moved].append(marking)

    def finish(self) -> None:
        """Add what makes all marks of each part of a step."""
        for moved, controls in self._made.items():
            if controls:
                name = marks_made(self._place, moved=moved)
                self._writer.add(name, "NoOp", device=self._host, controls=controls)

    def _constant(self, name: str, value: np.ndarray) -> TensorRef:
        """A constant that may be used several times."""
        if name not in self._constants:
            full = added(self._place, "marks", name)
            self._constants[name] = self._writer.constant(full, value, device=self._host)
        return self._constants[name]

    def _variable(self, kind: Mark, count: int) -> TensorRef:
        name, spec = marks(self._place, kind), TensorSpec(_DTYPE, (count,))
        none = self._constant(f"none_of_{count}", np.zeros(count, int))
        handle = self._writer.add(
            name,
            "VarHandleOp",
            device=self._host,
            outputs=[TensorSpec("resource", ())],
            dtype=_DTYPE,
            shape=static_shape(spec),
        )
        self._writer.last.attr["shared_name"].s = name.encode()
        self._writer.add(
            marks_cleared(self._place, kind),
            "AssignVariableOp",
            [handle, none],
            device=self._host,
            dtype=_DTYPE,
        )
        self._writer.add(
            marks_read(self._place, kind).op,
            "ReadVariableOp",
            [handle],
            device=self._host,
            outputs=[spec],
            dtype=_DTYPE,
        )
        return handle
