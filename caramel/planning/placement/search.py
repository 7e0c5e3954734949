"""The placement whose step is predicted to be the shortest: a search by simulation.

It begins with all partitioners and schedulers, one device alone, clusters, and stages of clusters
if memory is limited. Then HEFT is varied, and run again with the ranks that the best placement has.
At last what bounds the step is changed: groups on its critical chain are moved to other devices,
and vertices that wait for their device go earlier. Placements that need more memory than there is
count as worse than all that fit; what they have on a device when it needs the most is moved to
those with the most room. The budget is a number of simulated vertices, so the result is the same on
every machine.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from caramel.core.errors import PlanError
from caramel.core.util.progress import Move, working
from caramel.planning.placement.bounds import least_makespan_s
from caramel.planning.placement.chain import Link, critical_chain
from caramel.planning.placement.clusters import clustered
from caramel.planning.placement.lists import list_placement, mean_up_ranks
from caramel.planning.placement.memory import at_peak, check_each_fits, overruns, peaks
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.partitioners.peft import optimistic_costs
from caramel.planning.placement.place import GROWTH, Placed, needed
from caramel.planning.placement.problem import Problem
from caramel.planning.placement.schedulers import SCHEDULERS, path_times
from caramel.planning.placement.simulate import Links, simulate
from caramel.planning.placement.stages import staged

BUDGET = 3_000_000
"""Vertices that are simulated, by default."""

_CLUSTERS = (24, 60, 150)
_ROOMS = (0.9, 0.5)  # parts of a device's memory that uneven clusters may have
_FILLS = (0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)  # how full stages are, by what is even
_PLACING = 8  # how many simulated vertices placing one counts as
_SHARES = 8  # larger shares of memory that are tried
_TRANSFERS = (0.0, 0.5, 1.0)  # how many times their mean seconds count in ranks of HEFT
_BEHIND = (0.0, 0.5, 1.0)  # how many times the seconds that follow a vertex count
_AGAIN = 6  # how often HEFT is run again
_FEW = 512  # placements that are all tried
_KEPT = 6  # placements that are made better one by one
_NEARLY = 1e-9  # by which sums of the same seconds may differ
_FASTEST = 3  # devices that a group may be moved to besides those of its neighbours
_ROUNDING = 1e-6  # of a makespan
_ROOMY = 2  # devices to which a group may be moved that is too much for its own


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A placement with its schedule. `key` is less for what is better."""

    key: tuple[float, float]
    placed: Placed

    @property
    def placement(self) -> tuple[int, ...]:
        return self.placed.placement


def search(
    problem: Problem,
    *,
    share: float = 1.0,
    links: Links = "free",
    seed: int = 0,
    budget: int = BUDGET,
) -> Placed:
    """Search the placement with the shortest step that fits.

    It is never longer, but for rounding, than with any partitioner and scheduler, or on one device
    that it fits on: these are simulated whatever the budget is. Its schedule's order can be held.

    Args:
        problem: what is to be placed.
        share: of the bytes that vertices put out, how many partitioners count at first.
        links: whether transfers between two devices share the link.
        seed: of random choices of partitioners.
        budget: how many vertices may be simulated, those for the starts counted. A placement
            counts as several simulations.

    Raises:
        PlanError: a vertex fits on no device, or no placement was found that fits.
    """
    check_each_fits(problem)
    with working("searching a placement") as move:
        searching = _Search(problem, links, budget, move)
        searching.begin(share, seed)
        searching.improve(share)
        best = searching.best
    lack = max(overruns(problem, best.peaks), default=None)
    if lack:
        raise PlanError(f"no placement was found that fits: {needed(problem, best, lack[1])}")
    return best


class _Search:
    def __init__(self, problem: Problem, links: Links, budget: int, move: Move) -> None:
        self._problem, self._links = problem, links
        self._left = self._budget = budget
        self._move = move
        self._limited = any(device.memory_bytes < float("inf") for device in problem.devices)
        self._least_s = least_makespan_s(problem)
        self._best: dict[tuple[int, ...], _Candidate] = {}
        self._whole: _Candidate | None = None  # on one device
        rooms = (None, *_ROOMS) if self._limited else (None,)
        self._clusters = tuple(itertools.product(rooms, _CLUSTERS))
        self._clustered: dict[tuple[float | None, int], Problem] = {}

    @property
    def best(self) -> Placed:
        """The best that was found, with the memory that it needs.

        One device, if spreading is worth no more than rounding.
        """
        best, whole = self._ranked()[0], self._whole
        if whole is not None and whole.key <= (best.key[0], best.key[1] * (1 + _ROUNDING)):
            best = whole
        placed = best.placed
        needs = peaks(self._problem, placed.placement, placed.schedule)
        return replace(placed, peaks=tuple(needs))

    # Starts -------------------------------------------------------------------------------------

    def begin(self, share: float, seed: int) -> None:
        """Try what needs no other placement."""
        count = len(self._problem.vertices)
        self._alone()
        for name in PARTITIONERS:
            self._partition(self._problem, name, share, seed, tuple(SCHEDULERS))
        groups, devices = len(self._problem.groups), len(self._problem.devices)
        if devices**groups <= _FEW:
            for chosen in itertools.product(*self._problem.allowed):
                of_group = self._problem.group_of
                self._try(tuple(chosen[of_group[vertex]] for vertex in range(count)))
        for room, size in self._clusters:
            if size < groups and room is not None:
                self._stages(self._coarse(room, size, share), share)
        for room, size in self._clusters:
            if size < groups and room is None and self._left > 0:
                coarse = self._coarse(room, size, share)
                for name in ("heft", "critical_path", "dfs"):
                    self._partition(coarse, name, share, seed, ("pct",))

    def _alone(self) -> None:
        """The fastest device on which everything may be and fits."""
        problem = self._problem
        everywhere = set(range(len(problem.devices))).intersection(*problem.allowed)
        for device in sorted(everywhere, key=lambda n: (-problem.devices[n].speed, n)):
            found = self._try((device,) * len(problem.vertices))
            if not found.key[0]:
                self._whole = found
                return

    def _partition(
        self, problem: Problem, name: str, share: float, seed: int, schedulers: Sequence[str]
    ) -> None:
        """What a partitioner finds, with as large a share of memory as it takes.

        Larger shares do not count in the budget, which would be used up by what fits nowhere.
        """
        self._left -= _PLACING * len(problem.vertices)
        for attempt in range(1 + _SHARES * self._limited):
            placement = PARTITIONERS[name](problem, share=share * GROWTH**attempt, seed=seed)
            # All of them, since each has another peak.
            left = self._left
            found = [self._try(placement, scheduler) for scheduler in schedulers]
            if attempt:
                self._left = left
            if not min(found, key=lambda each: each.key).key[0]:
                return

    def _stages(self, problem: Problem, share: float) -> None:
        """One device after the other, filled more or less."""
        for placement in dict.fromkeys(staged(problem, share=share, fill=fill) for fill in _FILLS):
            # First come, first served keeps no gradients for updates that nothing waits for.
            for scheduler in ("pct", "fifo"):
                self._try(placement, scheduler)

    def _coarse(self, room: float | None, size: int, share: float) -> Problem:
        """The problem with its groups joined to some number of clusters."""
        if (room, size) not in self._clustered:
            coarse = clustered(self._problem, size, share=share, room=room)
            self._clustered[room, size] = coarse
        return self._clustered[room, size]

    # Making it better ---------------------------------------------------------------------------

    def improve(self, share: float) -> None:
        """Make the best placements better, while there is a budget."""
        self._heft_varied(share)
        self._heft_again(share)
        coarser = [
            self._coarse(room, size, share)
            for room, size in self._clusters[::-1]
            if size < len(self._problem.groups) and self._left > 0
        ]
        for coarse in (*coarser, self._problem):
            for candidate in self._ranked()[:_KEPT]:
                self._descend(candidate, coarse.groups, coarse.group_of)

    def _heft_varied(self, share: float) -> None:
        """HEFT with transfers that count less in ranks, and with what follows, as in PEFT."""
        following = optimistic_costs(self._problem)
        for transfers, behind in itertools.product(_TRANSFERS, _BEHIND):
            if self._is_over(self._ranked()[0]):
                return
            self._left -= _PLACING * len(self._problem.vertices)
            ranks = mean_up_ranks(self._problem, transfers=transfers)
            more = behind * following
            self._try(list_placement(self._problem, ranks, share=share, behind=more))

    def _heft_again(self, share: float) -> None:
        """HEFT by the seconds that the best placement really takes, until that is no better."""
        for _ in range(_AGAIN):
            best = self._ranked()[0]
            if self._is_over(best):
                return
            self._left -= _PLACING * len(self._problem.vertices)
            ranks = path_times(self._problem, best.placement)
            if self._try(list_placement(self._problem, ranks, share=share)).key >= best.key:
                return

    def _descend(
        self,
        candidate: _Candidate,
        groups: Sequence[Sequence[int]],
        group_of: Sequence[int],
    ) -> None:
        """Change what bounds the step of a candidate, while that makes it shorter.

        What was tried in vain is not tried again before everything else was.
        """
        tried: set[tuple[int, int]] = set()
        while True:
            was_tried = len(tried)
            better = self._first_better(candidate, groups, group_of, tried)
            if better is not None:
                candidate = better
            elif self._is_over(candidate) or not was_tried:
                return
            else:
                tried.clear()

    def _first_better(
        self,
        candidate: _Candidate,
        groups: Sequence[Sequence[int]],
        group_of: Sequence[int],
        tried: set[tuple[int, int]],
    ) -> _Candidate | None:
        for change in self._changes(candidate, groups, group_of, tried):
            if change.key < candidate.key:
                return change
            if self._is_over(candidate):
                return None
        return None

    def _changes(
        self,
        candidate: _Candidate,
        groups: Sequence[Sequence[int]],
        group_of: Sequence[int],
        tried: set[tuple[int, int]],
    ) -> Iterator[_Candidate]:
        """Candidates that differ in one link of the critical chain.

        If one lacks memory, what differs is first what a device has at its peak. `tried` has groups
        and the devices to which they were moved, and gets more.
        """
        placed = candidate.placed
        if candidate.key[0]:
            yield from self._relieved(placed, groups, group_of, tried)
        chain = critical_chain(self._problem, placed.placement, placed.schedule)
        for link in chain:
            if link.is_busy:
                order = self._earlier(placed, link)
                if order is not None:
                    yield self._try(placed.placement, order=order)
            for vertex in (link.vertex, link.after):
                if vertex is None:
                    continue
                group = group_of[vertex]
                for device in self._targets(placed.placement, groups[group]):
                    if (group, device) not in tried:
                        tried.add((group, device))
                        yield from self._moved(placed, groups[group], device)

    def _relieved(
        self,
        placed: Placed,
        groups: Sequence[Sequence[int]],
        group_of: Sequence[int],
        tried: set[tuple[int, int]],
    ) -> Iterator[_Candidate]:
        """Without something of what the device that lacks most memory has at its peak.

        What is just large enough goes first, then what is larger, then what is too small.
        """
        problem = self._problem
        lack, device = max(overruns(problem, placed.peaks))
        sizes: dict[int, float] = {}
        for group, size in at_peak(problem, placed.placement, placed.schedule, device).items():
            joined = group_of[problem.groups[group][0]]
            sizes[joined] = sizes.get(joined, 0.0) + size
        room = [
            limit.memory_bytes - peak
            for limit, peak in zip(problem.devices, placed.peaks, strict=True)
        ]
        roomy = sorted(range(len(room)), key=lambda n: (-room[n], n))[:_ROOMY]
        by_size = sorted(sizes, key=lambda group: (sizes[group] < lack, abs(sizes[group] - lack)))
        for group in by_size:
            for target in roomy:
                if (
                    (group, target) not in tried
                    and target != device
                    and self._may_be(groups[group], target)
                ):
                    tried.add((group, target))
                    yield from self._moved(placed, groups[group], target)

    def _may_be(self, members: Sequence[int], device: int) -> bool:
        """Whether all of some vertices may be on a device."""
        problem = self._problem
        return all(device in problem.allowed[problem.group_of[vertex]] for vertex in members)

    def _moved(self, placed: Placed, members: Sequence[int], device: int) -> Iterator[_Candidate]:
        """With some vertices on another device: in the order that there was, and in a new one."""
        placement = list(placed.placement)
        for vertex in members:
            placement[vertex] = device
        yield self._try(tuple(placement))
        yield self._try(tuple(placement), order=placed.schedule.order)

    def _targets(self, placement: Sequence[int], members: Sequence[int]) -> list[int]:
        """Other devices to which some vertices may be moved with any hope."""
        problem = self._problem
        devices = dict.fromkeys(
            placement[other]
            for vertex in members
            for other in (*problem.predecessors[vertex], *problem.successors[vertex])
        )
        by_speed = sorted(range(len(problem.devices)), key=lambda n: -problem.devices[n].speed)
        devices.update(dict.fromkeys(by_speed[:_FASTEST]))
        own = {placement[vertex] for vertex in members}
        return [device for device in devices if own != {device} and self._may_be(members, device)]

    def _earlier(self, placed: Placed, link: Link) -> list[int] | None:
        """The order with a vertex before the one that its device executes first; None if it waits.

        Vertices that it waits for must stand before both.
        """
        order = list(placed.schedule.order)
        assert link.after is not None, "a busy device executed something"
        place = order.index(link.after)
        before = set(order[:place])
        if not before.issuperset(self._problem.predecessors[link.vertex]):
            return None
        order.remove(link.vertex)
        order.insert(place, link.vertex)
        return order

    # Candidates ---------------------------------------------------------------------------------

    def _try(
        self,
        placement: tuple[int, ...],
        scheduler: str = "pct",
        order: Sequence[int] | None = None,
    ) -> _Candidate:
        """Simulate a placement; it is remembered if it is among the best."""
        self._left -= len(placement)
        self._move(min(self._budget - self._left, self._budget), self._budget)
        schedule = simulate(self._problem, placement, scheduler, links=self._links, order=order)
        needs = peaks(self._problem, placement, schedule) if self._limited else ()
        lack = sum(lack for lack, _ in overruns(self._problem, needs)) if needs else 0.0
        placed = Placed(placement, schedule, tuple(needs))
        found = _Candidate((lack, schedule.makespan_s), placed)
        known = self._best.get(placement)
        if known is None or found.key < known.key:
            self._best[placement] = found
            if len(self._best) > 2 * _KEPT:
                self._best = {each.placement: each for each in self._ranked()[:_KEPT]}
        return found

    def _ranked(self) -> list[_Candidate]:
        """The best placements, the best first; ties: the one that was found first."""
        return sorted(self._best.values(), key=lambda each: each.key)

    def _is_over(self, candidate: _Candidate) -> bool:
        """Whether there is no budget left, or nothing better than a candidate."""
        return self._left <= 0 or candidate.key <= (0.0, self._least_s * (1 + _NEARLY))
