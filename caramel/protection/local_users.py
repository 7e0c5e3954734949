"""Does a process of the same user make a connection on this machine?

Whoever connects to the relay of a program on loopback would use its certificate. A port has no
permissions; but the system tells whose sockets there are.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED = "01"


def is_of_this_user(connection: socket.socket) -> bool:
    """Whether the other end of a connection, on this machine, is of this process's user.

    Args:
        connection: as `accept` returned it, of IPv4.
    """
    there, here = connection.getpeername(), connection.getsockname()
    wanted = [(_written(there, version), _written(here, version)) for version in (4, 6)]
    users = {user for ends, user in _connections() if ends in wanted}
    return users == {os.geteuid()}


def _connections() -> Iterator[tuple[tuple[str, str], int]]:
    """Both ends of each connection, as the system writes them, and the user of the first."""
    for table in _TABLES:
        try:
            lines = table.read_text().splitlines()[1:]
        except OSError:  # there is no IPv6
            continue
        for line in lines:
            _, own, other, state, _, _, _, user, *_ = line.split()
            if state == _ESTABLISHED:
                yield (own, other), int(user)


def _written(address: tuple[str, int], version: int) -> str:
    """An address of IPv4 as the system writes it, in its table of IPv4 or of IPv6."""
    host, port = address
    packed = ipaddress.IPv4Address(host).packed
    if version == 6:
        packed = bytes(10) + b"\xff\xff" + packed
    # Four bytes at a time, as numbers of this machine.
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{text}:{port:04X}"
