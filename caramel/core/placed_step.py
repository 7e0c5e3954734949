"""What is explained of a step that is spread over several devices, as pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a step needs of one device.

    Attributes:
        busy_s: how long it computes.
        sent_bytes: what it sends to the others.
        received_bytes: what it gets from them.
        tensor_bytes: the most that tensors take at any moment; None where that was not measured.
    """

    busy_s: float
    sent_bytes: int
    received_bytes: int
    tensor_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedDevice:
    """A device, and what of a step is there.

    Attributes:
        name: of the device.
        ops: how many ops of the step.
        variable_bytes: of the variables, which stay.
        limit_bytes: what variables and tensors may take; None for no limit.
        predicted: what a step needs of it.
        measured: the median of traced steps; None before training.
    """

    name: str
    ops: int
    variable_bytes: int
    limit_bytes: int | None
    predicted: DeviceUse
    measured: DeviceUse | None = None


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the chain that bounds a step: ops of a device right behind each other, or a tensor
    on its way.

    Attributes:
        kind: "ops", or "transfer".
        device: the number of the device of the ops, or of the one to which the tensor goes.
        names: the ops, in order; of a transfer, the op that put the tensor out.
        begin_s: from the begin of the step.
        end_s: likewise.
        waiting_s: how long those of the ops take for whose end the next one waited only since they
            occupied its device; of a transfer, how long it waited for the link.
        bytes: of the tensor.
    """

    kind: Literal["ops", "transfer"]
    device: int
    names: tuple[str, ...]
    begin_s: float
    end_s: float
    waiting_s: float = 0.0
    bytes: int = 0

    @property
    def length_s(self) -> float:
        """How much of the step it is."""
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that goes to another device.

    Attributes:
        tensor: its name.
        source: the number of its device.
        target: the number of the device to which it goes.
        bytes: its size.
        begin_s: when it is predicted to leave.
        end_s: when it is predicted to be there.
        needed_s: when the first op is predicted to read it there.
    """

    tensor: str
    source: int
    target: int
    bytes: int
    begin_s: float
    end_s: float
    needed_s: float


@dataclass(frozen=True, slots=True)
class Alone:
    """What one device would do with the whole step: the fastest on which it fits, else the largest.

    Attributes:
        device: its number.
        step_s: how long a step would take.
        bytes: what variables and tensors would need.
        fits: whether it has that.
    """

    device: int
    step_s: float
    bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class PlacedStep:
    """Where the ops of a step are, why, and what bounds it.

    Attributes:
        devices: in the order of their numbers.
        chain: what bounds the step, from its begin to its end.
        crossings: the largest tensors that cross, the largest first.
        crossing_count: how many cross.
        alone: what one device would do.
        path_bound_s: what the longest path takes on the fastest device; no step is shorter.
        work_bound_s: what all ops take if no device ever waits; no step is shorter.
        knows_times: whether times of ops were measured; else an op is taken to cost the bytes that
            it puts out.
        unknown_sizes: how many tensors have a size that nobody knows, and are taken to be empty.
    """

    devices: tuple[PlacedDevice, ...]
    chain: tuple[Stretch, ...]
    crossings: tuple[Crossing, ...]
    crossing_count: int
    alone: Alone
    path_bound_s: float
    work_bound_s: float
    knows_times: bool
    unknown_sizes: int = 0
