"""Facts about times: how long ops and transfers take, and when they can be.

As in `facts`, the question that one answers is the first line of its docstring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TimingTable:
    """How long does each op of a step take on a worker's device?

    Attributes:
        seconds: the least time of each op that takes any, by name (section 4.1 of the Caramel
            paper: the minimum over traced steps).
        steps: how many steps were traced; 0 for times that were given, not measured.
        error: how much the sum of the minima over the first half of the steps is larger than that
            over all, relative; None if not measured.
        cores: how many cores of a processor, which also transfer in training, computed the ops;
            None if an accelerator did, or if that is unknown.
        step_s: what a whole step took while nothing was traced, in the median; it has what the
            runtime takes besides the ops. None if not measured.
        on_processor: whether a processor computed the ops, of perhaps an unknown number of cores.
        traced_bytes: sizes of tensors that the graph does not know, because a batch may have any
            number of examples; by the name of the tensor. (Profiles of earlier versions have those
            of factors only.)
    """

    seconds: Mapping[str, float]
    steps: int = 0
    error: float | None = None
    cores: int | None = None
    step_s: float | None = None
    on_processor: bool = False
    traced_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def slowdown(self) -> float:
        """How many times longer a step takes than its ops, one after the other."""
        total_s = sum(self.seconds.values())
        return self.step_s / total_s if self.step_s and total_s else 1.0


@dataclass(frozen=True, slots=True)
class TransferCost:
    """What does one aggregation by one pattern take? ``latency_s + bytes * s_per_byte``.

    Attributes:
        latency_s: of an aggregation of nothing.
        s_per_byte: for each byte of the aggregated tensor (not of what is sent).
        residual: the largest difference of a measurement from the line, relative to the
            measurement; None if the line was given, not fitted.
        busy_s_per_byte: for so long each byte of a tensor keeps the links busy: less than
            `s_per_byte` if they are idle now and then while only one tensor is aggregated. None if
            it was not measured.
    """

    latency_s: float
    s_per_byte: float
    residual: float | None = None
    busy_s_per_byte: float | None = None

    def seconds(self, size_bytes: float) -> float:
        """Time to aggregate `size_bytes`."""
        return self.latency_s + self.s_per_byte * size_bytes


@dataclass(frozen=True, slots=True)
class Link:
    """What can one worker send to another? Payload rate in bytes per second, latency one way."""

    source: int
    target: int
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """How long do aggregations take on this cluster?

    Attributes:
        workers: how many workers it holds for.
        costs: of one aggregation at a time, by pattern.
        bytes_per_s: payload a worker can send per second: with several tensors on their way if that
            was measured; else over its slowest link, or of one tensor.
        threshold_bytes: aggregations below it are dominated by latency (section 4.2).
        links: pairs of workers, where they were measured one by one.
        empty_s: what a step takes in which nothing is done: the client's call.
        request_s: for how long a worker is busy at the begin of a step for each message that it
            will receive, because it asks for all of them then; 0 if it was not measured.
    """

    workers: int
    costs: Mapping[str, TransferCost]
    bytes_per_s: float
    threshold_bytes: int
    links: tuple[Link, ...] = ()
    empty_s: float = 0.0
    request_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TransferTimes:
    """How long does a channel carry each variable that a worker receives from a server?

    Attributes:
        seconds: the least over the traced steps and workers, by the variable's name, without the
            time in which others were on the same channel.
    """

    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ActivationOrder:
    """In which order do raw gradients get ready? Parameters, first to last."""

    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """When can a parameter's gradient be aggregated (section 3.3.1 of the Caramel paper)?

    Attributes:
        ready_s: start boundary: when its raw gradient is complete, in seconds from the begin of
            the step.
        needed_s: end boundary: when the next step first reads the parameter, in seconds from the
            begin of that step.
    """

    ready_s: float
    needed_s: float


@dataclass(frozen=True, slots=True)
class TransferWindows:
    """When can each parameter's gradient be aggregated, if nothing but computation takes time?

    Attributes:
        windows: by parameter.
        computation_s: C, the computation of one step.
        forward_s: when the last op of the forward pass ends.
    """

    windows: Mapping[str, Window]
    computation_s: float
    forward_s: float
