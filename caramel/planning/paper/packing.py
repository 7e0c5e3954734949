"""When does each group go, and which wait for the next step? Caramel paper, section 4.3.

A greedy packing of transfers into the time of the link, largest first.
"""

from __future__ import annotations

import dataclasses
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_ROUNDING_S = 1e-9  # sums of times that differ by less are equal
_PASSES = 4


@dataclass(frozen=True, slots=True)
class Transfer:
    """A group that is to be aggregated.

    Attributes:
        members: its parameters.
        size_bytes: what is aggregated.
        seconds: how long that takes.
        ready_s: when it is complete, from the begin of the computation of its step.
        needed_s: when the next step needs it, from the begin of the computation of that step.
    """

    members: tuple[str, ...]
    size_bytes: int
    seconds: float
    ready_s: float
    needed_s: float


@dataclass(frozen=True, slots=True)
class Placement:
    """When a group goes.

    Attributes:
        transfer: the group.
        deferred: whether it goes in the next step.
        start_s: planned start, from the begin of the computation of the step in which it goes. It
            is negative for what goes before the forward pass, which then waits.
        reason: why, for people.
    """

    transfer: Transfer
    deferred: bool
    start_s: float
    reason: str

    @property
    def end_s(self) -> float:
        """Planned end, on the clock of `start_s`."""
        return self.start_s + self.transfer.seconds


@dataclass(frozen=True, slots=True)
class Packing:
    """All groups of a step: the deferred ones first, each kind in the planned order.

    Attributes:
        placements: what goes when.
        step_s: predicted time of a step.
    """

    placements: tuple[Placement, ...]
    step_s: float


def pack(
    transfers: Sequence[Transfer],
    *,
    computation_s: float,
    refusal: Callable[[frozenset[str]], str | None] = lambda parameters: None,
    needed_s: Callable[[Transfer], float] = lambda transfer: transfer.needed_s,
) -> Packing:
    """The place of each group.

    1. In the backward pass, if all that is there can still end with the computation;
    2. else in the forward pass of the next step, if all that is there still arrives before it is
       needed;
    3. what fits neither goes, when all the others have their place, after the backward pass or
       before the forward pass, whichever adds less to the step.

    Args:
        transfers: in activation order, which decides between equals.
        computation_s: when the computation of a step ends.
        refusal: why these parameters cannot be deferred together, or None. It is asked for the
            members of a group with those of all groups that are deferred already.
        needed_s: when a group is needed if it is deferred; asked only where it matters.
    """
    packer = _Packer(computation_s, refusal, needed_s)
    by_size = sorted(enumerate(transfers), key=lambda item: -item[1].size_bytes)
    ranked = [_Ranked(transfer, rank) for rank, transfer in by_size]
    unassigned = [item for item in ranked if not packer.place_within(item)]
    for item in unassigned:
        packer.place_beyond(item)
    backward_s = computation_s - min((t.ready_s for t in transfers), default=0.0)
    # A transfer that is longer than the backward pass finds the others where it would have to be:
    # in VGG-16, one gradient has three quarters of all bytes. So each changes sides as long as that
    # makes the step shorter. (Not in the paper. Where there is no such transfer, it only defers
    # more: ResNet-50 on two hosts then took 0.93 of the plain plan's step, else 0.91.)
    if any(transfer.seconds > backward_s for transfer in transfers):
        for _ in range(_PASSES):
            changed = sum(packer.change_side(item) for item in ranked)
            if not changed:
                break
    return packer.packing()


@dataclass(frozen=True, slots=True)
class _Ranked:
    transfer: Transfer
    rank: int


@dataclass(slots=True)
class _Link:
    """What goes over the link in each step: both lists in the order of transfer.

    It carries one transfer at a time. Deferred ones go in the order in which they are needed, the
    others in the order in which they are ready. In no other order does the computation wait less or
    the last transfer end sooner (Jackson 1955), so what fits in any order fits in this one.
    """

    computation_s: float
    deferred: list[_Ranked] = field(default_factory=list)
    in_step: list[_Ranked] = field(default_factory=list)

    def with_deferred(self, item: _Ranked) -> _Link:
        deferred = list(self.deferred)
        insort(deferred, item, key=lambda other: (other.transfer.needed_s, other.rank))
        return _Link(self.computation_s, deferred, self.in_step)

    def with_in_step(self, item: _Ranked) -> _Link:
        in_step = list(self.in_step)
        insort(in_step, item, key=lambda other: (other.transfer.ready_s, other.rank))
        return _Link(self.computation_s, self.deferred, in_step)

    def without(self, rank: int) -> _Link:
        deferred = [item for item in self.deferred if item.rank != rank]
        in_step = [item for item in self.in_step if item.rank != rank]
        return _Link(self.computation_s, deferred, in_step)

    def waiting_s(self) -> float:
        """How long the computation waits in all for deferred transfers."""
        clock_s = waiting_s = 0.0
        for item in self.deferred:
            clock_s += item.transfer.seconds
            waiting_s = max(waiting_s, clock_s - item.transfer.needed_s)
        return waiting_s if waiting_s > _ROUNDING_S else 0.0

    def starts(self) -> tuple[list[float], list[float], float]:
        """Starts of the deferred transfers and of the others, and when the last one ends."""
        clock_s = -self.waiting_s()
        deferred, in_step = [], []
        for item in self.deferred:
            deferred.append(clock_s)
            clock_s += item.transfer.seconds
        for item in self.in_step:
            clock_s = max(clock_s, item.transfer.ready_s)
            in_step.append(clock_s)
            clock_s += item.transfer.seconds
        return deferred, in_step, clock_s

    def step_s(self) -> float:
        """Time of a step."""
        return self.waiting_s() + max(self.computation_s, self.starts()[2])


class _Packer:
    """The link as far as it is packed, and why."""

    def __init__(
        self,
        computation_s: float,
        refusal: Callable[[frozenset[str]], str | None],
        needed_s: Callable[[Transfer], float],
    ) -> None:
        self._link = _Link(computation_s)
        self._refusal, self._needed_s = refusal, needed_s
        self._refused: dict[int, str] = {}
        self._added: dict[int, str] = {}
        self._changed: dict[int, str] = {}
        self._deferred_members: frozenset[str] = frozenset()

    def place_within(self, item: _Ranked) -> bool:
        """Place a transfer where it costs nothing, if there is such a place."""
        if self._accept(self._link.with_in_step(item)):
            return True
        needed = self._if_deferred(item)
        if needed is None or not self._accept(self._link.with_deferred(needed)):
            return False
        self._note_deferred(item)
        return True

    def place_beyond(self, item: _Ranked) -> None:
        """Place a transfer where it adds least to the step."""
        before_s = self._link.step_s()
        after_backward = self._link.with_in_step(item)
        after_s = after_backward.step_s() - before_s
        needed = self._if_deferred(item)
        if needed is None:
            self._link = after_backward
            self._added[item.rank] = f"it adds {after_s:.4f} s after it"
            return
        before_forward = self._link.with_deferred(needed)
        ahead_s = before_forward.step_s() - before_s
        self._added[item.rank] = (
            f"it adds {after_s:.4f} s after the backward pass, {ahead_s:.4f} s before the forward "
            "pass"
        )
        if after_s <= ahead_s + _ROUNDING_S:
            self._link = after_backward
        else:
            self._link = before_forward
            self._note_deferred(item)

    def change_side(self, item: _Ranked) -> bool:
        """Let a transfer go in the other pass if that makes the step shorter."""
        before_s = self._link.step_s()
        rest = self._link.without(item.rank)
        is_deferred = any(other.rank == item.rank for other in self._link.deferred)
        changed = rest.with_in_step(item) if is_deferred else rest.with_deferred(item)
        if before_s - changed.step_s() <= _ROUNDING_S:
            return False
        if not is_deferred:  # it may be needed earlier than its own parameters are
            needed = self._if_deferred(item)
            if needed is None:
                return False
            changed = rest.with_deferred(needed)
        saved_s = before_s - changed.step_s()
        if saved_s <= _ROUNDING_S:
            return False
        self._link = changed
        self._changed[item.rank] = f"changed sides, which saves {saved_s:.4f} s"
        members = frozenset(item.transfer.members)
        if is_deferred:
            self._deferred_members -= members
        else:
            self._deferred_members |= members
        return True

    def packing(self) -> Packing:
        """All that was placed."""
        link = self._link
        deferred_s, in_step_s, _ = link.starts()
        placements = [
            Placement(item.transfer, True, start_s, self._reason(item, start_s, deferred=True))
            for item, start_s in zip(link.deferred, deferred_s, strict=True)
        ]
        placements += [
            Placement(item.transfer, False, start_s, self._reason(item, start_s, deferred=False))
            for item, start_s in zip(link.in_step, in_step_s, strict=True)
        ]
        return Packing(tuple(placements), link.step_s())

    def _accept(self, link: _Link) -> bool:
        """Take this link if nothing makes the step longer than the computation."""
        fits = link.step_s() <= link.computation_s + _ROUNDING_S
        if fits:
            self._link = link
        return fits

    def _if_deferred(self, item: _Ranked) -> _Ranked | None:
        """The transfer as it would be deferred; None if it cannot be."""
        if item.rank in self._refused:
            return None
        refused = self._refusal(self._deferred_members | frozenset(item.transfer.members))
        if refused is not None:
            self._refused[item.rank] = refused
            return None
        needed_s = self._needed_s(item.transfer)
        return _Ranked(dataclasses.replace(item.transfer, needed_s=needed_s), item.rank)

    def _note_deferred(self, item: _Ranked) -> None:
        self._deferred_members |= frozenset(item.transfer.members)

    def _reason(self, item: _Ranked, start_s: float, *, deferred: bool) -> str:
        transfer, rank = item.transfer, item.rank
        times = (
            f"ready {transfer.ready_s:.4f} s, needed {transfer.needed_s:.4f} s, "
            f"starts {start_s:.4f} s"
        )
        if rank in self._changed:
            return f"{self._changed[rank]}: {times}"
        if rank in self._refused and rank in self._added:
            return (
                f"does not fit the backward pass and cannot be deferred ({self._refused[rank]}), "
                f"{self._added[rank]}: {times}"
            )
        if rank in self._added:
            return f"fits neither pass, {self._added[rank]}: {times}"
        if deferred:
            return f"fits the forward pass of the next step, not the backward pass: {times}"
        return f"fits the backward pass: {times}"
