"""What the systems showed, a block of steps in turn.

The systems of a cell run at the same time as far as memory allows, and take turns. Where it does
not allow all, they come in lots, and plain Caramel, whose processes stay, takes turns with each of
them, so that it is always compared within the same minutes. A worker alone that emulates its
computation does one block. Where two systems do not fit into memory, and all there is to compare
are two plans with emulated computation, these take turns in one session.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks import peers
from benchmarks.peers import PeerError, Result, Running
from benchmarks.peers.data import prepared
from benchmarks.peers.plain import PLANNED
from benchmarks.peers.validate import validate
from benchmarks.results import Row, busy_share
from benchmarks.step.cells import ALONE, PLAIN, SEARCHED, Cell, System
from benchmarks.testbed import Testbed

MEMORY_BYTES = 16 * 2**30  # for all processes of a lot
LOT_S = 180.0  # of blocks: where steps are long, fewer rounds than asked for are done,
LEAST_ROUNDS = 3  # but so many
BLOCK_S = 20.0  # of timed steps: where the wire alone takes long, a block has fewer, but one
LONG_S = 5.0  # a step, by the wire alone, before which none is needed to warm up after a pause
PROCESS_BYTES = 300 * 2**20  # of a worker, whatever the network
COPIES = 5.5  # of the parameters, in a worker: values, momentum, gradients, sums, buffers
OWN_BYTES = 100 * 2**20  # of a process, without what it shares with others
MOST_MEMORY = 0.9  # of what the machine has


def measure(
    cell: Cell,
    systems: Sequence[System],
    rounds: int,
    steps: int,
    advance: Callable[[], None],
) -> list[Row]:
    """A row for each system; one that cannot run the cell has no samples and says why.

    Args:
        rounds: at most; see `LOT_S`.
        advance: called after each system.
    """
    once = {ALONE} if cell.accelerator else set()  # waits for as long as it is told, every time
    with Testbed(
        cell.workers, f"{cell.mbit_per_s:g}mbit", pin_cores=True, both_ways=cell.workers > 2
    ) as bed:
        sizes = prepared(cell.case(steps), cell.workers).sizes
        limit_s = cell.wire_limit_s(sum(sizes))
        busy = busy_share()
        case = cell.case(rounds * steps)
        taken = Taken(bed, case, rounds, steps, once, limit_s)
        if cell.accelerator and needs_one_session(systems, sum(sizes), cell.workers):
            taken.in_one_session(advance)
        else:
            taken.in_lots(lots(systems, sum(sizes), cell.workers), advance)
        valid = validate(list(taken.results.values()))
    shown = dict(zip(taken.results, valid, strict=True))
    return _rows(cell, systems, shown, taken.beside, taken.failed, sum(sizes), busy)


@dataclass
class Taken:
    """What was measured of a cell.

    Attributes:
        once: whose steps are all alike.
        limit_s: the wire limit.
        results: of each system that could run, plain Caramel's first.
        beside: the samples of plain Caramel that were taken in turn with each system's.
        failed: why the others could not run.
    """

    bed: Testbed
    case: peers.Case
    rounds: int
    steps: int
    once: Collection[System]
    limit_s: float
    results: dict[System, Result] = field(default_factory=dict)
    beside: dict[System, tuple[float, ...]] = field(default_factory=dict)
    failed: dict[System, str] = field(default_factory=dict)

    def in_lots(self, lots: Iterable[Sequence[System]], advance: Callable[[], None]) -> None:
        """Plain Caramel stays while lots of other systems come and go."""
        with contextlib.ExitStack() as stays:
            plain = dict(self._start([PLAIN], stays))
            for lot in lots:
                with contextlib.ExitStack() as stack:
                    running = dict(self._start(lot, stack))
                    if not set(lot) <= set(self.once):
                        running = {**plain, **running}
                    self._take_turns(running, lot)
                for _ in lot:
                    advance()
            self._of_plain(plain)
            advance()

    def in_one_session(self, advance: Callable[[], None]) -> None:
        """One worker alone, and then two plans whose session changes between them."""
        with contextlib.ExitStack() as stack:
            self._take_turns(dict(self._start([ALONE], stack)), [ALONE])
        advance()
        try:
            planned, plain = PLANNED.start_beside_plain(
                self.bed, self.case, SEARCHED.options, PLAIN.options
            )
        except PeerError as error:
            self.failed |= dict.fromkeys((PLAIN, SEARCHED), str(error))
        else:
            with planned:
                self._take_turns({PLAIN: plain, SEARCHED: planned}, [SEARCHED], is_shared=True)
                self._of_plain({PLAIN: plain})
        for _ in (PLAIN, SEARCHED):
            advance()

    def _take_turns(
        self, running: Mapping[System, Running], lot: Sequence[System], *, is_shared: bool = False
    ) -> None:
        samples_s = take_turns(
            running, self.rounds, self.steps, self.once, self.limit_s, is_shared=is_shared
        )
        self.results |= {each: running[each].result() for each in lot if each in running}
        self.beside |= dict.fromkeys(lot, samples_s.get(PLAIN, ()))

    def _of_plain(self, plain: Mapping[System, Running]) -> None:
        """Keep what plain Caramel has shown beside all systems."""
        for system, each in plain.items():
            self.results = {system: each.result(), **self.results}
            self.beside |= dict.fromkeys((system, *self.once), tuple(each.step_s))

    def _start(
        self, lot: Sequence[System], stack: contextlib.ExitStack
    ) -> Iterator[tuple[System, Running]]:
        for system in lot:
            peer = peers.get(system.peer)
            if reason := peer.available():
                self.failed[system] = reason
                continue
            try:
                started = peer.start(self.bed, self.case, system.options)
                yield system, stack.enter_context(started)
            except PeerError as error:
                self.failed[system] = str(error)


def needs_one_session(systems: Sequence[System], parameter_bytes: float, workers: int) -> bool:
    """Whether two plans are all there is to compare, and both do not fit into memory at once."""
    each_bytes = workers * (OWN_BYTES + COPIES * parameter_bytes)
    has_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return set(systems) == {ALONE, PLAIN, SEARCHED} and 2 * each_bytes > MOST_MEMORY * has_bytes


def lots(systems: Sequence[System], parameter_bytes: float, workers: int) -> Iterator[list[System]]:
    """The systems but for plain Caramel, in lots that fit into memory together with it."""
    each_bytes = workers * (PROCESS_BYTES + COPIES * parameter_bytes)
    size = max(1, int(MEMORY_BYTES // each_bytes) - 1)
    rest = [system for system in systems if system != PLAIN]
    for start in range(0, len(rest), size):
        yield rest[start : start + size]


def take_turns(
    running: Mapping[System, Running],
    rounds: int,
    steps: int,
    once: Collection[System] = (),
    limit_s: float = 0.0,
    *,
    is_shared: bool = False,
) -> dict[System, tuple[float, ...]]:
    """The seconds of each system's steps, a block of each in turn; see `LOT_S` and `BLOCK_S`.

    Args:
        once: whose steps are all alike: one block is enough.
        limit_s: the wire limit, which says whether steps are long.
        is_shared: whether all are plans of one session: the first step after a change also does
            what is left to do of the other plan's last one.
    """
    if limit_s > LONG_S:
        steps = min(steps, max(1, int(BLOCK_S / limit_s)))
    samples_s: dict[System, tuple[float, ...]] = dict.fromkeys(running, ())
    began_s = time.monotonic()
    for done in range(rounds):
        if done >= LEAST_ROUNDS and time.monotonic() - began_s > LOT_S:
            break
        for system, each in running.items():
            if done == 0 or system not in once:
                warm_up = 0 if done and limit_s > LONG_S and not is_shared else 1
                samples_s[system] += each.block(steps, warm_up=warm_up)
    return samples_s


def _rows(
    cell: Cell,
    systems: Sequence[System],
    shown: Mapping[System, Result],
    beside: Mapping[System, tuple[float, ...]],
    failed: dict[System, str],
    parameter_bytes: int,
    busy: float,
) -> list[Row]:
    """One row for each system, in order.

    Args:
        beside: the samples of plain Caramel in the lot of each system; its own are those of all.
    """
    computation_s = shown[ALONE].median_s if ALONE in shown else float("nan")
    limit_s = cell.wire_limit_s(parameter_bytes)
    rows = []
    for system in systems:
        what = {"cell": str(cell), "network": cell.network, "system": str(system)}
        if system not in shown:
            rows.append(Row(what, (), {}, failed.get(system, "not run")))
            continue
        result = shown[system]
        own_s = result.own_computation_s or computation_s
        facts = {
            "peer": system.peer,
            "setting": system.options,
            "computation_s": own_s,
            "wire_limit_s": limit_s,
            **({} if system == ALONE else overlap(result.median_s, own_s, limit_s)),
            "plain_samples_s": beside[system],
            "processor_s": result.processor_s,
            "tx_bytes": result.tx_bytes,
            "expected_bytes": result.expected_bytes,
            "reported": dict(result.facts),
            "versions": dict(result.versions),
            "busy_share_before": busy,
        }
        rows.append(Row(what, result.step_s, facts, "; ".join(result.problems) or None))
    return rows


def overlap(step_s: float, computation_s: float, communication_s: float) -> dict[str, float]:
    """rho, alpha and U (Caramel paper, section 3.1)."""
    least = min(communication_s, computation_s)
    return {
        "rho": communication_s / computation_s,
        "alpha": (communication_s + computation_s - step_s) / least,
        "U": computation_s / step_s,
    }
