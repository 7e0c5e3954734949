"""Workers and links that nobody has measured: from rates and latencies that someone names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.errors import PlanError
from caramel.core.patterns import PATTERNS
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.simulation.hardware import Hardware, Host, hardware_of

PAYLOAD_SHARE = 0.94
"""Of what Ethernet carries: 1448 of 1538 bytes, which a full frame and its gap take."""


@dataclass(frozen=True, slots=True)
class AssumedHost:
    """What someone says of a worker.

    Attributes:
        send_bits_per_s: of its link, with all headers.
        receive_bits_per_s: likewise.
        slowdown: it computes so many times more slowly than the machine whose ops were timed.
    """

    send_bits_per_s: float
    receive_bits_per_s: float
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        for name in ("send_bits_per_s", "receive_bits_per_s", "slowdown"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise PlanError(f"a host's {name} must be more than 0 and finite, not {value}")


def assumed_hardware(
    hosts: Sequence[AssumedHost],
    latency_s: float,
    timing: TimingTable,
    networks: Sequence[NetworkModel] = (),
    calibration: Calibration = DEFAULT,
) -> Hardware:
    """What these hosts can do.

    Args:
        hosts: the workers.
        latency_s: of the network, one way; what TensorFlow takes for a transfer comes on top.
        timing: knows what computes.
        networks: what was measured elsewhere, for what TensorFlow takes at most (the latency of
            that network is part of it), and for how many times more a pattern's transfers take than
            their bytes: of the most workers counts.
        calibration: what transfers cost the machines.
    """
    transfer_s, request_s = calibration.transfer_s, calibration.request_s
    excess, empty_s = {}, 0.0
    if networks:
        # What patterns take beyond their bytes shows best where many send.
        most = max(networks, key=lambda network: network.workers)
        measured = hardware_of(most, timing, calibration)
        transfer_s, empty_s = min(transfer_s, *measured.latency_s.values()), most.empty_s
        request_s = min([request_s, *(each.request_s for each in networks if each.request_s)])
        # Between two workers there is one sender to each receiver, whatever the pattern.
        excess = dict(measured.excess) if most.workers > 2 and len(hosts) > 2 else {}
    hardware = Hardware(
        hosts=tuple(assumed_host(each, timing) for each in hosts),
        latency_s=dict.fromkeys(PATTERNS, transfer_s + latency_s),
        excess=excess,
        cores=timing.cores,
        step_s=empty_s,
        # Where processors compute, messages keep them busy instead.
        request_s=request_s if timing.cores is None else 0.0,
    )
    return hardware.with_costs(calibration)


def assumed_host(host: AssumedHost, timing: TimingTable) -> Host:
    """What one of them can do."""
    return Host(
        send_bytes_per_s=PAYLOAD_SHARE * host.send_bits_per_s / 8,
        receive_bytes_per_s=PAYLOAD_SHARE * host.receive_bits_per_s / 8,
        slowdown=host.slowdown * timing.slowdown,
    )
