"""Where the ops of one replica are, if it is spread over several devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from caramel.core.errors import PlanError
from caramel.core.names import TensorRef
from caramel.core.util.sizes import counted


@dataclass(frozen=True, slots=True)
class SendGate:
    """A tensor is sent to a device when another one has arrived there from the same device.

    Attributes:
        tensor: what waits.
        after: what it waits for.
        device: the number of the device to which both are sent.
    """

    tensor: TensorRef
    after: TensorRef
    device: int


@dataclass(frozen=True)
class Placement:
    """The device of every op of the single-device graph.

    Attributes:
        devices: what they are called, each once. The first is where the client feeds values.
        ops: of each device, the names of the ops that are there.
        gates: in which order tensors are sent; the others are sent when they are there.

    Raises:
        PlanError: a device is named twice, an op is on several, or a gate names no device.
    """

    devices: tuple[str, ...]
    ops: tuple[tuple[str, ...], ...]
    gates: tuple[SendGate, ...] = ()

    def __post_init__(self) -> None:
        if not self.devices or len(self.devices) != len(self.ops):
            raise PlanError(
                f"a placement has the ops of each device, but these are {len(self.devices)} "
                f"devices and {len(self.ops)} lists of ops"
            )
        for what, names in (
            ("device", self.devices),
            ("op", [name for own in self.ops for name in own]),
        ):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise PlanError(f"the placement names {what} '{twice[0]}' twice")
        for gate in self.gates:
            if not 0 <= gate.device < len(self.devices):
                raise PlanError(
                    f"a gate of the placement sends '{gate.tensor}' to device {gate.device}; there "
                    f"are {len(self.devices)}"
                )

    @cached_property
    def number_of(self) -> Mapping[str, int]:
        """The number of the device of each op."""
        return {name: number for number, names in enumerate(self.ops) for name in names}

    def on(self, devices: Sequence[str]) -> Placement:
        """The same with some of the devices; nothing is ordered.

        Raises:
            PlanError: an op is on another one.
        """
        ops = dict(zip(self.devices, self.ops, strict=True))
        for device, names in ops.items():
            if names and device not in devices:
                raise PlanError(
                    f"the given plan has {counted(len(names), 'op')} on {device}, such as "
                    f"'{names[0]}': without plan= a placement is found that needs no such device"
                )
        return Placement(tuple(devices), tuple(ops[device] for device in devices))

    def device_of(self, op: str) -> str:
        """The device of an op; a KeyError if it is not in the graph."""
        return self.devices[self.number_of[op]]
