"""The hosts of a bed, and what their interfaces have sent and received."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.testbed.names import ETC, INTERFACE
from benchmarks.testbed.system import call


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a bed.

    Attributes:
        name: its hostname, which resolves to `address` on every host of the bed.
        address: the IPv4 address of its interface.
        namespace: its network namespace, as in `ip netns exec NAMESPACE`.
        core: the only core its programs use, or None if they may use all.
        interface: its network interface, as seen on the host.
    """

    name: str
    address: str
    namespace: str
    core: int | None
    interface: str = INTERFACE


@dataclass(frozen=True, slots=True)
class Counters:
    """What a host's interface has sent (tx) and received (rx), as the host itself counts it.

    Bytes include headers. A packet is what the kernel passes on at once: up to 64 KB of a stream
    count as one packet with one header.
    """

    host: str
    tx_bytes: int
    tx_packets: int
    rx_bytes: int
    rx_packets: int


def difference(before: Sequence[Counters], after: Sequence[Counters]) -> tuple[Counters, ...]:
    """What each host has sent and received between two calls of `Testbed.counters`."""
    return tuple(
        Counters(
            host=new.host,
            tx_bytes=new.tx_bytes - old.tx_bytes,
            tx_packets=new.tx_packets - old.tx_packets,
            rx_bytes=new.rx_bytes - old.rx_bytes,
            rx_packets=new.rx_packets - old.rx_packets,
        )
        for old, new in zip(before, after, strict=True)
    )


def write_hosts_file(namespace: str, hosts: Sequence[Host]) -> None:
    """`ip netns exec` shows this file as /etc/hosts."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{host.address} {host.name}" for host in hosts]
    directory = ETC / namespace
    directory.mkdir(parents=True)
    (directory / "hosts").write_text("\n".join(lines) + "\n")


def read_counters(host: Host) -> Counters:
    """What a host has sent and received so far."""
    text = call("ip", "-n", host.namespace, "-s", "-j", "link", "show", host.interface)
    sums = json.loads(text)[0]["stats64"]
    return Counters(
        host=host.name,
        tx_bytes=sums["tx"]["bytes"],
        tx_packets=sums["tx"]["packets"],
        rx_bytes=sums["rx"]["bytes"],
        rx_packets=sums["rx"]["packets"],
    )
