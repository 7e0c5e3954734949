"""Which worker or server is on what device of a trace, and what its clock shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caramel.core.devices import Device
from caramel.core.names import is_done_once, server_place, without_variant, worker_of


class Replicas:
    """Which worker or server has what device, and what its clock shows.

    Args:
        devices: of the replicas, or of one replica that is spread, in order.
        servers: devices of the parameter servers.
        clock_offsets_s: by how much the clock of each of them is ahead of the first one's.
        is_spread: whether one replica is spread over the devices.
    """

    def __init__(
        self,
        devices: Sequence[str],
        servers: Sequence[str],
        clock_offsets_s: Sequence[float],
        is_spread: bool,
    ) -> None:
        self._is_spread = is_spread
        places = [*range(len(devices)), *map(server_place, range(len(servers)))]
        names = zip(places, [*devices, *servers], strict=True)
        self._devices = {place: Device.parse(name) for place, name in names}
        self._offsets_s = dict(zip(places, clock_offsets_s, strict=False))

    @property
    def places(self) -> tuple[int, ...]:
        """Of all workers and servers."""
        return tuple(self._devices)

    def worker_on(self, name: str) -> int | None:
        """The worker whose replica is on a device; None if it is no one's, or of several."""
        device = Device.parse(name)
        same_task = [worker for worker, _ in self._on_task(device)]
        same_device = [worker for worker, own in self._on_task(device) if own == device]
        any_device = [worker for worker, own in self._on_task(device) if own.kind is None]
        for found in (same_device, any_device, same_task):
            if len(found) == 1:
                return found[0]
        return None

    def place_of(self, op: str, device: str) -> int | None:
        """The worker or server that an op belongs to; what is done once or spread, to that of its
        device. None if it is not of the job, such as what lets workers record."""
        name = without_variant(op)
        owner = worker_of(name)
        if owner is None or not (self._is_spread or is_done_once(name)):
            return owner
        place = self.worker_on(device)
        return owner if place is None else place

    def sender_of(self, op: str, device: str) -> int | None:
        """The worker or server that sends what an op puts out, from a device."""
        named = None if self._is_spread else worker_of(op)
        return self.worker_on(device) if named is None else named

    def common_s(self, shown_s: float, worker: int) -> float:
        """The time by worker 0's clock at which this worker's shows `shown_s`."""
        return shown_s - self._offsets_s.get(worker, 0.0)

    def common_on_s(self, shown_s: float, name: str) -> float:
        """Likewise by the clock of a device; the workers of one task have one clock."""
        for worker, _ in self._on_task(Device.parse(name)):
            return self.common_s(shown_s, worker)
        return shown_s

    def _on_task(self, device: Device) -> Iterator[tuple[int, Device]]:
        for worker, own in self._devices.items():
            if (own.job, own.task) == (device.job, device.task):
                yield worker, own
