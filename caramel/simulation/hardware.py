"""What can the workers and their links do, as far as it matters for the time of a step?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import permutations

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.errors import PlanError, ProfileError
from caramel.core.patterns import PATTERNS, schedule
from caramel.core.time_facts import Link, NetworkModel, TimingTable, TransferCost
from caramel.simulation.network_model import JUDGED_AT_BYTES, cheapest, threshold
from caramel.simulation.rounds import rounds_of


@dataclass(frozen=True, slots=True)
class Host:
    """What one worker can do.

    Attributes:
        send_bytes_per_s: payload over its link, in each direction at the same time.
        receive_bytes_per_s: likewise.
        slowdown: its computation takes so many times longer than the timed ops.
    """

    send_bytes_per_s: float
    receive_bytes_per_s: float
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        for name in ("send_bytes_per_s", "receive_bytes_per_s", "slowdown"):
            if not getattr(self, name) > 0:
                raise PlanError(f"a host's {name} must be more than 0, not {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Hardware:
    """Workers, links, and what a step costs besides.

    Attributes:
        hosts: one for each worker.
        latency_s: of a transfer, beside its bytes and behind those sent before it, by pattern.
        links: pairs of workers whose rate or latency is another than their hosts and `latency_s`
            say.
        excess: how many times the bytes of a pattern its transfers are worth: 1, or more where
            several senders to one receiver make segments be sent again.
        cores: how many cores of a processor both compute and transfer; None if an accelerator
            computes.
        processor_s_per_byte: time of one core for each byte that a worker sends, receiving as many,
            without the additions.
        processor_s_per_message: what a host's processor cannot compute for each chunk that it
            sends, receiving as many; nothing if an accelerator computes.
        reduce_s_per_byte: adding two tensors of so many bytes, on one core.
        handling_s_per_byte: what every transfer takes besides, while others may be on the wire.
        copy_s_per_byte: laying members of a group side by side, on one core.
        message_s: what every chunk that a worker sends takes, one after the other, beside its
            bytes. In what was measured between so many workers it is part of the latency.
        op_s: what the runtime takes for each op beside the op's own time.
        step_s: what a step takes in which nothing is done: the client's call.
        gaps_s_per_byte: as `handling_s_per_byte`, what the transfers of a pattern take in addition:
            a round begins when all workers have ended the one before.
        request_s: for each chunk that a worker receives in a step, so much later it begins to
            compute and to send; nothing if a processor computes, where it is a part of
            `processor_s_per_message`.
    """

    hosts: tuple[Host, ...]
    latency_s: Mapping[str, float]
    links: tuple[Link, ...] = ()
    excess: Mapping[str, float] = field(default_factory=dict)
    cores: int | None = None
    processor_s_per_byte: float = DEFAULT.sending_s_per_byte
    processor_s_per_message: float = 0.0
    reduce_s_per_byte: float = DEFAULT.reduce_s_per_byte
    handling_s_per_byte: float = DEFAULT.handling_s_per_byte
    copy_s_per_byte: float = DEFAULT.copy_s_per_byte
    message_s: float = 0.0
    op_s: float = 0.0
    step_s: float = 0.0
    gaps_s_per_byte: Mapping[str, float] = field(default_factory=dict)
    request_s: float = 0.0

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.hosts)

    @property
    def is_uniform(self) -> bool:
        """Whether all workers and all links are alike."""
        return len(set(self.hosts)) == 1 and not self.links

    @property
    def bytes_per_s(self) -> float:
        """What the slowest worker sends or receives at most, over all its links together.

        No step is shorter than what a worker must send at this rate.
        """
        if not self.links:
            return min(min(h.send_bytes_per_s, h.receive_bytes_per_s) for h in self.hosts)
        rates, found = self._rates(), []
        for worker, host in enumerate(self.hosts):
            sent = sum(rate for (source, _), rate in rates.items() if source == worker)
            received = sum(rate for (_, target), rate in rates.items() if target == worker)
            found += [min(host.send_bytes_per_s, sent), min(host.receive_bytes_per_s, received)]
        return min(found)

    def _rates(self) -> dict[tuple[int, int], float]:
        """What each link carries, by its source and its target."""
        own = {(link.source, link.target): link.bytes_per_s for link in self.links}
        return {
            (source, target): min(
                host.send_bytes_per_s,
                other.receive_bytes_per_s,
                own.get((source, target), math.inf),
            )
            for source, host in enumerate(self.hosts)
            for target, other in enumerate(self.hosts)
            if source != target
        }

    def latency_of(self, pattern: str) -> float:
        """Latency of one transfer of a pattern; of one that is unknown, the largest known."""
        known = self.latency_s.get(pattern)
        return max(self.latency_s.values(), default=0.0) if known is None else known

    def handling_of(self, pattern: str) -> float:
        """What each byte of a pattern's transfers takes, while others may be on the wire."""
        return self.handling_s_per_byte + self.gaps_s_per_byte.get(pattern, 0.0)

    def with_costs(self, calibration: Calibration) -> Hardware:
        """The same with what transfers cost the machines."""
        per_message_s = calibration.processor_s_per_message
        return dataclasses.replace(
            self,
            processor_s_per_byte=calibration.sending_s_per_byte,
            processor_s_per_message=per_message_s / self.cores if self.cores else 0.0,
            reduce_s_per_byte=calibration.reduce_s_per_byte,
            handling_s_per_byte=calibration.handling_s_per_byte,
            copy_s_per_byte=calibration.copy_s_per_byte,
            message_s=calibration.message_s,
        )

    def with_rates(self, factor: float) -> Hardware:
        """The same with every link so many times faster."""
        hosts = [
            dataclasses.replace(
                host,
                send_bytes_per_s=factor * host.send_bytes_per_s,
                receive_bytes_per_s=factor * host.receive_bytes_per_s,
            )
            for host in self.hosts
        ]
        links = [
            dataclasses.replace(link, bytes_per_s=factor * link.bytes_per_s) for link in self.links
        ]
        return dataclasses.replace(self, hosts=tuple(hosts), links=tuple(links))

    def with_latency(self, latency_s: float) -> Hardware:
        """The same with another latency, for every pattern and link."""
        links = tuple(dataclasses.replace(each, latency_s=latency_s) for each in self.links)
        latencies = dict.fromkeys(PATTERNS, latency_s)
        return dataclasses.replace(self, latency_s=latencies, links=links)


LEAST_S_PER_BYTE = 1e-12
"""Of a link whose measured transfers took no time."""

HOSTS_DIFFER, LINK_DIFFERS = 1.1, 1.25
"""Links are taken one by one if a host is so many times faster than another, or if a link is so
many times slower than both of its hosts. The rate of one pair is less certain than the best of a
host's."""


def hardware_of(
    network: NetworkModel, timing: TimingTable, calibration: Calibration = DEFAULT
) -> Hardware:
    """What was measured.

    Where links differ, a host sends as fast as the fastest of its links and receives likewise,
    since they were measured one at a time; and all of it is scaled, so that the slowest link has
    the rate that was measured with several tensors on their way.

    A pattern's latency is that of its line, without what its chunks cost and asking for them takes,
    spread over the rounds in which it goes. For how much longer it keeps links busy than its bytes
    need is its excess: if it was not measured with several tensors on their way, the slope of its
    line without the additions.

    Args:
        network: lines of aggregations.
        timing: knows what computes, and how much longer a step takes than its ops.
        calibration: what transfers cost the machines.
    """
    workers = network.workers
    slopes = {name: _wire_s_per_byte(network, name, calibration) for name in network.costs}
    rate = payload_bytes_per_s(network, calibration)
    request_s = network.request_s if timing.cores is None else 0.0
    excess, latency, gaps = {}, {}, {}
    for name, cost in network.costs.items():
        rounds = rounds_of(name, workers, _chunks(name, workers))
        least = _sent(name, workers) / rate
        excess[name] = max(1.0, slopes[name] / least) if least else 1.0
        if cost.busy_s_per_byte and least:
            alone_s = _alone_s_per_byte(network, name, calibration)
            gaps[name] = max(0.0, alone_s - excess[name] * least) / _sent(name, workers)
        chunks_s = (calibration.message_s + request_s) * sum(each.chunks for each in rounds)
        count = max(1, sum(each.count for each in rounds))
        latency[name] = max(0.0, cost.latency_s - chunks_s) / count
    hosts, links = _hosts_and_links(network, rate, timing.slowdown, calibration)
    hardware = Hardware(
        hosts=hosts,
        latency_s=latency,
        links=links,
        excess=excess,
        cores=timing.cores,
        step_s=network.empty_s,
        gaps_s_per_byte=gaps,
        request_s=request_s,
    )
    return hardware.with_costs(calibration)


def _hosts_and_links(
    network: NetworkModel, rate: float, slowdown: float, calibration: Calibration
) -> tuple[tuple[Host, ...], tuple[Link, ...]]:
    """Hosts, and their links if these differ: the slowest has `rate`, or else all hosts do."""
    alike = (Host(rate, rate, slowdown),) * network.workers
    if not network.links:
        return alike, ()
    pairs = {(link.source, link.target) for link in network.links}
    if pairs != set(permutations(range(network.workers), 2)):
        raise ProfileError(
            f"the network of {network.workers} workers has links between some of them only; "
            "measure it again with 'caramel profile --pairs'"
        )
    own = [_without_handling(link.bytes_per_s, calibration) for link in network.links]
    links = tuple(
        dataclasses.replace(link, bytes_per_s=each * rate / min(own))
        for link, each in zip(network.links, own, strict=True)
    )
    hosts = tuple(
        Host(
            max(link.bytes_per_s for link in links if link.source == worker),
            max(link.bytes_per_s for link in links if link.target == worker),
            slowdown,
        )
        for worker in range(network.workers)
    )
    rates = [each for host in hosts for each in (host.send_bytes_per_s, host.receive_bytes_per_s)]
    slower = [
        min(hosts[link.source].send_bytes_per_s, hosts[link.target].receive_bytes_per_s)
        / link.bytes_per_s
        for link in links
    ]
    if max(rates) <= HOSTS_DIFFER * min(rates) and max(slower) <= LINK_DIFFERS:
        return alike, ()
    return hosts, links


def network_of(hardware: Hardware) -> NetworkModel:
    """What aggregations cost on some hardware, one at a time: of alike workers the opposite of
    `hardware_of`, of others what they cost if all had the slowest link."""
    workers, rate = hardware.workers, hardware.bytes_per_s
    costs = {}
    for name in PATTERNS:
        rounds = rounds_of(name, workers, _chunks(name, workers))
        sent = sum(each.bytes * each.busiest for each in rounds)
        added = sum(each.added for each in rounds)
        chunks = sum(each.chunks for each in rounds)
        costs[name] = TransferCost(
            hardware.latency_of(name) * sum(each.count for each in rounds)
            + (hardware.message_s + hardware.request_s) * chunks,
            sent * (hardware.excess.get(name, 1.0) / rate + hardware.handling_of(name))
            + added * hardware.reduce_s_per_byte,
        )
    limit = threshold(costs[cheapest(costs, JUDGED_AT_BYTES)])
    return NetworkModel(
        workers, costs, rate, limit, hardware.links, hardware.step_s, hardware.request_s
    )


def payload_bytes_per_s(network: NetworkModel, calibration: Calibration = DEFAULT) -> float:
    """What a link carries while nothing else waits.

    If it was measured with several tensors on their way, it is what the model of the network says.
    Else, of links that were measured one by one it is the slowest; of measured aggregations what
    the model says; else what the pattern with the least overhead reaches. What a transfer takes
    besides leaves the link idle where there is only one, and is taken away.
    """
    if any(cost.busy_s_per_byte for cost in network.costs.values()):
        return network.bytes_per_s
    if network.links:
        return min(_without_handling(link.bytes_per_s, calibration) for link in network.links)
    if any(cost.residual is not None for cost in network.costs.values()):
        return _without_handling(network.bytes_per_s, calibration)
    rates = [network.bytes_per_s]
    for name in network.costs:
        slope = _wire_s_per_byte(network, name, calibration)
        sent = _sent(name, network.workers)
        if slope > 0:
            rates.append(sent / slope)
    return max(rates)


def _without_handling(bytes_per_s: float, calibration: Calibration) -> float:
    """The rate of a link, from that of one transfer at a time."""
    seconds = max(1 / bytes_per_s, LEAST_S_PER_BYTE)
    return 1 / max(seconds - calibration.handling_s_per_byte, seconds / 2)


def _sent(pattern: str, workers: int) -> float:
    """What the busiest worker sends for each byte that is aggregated."""
    return sum(r.bytes * r.busiest for r in rounds_of(pattern, workers, _chunks(pattern, workers)))


def _chunks(pattern: str, workers: int) -> tuple[float, ...]:
    """One byte, in chunks."""
    count = schedule(pattern, workers).chunks
    return (1.0 / count,) * count


def _wire_s_per_byte(network: NetworkModel, pattern: str, calibration: Calibration) -> float:
    """For how long each aggregated byte keeps the links busy, as far as that is known."""
    busy_s = network.costs[pattern].busy_s_per_byte
    return busy_s or _alone_s_per_byte(network, pattern, calibration)


def _alone_s_per_byte(network: NetworkModel, pattern: str, calibration: Calibration) -> float:
    """The slope of a pattern's line, without additions and handling."""
    chunks = _chunks(pattern, network.workers)
    added = sum(each.added for each in rounds_of(pattern, network.workers, chunks))
    besides = added * calibration.reduce_s_per_byte
    besides += _sent(pattern, network.workers) * calibration.handling_s_per_byte
    slope = network.costs[pattern].s_per_byte
    return max(slope / 2, slope - besides)
