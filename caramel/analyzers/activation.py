"""In which order should raw gradients get ready? The Caramel paper, section 4.1, stage 1."""

from __future__ import annotations

import numpy as np

from caramel.analyzers.units import targets_of, units_of_step
from caramel.core.facts import GradientFrontier, LoopFrames, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.time_facts import ActivationOrder, TimingTable

_TICKS_PER_S = 10**12  # whole ticks add up to the same in any order, so that ties are ties


def activation_order(
    graph: OpGraph,
    job: TrainingJob,
    frontier: GradientFrontier,
    frames: LoopFrames,
    timing: TimingTable,
) -> ActivationOrder:
    """The greedy order: next is the gradient that needs the least computation that is not done yet.

    Ties go to the gradient that needs fewer ops, then to the first variable.

    Ops without a time take none. A loop is computed as a whole by the first gradient that needs a
    part of it.
    """
    targets = targets_of(frontier)
    position = {variable.name: number for number, variable in enumerate(job.variables)}
    parameters = sorted(targets, key=lambda name: position[name])
    units = units_of_step(graph, job, frames)
    needed = units.needed_by([targets[name] for name in parameters])
    # What no gradient needs has no part in the order.
    used = [unit for unit, bits in enumerate(needed) if bits]
    needs = _matrix([needed[unit] for unit in used], len(parameters))
    ticks = np.array(
        [
            sum(round(timing.seconds.get(name, 0.0) * _TICKS_PER_S) for name in units.ops[unit])
            for unit in used
        ],
        dtype=np.int64,
    )
    sizes = np.array([len(units.ops[unit]) for unit in used], dtype=np.int64)
    return ActivationOrder(tuple(parameters[number] for number in _greedy(needs, ticks, sizes)))


def _matrix(numbers: list[int], bits: int) -> np.ndarray:
    """Which of the lowest bits are set in each number: one row for each bit."""
    width = bits // 8 + 1
    packed = b"".join(number.to_bytes(width, "little") for number in numbers)
    columns = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return columns.reshape(len(numbers), width * 8)[:, :bits].T.astype(bool)


def _greedy(needs: np.ndarray, ticks: np.ndarray, sizes: np.ndarray) -> list[int]:
    """Rows of `needs` (gradients by units), the one with the least outstanding cost first."""
    outstanding_ticks, outstanding_ops = needs @ ticks, needs @ sizes
    waiting = list(range(len(needs)))
    open_units = np.ones(len(ticks), dtype=bool)
    order = []
    while waiting:
        chosen = min(waiting, key=lambda n: (outstanding_ticks[n], outstanding_ops[n], n))
        waiting.remove(chosen)
        order.append(chosen)
        done = np.flatnonzero(needs[chosen] & open_units)
        open_units[done] = False
        outstanding_ticks -= needs[:, done] @ ticks[done]
        outstanding_ops -= needs[:, done] @ sizes[done]
    return order
