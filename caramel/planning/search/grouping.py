"""From gradients to candidates: what may be joined or deferred, and in which order it goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from caramel.core.decision import FACTORS, Gate, Group, Part
from caramel.core.dtypes import dtype_bytes
from caramel.core.workload import Workload
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.depth import depth_of
from caramel.planning.gates import SPLIT_BETWEEN_ALL, gates_of
from caramel.planning.options import Options
from caramel.planning.pattern_choice import pattern_of
from caramel.planning.search.split import with_parts
from caramel.simulation.simulate import sizes_of


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes a member of the family: the share of bytes that is deferred, and sizes in bytes.

    Attributes:
        deferred_share: of all bytes; what is ready first is deferred.
        deferred_bytes, in_step_bytes: how large a joined group of that side gets at most.
        in_flight_bytes: how many may be on their way at a time.
    """

    deferred_share: float
    deferred_bytes: int
    in_step_bytes: int
    in_flight_bytes: int


class Grouping:
    """Makes candidates of the gradients of one job.

    Args:
        outlook: what is known of the job.
        parts: of gradients that are split, the same in all candidates.
        deferrable: why the gradients of these parameters cannot be deferred together, or None.
        options: which optimizations may be used.

    Attributes:
        sizes: by the name of each gradient or part.
    """

    def __init__(
        self,
        outlook: Outlook,
        parts: tuple[Part, ...],
        deferrable: Callable[[frozenset[str]], str | None],
        options: Options,
    ) -> None:
        self._network, self._deferrable, self._options = outlook.network, deferrable, options
        self._pair_bytes = outlook.calibration.pair_bytes
        self._parts = parts
        plain = with_parts(outlook.plain, parts)
        self.sizes = sizes_of(plain)
        self._plain = {n: group for group in plain.decision.groups for n in group.members}
        self._sent_bytes = {
            name: self._sent(name, group, outlook.free) for name, group in self._plain.items()
        }
        self._parameter = {name: plain.parameter(name) for name in self._plain}
        self._alike = {n: (plain.spec(n).dtype, plain.gradient(n).weight) for n in self._plain}
        # Parts are large; whatever is joined is copied.
        self._alone = {part.name for part in parts} | {
            g.parameter
            for g in plain.job.gradients
            if g.indices is not None or not g.elements or dtype_bytes(g.spec.dtype) is None
        }
        self._alone |= {name for name, group in self._plain.items() if not group.is_summed}
        ready = outlook.ordered.ready_s
        order = sorted(self._plain, key=lambda n: ready.get(self._parameter[n], 0.0))
        self._rank = {name: float(number) for number, name in enumerate(order)}
        self._needed = self._needed_s(outlook)
        self._may_defer: dict[frozenset[str], bool] = {}
        # A search makes the same groups again and again.
        self._made: dict[tuple[tuple[str, ...], bool, int], Group] = {}
        self._named: dict[tuple[Group, int, bool], Group] = {}

    def _sent(self, name: str, group: Group, workload: Workload) -> int:
        """What a gradient counts; nothing if only some rows of it go, nobody knows how many."""
        if group.pattern == FACTORS:
            return workload.product(name).bytes
        return self.sizes[name].bytes if group.is_summed else 0

    def _needed_s(self, outlook: Outlook) -> dict[str, float]:
        """When the forward pass needs what is updated with each gradient."""
        workload = outlook.ordered
        needed = workload.needed_s
        end_s = workload.computation_s
        first: dict[str, float] = {}
        for update in workload.updates:
            first_s = min((needed.get(v, end_s) for v in update.writes), default=end_s)
            for parameter in update.moves_with:
                first[parameter] = min(first.get(parameter, end_s), first_s)
        return {name: first.get(self._parameter[name], end_s) for name in self._plain}

    @property
    def all_bytes(self) -> int:
        """What all gradients have together."""
        return self.bytes(self._plain)

    def bytes(self, members: Iterable[str]) -> int:
        """What they have together; of factors, what these have; of rows, nothing."""
        return sum(self._sent_bytes[name] for name in members)

    def may_defer(self, names: Sequence[str]) -> bool:
        """Whether these may be deferred together."""
        parameters = frozenset(self._parameter[name] for name in names)
        if parameters not in self._may_defer:
            summed = all(self._plain[name].is_summed for name in names)
            self._may_defer[parameters] = summed and self._deferrable(parameters) is None
        return self._may_defer[parameters]

    def may_join(self, one: Sequence[str], other: Sequence[str]) -> bool:
        """Whether these may be members of one group."""
        names = [*one, *other]
        return self._alone.isdisjoint(names) and len({self._alike[n] for n in names}) == 1

    def group(self, members: tuple[str, ...], *, deferred: bool, in_flight: int) -> Group:
        """A group without a name; pattern and depth follow from its size.

        Args:
            members: which gradients and parts.
            deferred: on which side.
            in_flight: how many bytes may be on their way at a time.
        """
        key = members, deferred, in_flight
        if key not in self._made:
            self._made[key] = self._group(members, deferred, in_flight)
        return self._made[key]

    def _group(self, members: tuple[str, ...], deferred: bool, in_flight: int) -> Group:
        plain = self._plain[members[0]]
        size = self.bytes(members)
        if not plain.is_summed:
            return dataclasses.replace(plain, members=members, deferred=deferred)
        depth = 1
        if self._options.adaptive_depth:
            depth = depth_of(
                size, self._network, beside_bytes=in_flight, pair_bytes=self._pair_bytes
            )
        return dataclasses.replace(
            plain,
            members=members,
            deferred=deferred,
            pattern=pattern_of(size, self._network, self._options.pattern),
            depth=depth,
        )

    def halves(self, group: Group) -> tuple[Group, Group] | None:
        """A group taken apart behind the member that fills its half; None with one member."""
        if len(group.members) < 2:
            return None
        half, total, at = self.bytes(group.members) / 2, 0, 1
        for position, name in enumerate(group.members[:-1]):
            total += self._sent_bytes[name]
            at = position + 1
            if total >= half:
                break
        shift = self._plain[group.members[at]].shift
        return (
            dataclasses.replace(group, members=group.members[:at]),
            dataclasses.replace(group, members=group.members[at:], shift=shift),
        )

    def inserted(self, groups: Sequence[Group], group: Group) -> list[Group]:
        """A group put among those of its side: where it is needed if deferred, else ready."""
        own = self._place(group)
        for number, other in enumerate(groups):
            if other.deferred and not group.deferred:
                continue
            if other.deferred != group.deferred or self._place(other) > own:
                return [*groups[:number], group, *groups[number:]]
        return [*groups, group]

    def _place(self, group: Group) -> float:
        if group.deferred:
            return min(self._needed[name] for name in group.members)
        return max(self._rank[name] for name in group.members)

    def shaped(self, shape: Shape) -> Candidate:
        """A member of the family."""
        order = list(self._rank)
        left = shape.deferred_share * self.bytes(order)
        deferred: list[str] = []
        for name in order:
            size = self._sent_bytes[name]
            if size <= left and self.may_defer([name]):
                deferred.append(name)
                left -= size
        # Each of them may be deferred alone, but together they draw something along that may not.
        if deferred and not self.may_defer(deferred):
            deferred = []
        moved = frozenset(deferred)
        deferred.sort(key=lambda name: self._needed[name])
        rest = [name for name in order if name not in moved]
        joined = [(members, True) for members in self._joined(deferred, shape.deferred_bytes)]
        joined += [(members, False) for members in self._joined(rest, shape.in_step_bytes)]
        groups = [
            self.group(members, deferred=is_deferred, in_flight=shape.in_flight_bytes)
            for members, is_deferred in joined
        ]
        return self.candidate("family", groups, shape.in_flight_bytes)

    def _joined(self, names: Sequence[str], most_bytes: int) -> Iterator[tuple[str, ...]]:
        """Neighbours joined as long as they are not larger than `most_bytes` together."""
        members: list[str] = []
        size = 0
        for name in names:
            size += self._sent_bytes[name]
            if members and (size > most_bytes or not self.may_join(members, [name])):
                yield tuple(members)
                members, size = [], self._sent_bytes[name]
            members.append(name)
        if members:
            yield tuple(members)

    def candidate(self, name: str, groups: Sequence[Group], in_flight_bytes: int) -> Candidate:
        """Groups with their names and gates.

        One at a time they are split between all workers (`gates`).
        """
        one_at_a_time = not in_flight_bytes
        named = tuple(
            [self._numbered(group, number, one_at_a_time) for number, group in enumerate(groups)]
        )
        sized = [(group.name, self.bytes(group.members)) for group in named]
        gates: tuple[Gate, ...] = ()
        if self._options.scheduling:
            # Nothing can wait for a group without bytes.
            gates = gates_of([each for each in sized if each[1]], in_flight_bytes=in_flight_bytes)
        ordered = self._options.serialization
        return Candidate(name, named, gates, ordered, in_flight_bytes, self._parts)

    def _numbered(self, group: Group, number: int, one_at_a_time: bool) -> Group:
        """A group with its name, and split as it has to be."""
        key = group, number, one_at_a_time
        if key not in self._named:
            usual = self._plain[group.members[0]].smallest_chunk_bytes
            smallest = SPLIT_BETWEEN_ALL if one_at_a_time else usual
            name = f"group_{number}"
            self._named[key] = dataclasses.replace(group, name=name, smallest_chunk_bytes=smallest)
        return self._named[key]
