"""Names of what beds consist of; who has which is read from the machine itself."""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from ipaddress import IPv4Network
from pathlib import Path

from benchmarks.testbed.system import BedError, call

INTERFACE = "eth0"
NETWORK = "10.77.{subnet}.0/24"
NAMESPACES = Path("/run/netns")
ETC = Path("/etc/netns")
NAME = re.compile(r"(?P<bed>cm(?P<pid>\d{1,7})b(?P<subnet>[0-9a-f]{2}))(?:h\d{1,2})?")


def free_subnet() -> int:
    """The lowest x of 10.77.x.0/24 that no bed has and no route of this machine touches."""
    routes = json.loads(call("ip", "-j", "-4", "route", "show", "table", "all"))
    used = []
    for route in routes:
        with suppress(ValueError):  # such as "default"
            used.append(IPv4Network(route["dst"]))
    beds = (NAME.fullmatch(bed) for bed in all_beds())
    taken = {int(match["subnet"], 16) for match in beds if match}
    for subnet in range(256):
        network = IPv4Network(NETWORK.format(subnet=subnet))
        if subnet not in taken and not any(map(network.overlaps, used)):
            return subnet
    raise BedError("all 256 subnets of 10.77.0.0/16 are in use")


def all_beds() -> set[str]:
    """The beds that have left any trace on this machine."""
    names = [*links(), *names_in(NAMESPACES), *names_in(ETC)]
    return {match["bed"] for match in map(NAME.fullmatch, names) if match}


def links(bed: str | None = None) -> list[str]:
    """Network interfaces of a bed, or of all beds."""
    return [name for _, name in socket.if_nameindex() if _belongs(name, bed)]


def names_in(directory: Path, bed: str | None = None) -> list[str]:
    """Files of a directory that belong to a bed, or to any."""
    try:
        return [name for name in os.listdir(directory) if _belongs(name, bed)]
    except FileNotFoundError:
        return []


def _belongs(name: str, bed: str | None) -> bool:
    match = NAME.fullmatch(name)
    return match is not None and bed in (None, match["bed"])
