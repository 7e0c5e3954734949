"""Workers and links that nobody has measured: from rates and latencies that someone names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from caramel.core.errors import PlanError
from caramel.core.facts import NetworkModel, TimingTable
from caramel.core.patterns import PATTERNS
from caramel.simulation.hardware import (
    MESSAGE_S,
    Hardware,
    Host,
    hardware_of,
    processor_s_per_message,
)

PAYLOAD_SHARE = 0.94
"""Of what Ethernet carries: 1448 of 1538 bytes, which a full frame and its gap take."""

TRANSFER_S = 0.2e-3
"""What TensorFlow takes for a transfer of next to nothing, if no faster one was measured: half of
what two workers take to aggregate 64 bytes, without the client's call
(`benchmarks/results/decided/allreduce.json`, `benchmarks/results/overhead.json`)."""


REQUEST_S = 0.036e-3
"""What asking for a message takes, if no faster host was measured: 0.45 of what a small message
takes between two workers of one core each (`network_model.REQUEST_SHARE`)."""


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
) -> Hardware:
    """What these hosts can do.

    Args:
        hosts: the workers.
        latency_s: of the network, one way; what TensorFlow takes for a transfer comes on top.
        timing: knows what computes.
        networks: what was measured elsewhere, for what TensorFlow takes at most (the latency of
            that network is part of it), and for how many times more a pattern's transfers take than
            their bytes: of the most workers counts.
    """
    transfer_s, excess, empty_s, request_s = TRANSFER_S, {}, 0.0, REQUEST_S
    if networks:
        # What patterns take beyond their bytes shows best where many send.
        most = max(networks, key=lambda network: network.workers)
        measured = hardware_of(most, timing)
        transfer_s, empty_s = min(TRANSFER_S, *measured.latency_s.values()), most.empty_s
        request_s = min([REQUEST_S, *(each.request_s for each in networks if each.request_s)])
        # Between two workers there is one sender to each receiver, whatever the pattern.
        excess = dict(measured.excess) if most.workers > 2 and len(hosts) > 2 else {}
    return Hardware(
        hosts=tuple(_host(each, timing) for each in hosts),
        latency_s=dict.fromkeys(PATTERNS, transfer_s + latency_s),
        excess=excess,
        cores=timing.cores,
        processor_s_per_message=processor_s_per_message(timing),
        message_s=MESSAGE_S,
        step_s=empty_s,
        # Where processors compute, messages keep them busy instead.
        request_s=request_s if timing.cores is None else 0.0,
    )


def _host(host: AssumedHost, timing: TimingTable) -> Host:
    return Host(
        send_bytes_per_s=PAYLOAD_SHARE * host.send_bits_per_s / 8,
        receive_bytes_per_s=PAYLOAD_SHARE * host.receive_bits_per_s / 8,
        slowdown=host.slowdown * timing.slowdown,
    )
