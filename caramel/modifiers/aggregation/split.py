"""Gradients that are split into parts: taken apart, and joined when all parts are aggregated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caramel.core.decision import Group
from caramel.core.graph import TensorSpec
from caramel.core.names import (
    TensorRef,
    flattened,
    joined,
    kept_piece,
    split,
    tensor_in_replica,
    whole,
)
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient
from caramel.modifiers.aggregation.worker_writer import Desk

MOST_PIECES = 8
"""A part in more chunks is joined before: every piece that is kept needs a variable."""


def comes_in_chunks(plan: Plan, group: Group) -> bool:
    """Whether a group is one part of a gradient, whose chunks are not joined in the group."""
    is_part = plan.part(group.members[0]) is not None
    return len(group.members) == 1 and is_part and len(plan.chunks(group)) <= MOST_PIECES


def kept_pieces(plan: Plan, worker: int) -> Iterator[str]:
    """The variables of a worker that keep pieces of parts which were aggregated in their step."""
    deferred = plan.deferred
    for group in plan.decision.groups:
        for number, member in enumerate(group.members):
            if _is_kept(plan, group, member, deferred):
                for piece in range(len(_piece_sizes(plan, group, member))):
                    yield kept_piece(group.name, worker, number, piece)


def _is_kept(plan: Plan, group: Group, member: str, deferred: frozenset[str]) -> bool:
    part = plan.part(member)
    return part is not None and not group.deferred and part.parameter in deferred


def _piece_sizes(plan: Plan, group: Group, member: str) -> tuple[int, ...]:
    """Number of elements in each piece of a part."""
    if comes_in_chunks(plan, group):
        return plan.chunks(group)
    return (plan.spec(member).elements or 0,)


class SplitGradients:
    """The split gradients of a plan, on all workers."""

    def __init__(self, desk: Desk, plan: Plan) -> None:
        self._desk, self._plan = desk, plan
        self._deferred = plan.deferred
        self._raw: dict[tuple[int, str], TensorRef] = {}
        self._pieces: dict[tuple[int, str], list[TensorRef]] = {}
        for worker in range(plan.workers):
            for gradient in self.gradients:
                self._cut(worker, gradient)

    @property
    def gradients(self) -> list[AggregatedGradient]:
        """Those that are split."""
        return [self._plan.gradient(name) for name in self._plan.decision.parts_of]

    def _parts(self, gradient: AggregatedGradient) -> list[str]:
        return [part.name for part in self._plan.decision.parts_of[gradient.parameter]]

    def _cut(self, worker: int, gradient: AggregatedGradient) -> None:
        name, dtype = gradient.parameter, gradient.spec.dtype
        flat = tensor_in_replica(worker, gradient.values)
        vector = TensorSpec(dtype, (gradient.elements,))
        # Also a vector, since only what Caramel's own ops put out may be sent.
        flat = self._desk.reshaped(flattened(worker, name), worker, flat, vector)
        members = self._parts(gradient)
        sizes = [self._plan.spec(member).elements or 0 for member in members]
        # All begin and end aligned but perhaps the last one, so no other is copied.
        slices = self._desk.slices(split(worker, name), worker, flat, sizes, dtype)
        self._raw.update(((worker, m), s) for m, s in zip(members, slices, strict=True))

    def raw(self, worker: int, member: str) -> TensorRef:
        """A worker's part of a raw gradient; a whole one as it is."""
        own = self._raw.get((worker, member))
        if own is not None:
            return own
        return tensor_in_replica(worker, self._plan.gradient(member).values)

    def arrive(self, worker: int, group: Group, number: int, pieces: Sequence[TensorRef]) -> None:
        """Take what was aggregated of a part, a member of a group; keep it if the update moves."""
        member = group.members[number]
        # The update moves into the next step if any of the parts is deferred; then what was
        # aggregated in this step is kept for it.
        if _is_kept(self._plan, group, member, self._deferred):
            dtype = self._plan.spec(member).dtype
            sizes = _piece_sizes(self._plan, group, member)
            pieces = [
                self._desk.keep(
                    kept_piece(group.name, worker, number, position),
                    worker,
                    piece,
                    TensorSpec(dtype, (size,)),
                )
                for position, (piece, size) in enumerate(zip(pieces, sizes, strict=True))
            ]
        self._pieces[worker, member] = list(pieces)

    def join(self, worker: int, gradient: AggregatedGradient) -> TensorRef:
        """The aggregated gradient, when all its parts have arrived."""
        name = gradient.parameter
        # The pieces of all parts at once: to join those of each part first would copy everything
        # twice.
        pieces = [p for member in self._parts(gradient) for p in self._pieces[worker, member]]
        vector = TensorSpec(gradient.spec.dtype, (gradient.elements,))
        flat = self._desk.concatenated(joined(worker, name), worker, pieces, vector)
        return self._desk.reshaped(whole(worker, name), worker, flat, gradient.spec)
