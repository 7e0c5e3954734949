"""What was measured on a cluster, before anything is concluded (`simulation.network_model`)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AggregationTimes:
    """Steps that did nothing but aggregate one tensor, or some at the same time.

    Attributes:
        pattern: one of `patterns.PATTERNS`.
        size_bytes: of all tensors together.
        seconds: of each step, with what an empty step takes.
        tensors: how many, all of the same size.
    """

    pattern: str
    size_bytes: int
    seconds: tuple[float, ...]
    tensors: int = 1

    @property
    def least_s(self) -> float:
        """Of the fastest step."""
        return min(self.seconds)

    @property
    def median_s(self) -> float:
        """Of the step in the middle."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class SendTimes:
    """Steps that did nothing but send one tensor from one worker to another.

    Attributes:
        source: number of the worker that sends.
        target: of the one that receives.
        size_bytes: of the tensor.
        seconds: of each step, with what an empty step takes.
    """

    source: int
    target: int
    size_bytes: int
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Of the step in the middle."""
        return statistics.median(self.seconds)


@dataclass(frozen=True, slots=True)
class Measurements:
    """What transfers between the workers of one cluster took.

    Attributes:
        workers: how many there are.
        aggregations: for each pattern and size; for each pattern some tensors at the same time; and
            for one pattern many small ones.
        empty_seconds: of steps that run one op on every worker and send nothing between them: the
            client's call, and the start and end of a step on all workers. Training pays it once in
            a step, whatever is aggregated.
        sends: for each pair of workers and size, where they were measured; `empty_send_seconds` is
            the empty step that goes with them.
        empty_send_seconds: as `empty_seconds`, without the Python code of `caramel.Session`.
        addresses: of the workers; empty strings for workers inside one process.
    """

    workers: int
    aggregations: tuple[AggregationTimes, ...]
    empty_seconds: tuple[float, ...]
    sends: tuple[SendTimes, ...] = ()
    empty_send_seconds: tuple[float, ...] = ()
    addresses: tuple[str, ...] = ()

    @property
    def unrest(self) -> float:
        """How many times as long as the fastest aggregation the usual one of its size takes.

        The median over patterns and sizes: below 1.2 where nothing else uses workers or network.
        """
        return statistics.median(times.median_s / times.least_s for times in self.aggregations)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns that were measured, each once."""
        return tuple(dict.fromkeys(times.pattern for times in self.aggregations))
