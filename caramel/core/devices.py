"""Device names as TensorFlow writes them: parsed, merged, and reduced to their task.

``/job:worker/replica:0/task:3/device:GPU:1``, every part optional, lower-case types accepted.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from caramel.core.errors import ClusterError

_NAME = re.compile(
    r"(/(job:[^/:]+|(replica|task|cpu|gpu):(\d+|\*)|device:[^/:]+(:(\d+|\*))?))*", re.IGNORECASE
)
_PART = re.compile(r"/(job|replica|task|device|cpu|gpu):([^/]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Device:
    """One device name, taken apart. Parts that the name leaves open are None."""

    job: str | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, name: str) -> Device:
        """Take a device name apart.

        Raises:
            ClusterError: the name does not have TensorFlow's form.
        """
        job, task, kind, index = None, None, None, None
        if not _NAME.fullmatch(name):
            raise ClusterError(
                f"'{name}' is not a device name; expected a form like "
                "'/job:worker/task:0/device:CPU:0'"
            )
        for key, value in _PART.findall(name):
            match key.lower():
                case "job":
                    job = value
                case "task":
                    task = _number(value)
                case "device":
                    kind, _, number = value.upper().partition(":")
                    index = _number(number)
                case "cpu" | "gpu":
                    kind, index = key.upper(), _number(value)
        return cls(job, task, kind, index)

    def __str__(self) -> str:
        parts = []
        if self.job is not None:
            parts.append(f"/job:{self.job}")
        if self.task is not None:
            parts.append(f"/task:{self.task}")
        if self.kind is not None:
            parts.append(f"/device:{self.kind}:{self.index if self.index is not None else 0}")
        return "".join(parts)

    def within(self, host: Device) -> Device:
        """This device on the task of `host`; what it leaves open is taken from `host`."""
        if self.kind is None:
            return Device(host.job, host.task, host.kind, host.index)
        return Device(host.job, host.task, self.kind, self.index)


def _number(text: str) -> int | None:
    """The number in a device name; none, or any (``*``), leaves it open."""
    return int(text) if text.isdigit() else None


@functools.cache
def merge(inner: str, replica_device: str) -> str:
    """Where an op that the user placed on `inner` goes in a replica on `replica_device`.

    The task is always the replica's; a device type the user asked for is kept.
    """
    if not inner:
        return replica_device
    return str(Device.parse(inner).within(Device.parse(replica_device)))


def without_task(name: str) -> str:
    """The device type and number that a name asks for, if any, on whatever task."""
    device = Device.parse(name)
    return str(Device(kind=device.kind, index=device.index))


@functools.cache
def task_of(name: str) -> str | None:
    """``/job:worker/task:3`` of a device name, or None where it names no task."""
    device = Device.parse(name)
    if device.job is None or device.task is None:
        return None
    return f"/job:{device.job}/task:{device.task}"


def replica_devices(
    tasks: Sequence[str], wanted: Sequence[str] | None, *, may_share: bool = False
) -> tuple[str, ...]:
    """The device of each replica.

    Args:
        tasks: the usual device of each task of a cluster.
        wanted: devices on these tasks, one for each replica; None for the usual ones.
        may_share: whether several replicas may be on one device.

    Raises:
        ClusterError: a device is named twice, or is not on a task of the cluster.
    """
    if wanted is None:
        return tuple(tasks)
    if not wanted or isinstance(wanted, str):
        raise ClusterError("device_list must be a list of device names, one for each replica")
    known = [Device.parse(name) for name in tasks]
    devices = []
    for name in wanted:
        device = Device.parse(name)
        # With one task there is no doubt which is meant.
        if device.task is None and len(known) == 1:
            device = Device(known[0].job, known[0].task, device.kind, device.index)
        if Device(device.job, device.task) not in known:
            raise ClusterError(
                f"device_list names '{name}', which is on none of the cluster's tasks: "
                + ", ".join(tasks)
            )
        devices.append(str(device))
    repeated = [name for name in devices if devices.count(name) > 1]
    if repeated and not may_share:
        raise ClusterError(f"device_list names '{repeated[0]}' more than once")
    for name in devices:
        if any(other.startswith(f"{name}/device:") for other in devices):
            raise ClusterError(
                f"device_list names '{name}' and a device on it, which may be the same: name the "
                "device in both"
            )
    return tuple(devices)


def moved_replicas(devices: Sequence[str], tasks: Sequence[str]) -> tuple[str, ...]:
    """The devices of replicas when only some tasks are left: of those that have to move each goes
    to where the fewest are.

    Args:
        devices: of the replicas, when all tasks are there.
        tasks: those that are left.
    """
    moved = [device if task_of(device) in tasks else "" for device in devices]
    to = list(dict.fromkeys(device for device in moved if device)) or list(tasks)
    for number, device in enumerate(moved):
        if not device:
            moved[number] = min(to, key=moved.count)
    return tuple(moved)
