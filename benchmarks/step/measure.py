"""What the systems showed, a block of steps in turn.

The systems of a cell run at the same time as far as memory allows, and take turns. Where it does
not allow all, they come in lots, and plain Caramel is in each of them, so that it is always
compared within the same minutes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks import peers
from benchmarks.peers import PeerError, Result, Running
from benchmarks.peers.data import prepared
from benchmarks.peers.validate import validate
from benchmarks.results import Row, busy_share
from benchmarks.step.cells import ALONE, PLAIN, Cell, System
from benchmarks.testbed import Testbed

MEMORY_BYTES = 16 * 2**30  # for all processes of a lot
LOT_S = 180.0  # of blocks: where steps are long, fewer rounds than asked for are done,
LEAST_ROUNDS = 3  # but so many
PROCESS_BYTES = 400 * 2**20  # of a worker, whatever the network
COPIES = 4.5  # of the parameters, in a worker: values, momentum, gradients, sums, buffers


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
    with Testbed(
        cell.workers, f"{cell.mbit_per_s:g}mbit", pin_cores=True, both_ways=cell.workers > 2
    ) as bed:
        sizes = prepared(cell.case(steps), cell.workers).sizes
        busy = busy_share()
        results: list[tuple[System, Result]] = []
        failed: dict[System, str] = {}
        for lot in lots(systems, sum(sizes), cell.workers):
            with contextlib.ExitStack() as stack:
                running = dict(_start(lot, bed, cell.case(rounds * steps), stack, failed))
                began_s = time.monotonic()
                for done in range(rounds):
                    if done >= LEAST_ROUNDS and time.monotonic() - began_s > LOT_S:
                        break
                    for each in running.values():
                        each.block(steps)
                results += [(system, each.result()) for system, each in running.items()]
            for _ in lot:
                advance()
        valid = validate([result for _, result in results])
    return _rows(cell, systems, results, valid, failed, sum(sizes), busy)


def lots(systems: Sequence[System], parameter_bytes: float, workers: int) -> Iterator[list[System]]:
    """The systems in lots that fit into memory, each with plain Caramel."""
    each_bytes = workers * (PROCESS_BYTES + COPIES * parameter_bytes)
    size = max(2, int(MEMORY_BYTES // each_bytes))
    rest = [system for system in systems if system != PLAIN]
    for start in range(0, len(rest), size - 1):
        yield [PLAIN, *rest[start : start + size - 1]]


def _start(
    lot: Sequence[System],
    bed: Testbed,
    case: peers.Case,
    stack: contextlib.ExitStack,
    failed: dict[System, str],
) -> Iterator[tuple[System, Running]]:
    for system in lot:
        peer = peers.get(system.peer)
        if reason := peer.available():
            failed[system] = reason
            continue
        try:
            yield system, stack.enter_context(peer.start(bed, case, system.options))
        except PeerError as error:
            failed[system] = str(error)


def _rows(
    cell: Cell,
    systems: Sequence[System],
    results: Sequence[tuple[System, Result]],
    valid: Sequence[Result],
    failed: dict[System, str],
    parameter_bytes: int,
    busy: float,
) -> list[Row]:
    """One row for each system, in order; samples of plain Caramel are those of all lots."""
    plain_s = [result.step_s for system, result in results if system == PLAIN]
    beside = iter(plain_s)
    against: dict[System, tuple[float, ...]] = {}
    current: tuple[float, ...] = ()
    for system, _ in results:
        if system == PLAIN:
            current = next(beside)
        against[system] = current
    by_system = {
        system: result for (system, _), result in zip(results, valid, strict=True)
    }  # of plain Caramel, the last lot's
    computation_s = by_system[ALONE].median_s if ALONE in by_system else float("nan")
    limit_s = cell.wire_limit_s(parameter_bytes)
    rows = []
    for system in systems:
        what = {"cell": str(cell), "network": cell.network, "system": str(system)}
        if system not in by_system:
            rows.append(Row(what, (), {}, failed.get(system, "not run")))
            continue
        result = by_system[system]
        own_s = result.own_computation_s or computation_s
        samples_s = tuple(s for each in plain_s for s in each) if system == PLAIN else result.step_s
        facts = {
            "peer": system.peer,
            "setting": system.options,
            "computation_s": own_s,
            "wire_limit_s": limit_s,
            **({} if system == ALONE else overlap(result.median_s, own_s, limit_s)),
            "plain_samples_s": against[system],
            "processor_s": result.processor_s,
            "tx_bytes": result.tx_bytes,
            "expected_bytes": result.expected_bytes,
            "reported": dict(result.facts),
            "versions": dict(result.versions),
            "busy_share_before": busy,
        }
        rows.append(Row(what, samples_s, facts, "; ".join(result.problems) or None))
    return rows


def overlap(step_s: float, computation_s: float, communication_s: float) -> dict[str, float]:
    """rho, alpha and U (Caramel paper, section 3.1)."""
    least = min(communication_s, computation_s)
    return {
        "rho": communication_s / computation_s,
        "alpha": (communication_s + computation_s - step_s) / least,
        "U": computation_s / step_s,
    }
