"""The form of addresses, ``host:port``, alone and as those of a job's tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caramel.core.errors import ClusterError

# A host name, an IPv4 address, or an IPv6 one in brackets, perhaps with its interface (``%eth0``).
_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]):(?P<port>[0-9]+)")
_MOST_DIGITS = 18  # of what may be a port


def is_list(value: Any) -> bool:
    """Whether it is a list of some kind, and not a text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def addresses_of(job: str, addresses: Any) -> Iterator[str]:
    """The addresses of a job's tasks, in order: a list, or a mapping from 0, 1, ... to them.

    Raises:
        ClusterError: `addresses` is something else, or has something that is no address.
    """
    if isinstance(addresses, Mapping):  # the form of a ClusterSpec with numbered tasks
        if set(addresses) != set(range(len(addresses))):
            raise ClusterError(
                f"the tasks of job {job} are {list(addresses)!s:.200}; expected 0, 1, ... without "
                "gaps"
            )
        addresses = [addresses[index] for index in range(len(addresses))]
    if not is_list(addresses):
        raise ClusterError(
            f"the addresses of job {job} are {addresses!r:.200}; expected a list of host:port"
        )
    for address in addresses:
        host_and_port(address)
        yield address


def host_and_port(address: Any) -> tuple[str, int]:
    """The two parts of an address; an IPv6 host without its brackets.

    Raises:
        ClusterError: it has another form, or an impossible port.
    """
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None:
        raise ClusterError(
            f"{address!r:.200} is not an address; expected host:port, such as 'node1:4321', "
            "'192.168.0.7:4321' or '[::1]:4321'"
        )
    port = match["port"]
    if len(port) > _MOST_DIGITS:
        raise ClusterError(f"the port of '{match['host']}' has {len(port)} digits")
    if not 1 <= int(port) <= 65535:
        raise ClusterError(f"the port of address '{address}' is {port}; expected 1 to 65535")
    return match["host"].strip("[]"), int(port)
