"""Leaves marks by which the client can tell how far a running step has come.

For each group, each worker counts how often its raw gradients were complete there, and how often it
has arrived there aggregated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from caramel.core.decision import Group
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
)
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient
from caramel.modifiers.aggregation.results import arrival_of
from caramel.modifiers.graph_writer import GraphWriter, copy_of, static_shape
from caramel.modifiers.step_tokens import host_of

KINDS: tuple[Mark, ...] = get_args(Mark)
_DTYPE = "int64"


def mark(graph_def: Any, plan: Plan) -> Any:
    """Add the variables, and what marks, reads and clears them."""
    groups = plan.marked_groups
    if not groups:
        return graph_def
    extended = copy_of(graph_def)
    for worker, device in enumerate(plan.job.devices):
        board = _Board(GraphWriter(extended), worker, host_of(device), len(groups))
        for number, group in enumerate(groups):
            members = [plan.gradient(name) for name in group.members]
            board.mark(number, group, members, arrival_of(plan, group, worker))
        board.finish()
    return extended


def marked_parts(plan: Plan, *, moved: bool) -> list[str]:
    """What makes all marks of a step, or of its moved part; an op for each worker."""
    # Only deferred groups arrive in the moved part.
    if not any(group.deferred or not moved for group in plan.marked_groups):
        return []
    return [marks_made(worker, moved=moved) for worker in range(plan.workers)]


class _Board:
    """The marks of one worker, in variables that are no user's: neither saved nor broadcast."""

    def __init__(self, writer: GraphWriter, worker: int, host: str, groups: int) -> None:
        self._writer, self._worker, self._host = writer, worker, host
        self._one = writer.constant(added(worker, "marks", "one"), np.array(1), device=host)
        none = writer.constant(added(worker, "marks", "none"), np.zeros(groups, int), device=host)
        self._handles = {kind: self._variable(kind, none, groups) for kind in KINDS}
        self._made: dict[bool, list[str]] = {False: [], True: []}  # in the moved part or not

    def mark(
        self, number: int, group: Group, members: Sequence[AggregatedGradient], arrival: str
    ) -> None:
        """Mark one group when its raw gradients are complete, and when it has arrived."""
        raw = [t.op for each in members for t in (each.values, each.indices) if t is not None]
        index = self._writer.constant(
            added(self._worker, "marks", "index", group.name),
            np.array(number, np.int32),
            device=self._host,
        )
        complete = list(dict.fromkeys(in_replica(self._worker, op) for op in raw))
        self._add("ready", group, index, complete, moved=False)
        self._add("arrived", group, index, [arrival], moved=group.deferred)

    def finish(self) -> None:
        """Add what makes all marks of each part of a step."""
        for moved, controls in self._made.items():
            if controls:
                name = marks_made(self._worker, moved=moved)
                self._writer.add(name, "NoOp", device=self._host, controls=controls)

    def _add(
        self, kind: Mark, group: Group, index: TensorRef, after: Sequence[str], *, moved: bool
    ) -> None:
        name = mark_of(group.name, self._worker, kind)
        self._writer.add(
            name,
            # Behind a control edge, on the worker's own processor: it crosses no link, and nothing
            # waits for it but the step's end.
            "ResourceScatterAdd",
            [self._handles[kind], index, self._one],
            device=self._host,
            controls=after,
            dtype=_DTYPE,
            Tindices="int32",
        )
        self._made[moved].append(name)

    def _variable(self, kind: Mark, none: TensorRef, groups: int) -> TensorRef:
        name, spec = marks(self._worker, kind), TensorSpec(_DTYPE, (groups,))
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
            marks_cleared(self._worker, kind),
            "AssignVariableOp",
            [handle, none],
            device=self._host,
            dtype=_DTYPE,
        )
        self._writer.add(
            marks_read(self._worker, kind).op,
            "ReadVariableOp",
            [handle],
            device=self._host,
            outputs=[spec],
            dtype=_DTYPE,
        )
        return handle
