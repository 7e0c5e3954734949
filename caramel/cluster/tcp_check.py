"""Does this machine's TCP suit aggregation?"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from pathlib import Path

SETTING = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def advice(addresses: Iterable[str], setting: Path = SETTING) -> str | None:
    """What to change on this machine, in a sentence; None if there is nothing.

    Args:
        addresses: ``host:port`` of all workers. Nothing is said if all are of this machine only.
        setting: the file with the name of TCP's congestion control.
    """
    try:
        name = setting.read_text().strip()
    except OSError:  # no Linux, or a container that hides it
        return None
    # BBR limits what is on its way to what the shortest delay that it has seen allows. To see it
    # again it lets a connection that is always busy send next to nothing, four packets a round
    # trip, for 200 ms of every ten seconds. In a ring of eight hosts each does so at its own time,
    # and all wait: it took up to 1.07 times as long (``docs/decisions/congestion-control.md``).
    if name != "bbr" or all(map(_is_loopback, addresses)):
        return None
    return (
        "TCP of this machine uses BBR, which nearly stops a busy connection for 200 ms of every "
        "ten seconds, and the other workers wait. Within a data centre `sysctl -w "
        "net.ipv4.tcp_congestion_control=cubic`, before workers start, makes steps shorter"
    )


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
