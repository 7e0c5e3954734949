"""Several hosts on one machine, joined by a real network whose rate is limited.

    python -m benchmarks.testbed --hosts 4 --rate 1gbit --pin -- COMMAND

Each host is a network namespace with an interface eth0, a hostname that resolves to eth0's address,
and, if wanted, a core of its own. eth0 is one end of a veth pair, the other end is a port of the
bed's own bridge. A token bucket (tbf) limits what a host sends. What it receives is limited only by
its senders, so several at once can exceed one link, unless the bed is made with `both_ways`. TCP's
congestion control is the bed's, not the machine's (`CONGESTION_CONTROL`, unless told otherwise).

`rate` is a rate as tc takes it, such as "1gbit" (10^9 bit/s) or "200mbit". tc counts Ethernet
frames: 1514 bytes carry at most 1448 bytes of a TCP stream (`PAYLOAD_SHARE`). An interface's own
counters show less overhead, since the kernel passes on up to 64 KB under a single header.

Everything a bed makes bears its name, `cm<creator's process id>b<subnet, hexadecimal>`: the bridge,
and with h0, h1, ... added each host's namespace, port and directory in /etc/netns. All of it is
removed when the bed is closed, also by an exception, SIGINT, SIGTERM or SIGHUP; what a killed
creator left is removed when the next bed is made. This needs root, iproute2 and util-linux.
"""

from benchmarks.testbed.bed import CONGESTION_CONTROL, Testbed
from benchmarks.testbed.hosts import Counters, Host, difference
from benchmarks.testbed.names import INTERFACE
from benchmarks.testbed.system import BedError, missing

PAYLOAD_SHARE = 1448 / 1514
"""Of what tc counts, the part that a TCP stream can fill: 1500 bytes less the headers of IP (20)
and TCP (20, and 12 for timestamps), of the 1500 and an Ethernet header (14)."""

__all__ = [
    "CONGESTION_CONTROL",
    "INTERFACE",
    "PAYLOAD_SHARE",
    "BedError",
    "Counters",
    "Host",
    "Testbed",
    "difference",
    "missing",
]
