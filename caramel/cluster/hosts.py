"""Machines on which workers are started: how a text names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caramel.cluster.addresses import host_and_port
from caramel.cluster.parsing import addresses_in
from caramel.core.errors import ClusterError

ANY_PORT = 0
"""In place of a port: one that is free."""

_LOOPBACK = ("localhost", "127.", "::1")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Host:
    """A machine on which one worker or parameter server is started.

    Attributes:
        login: what ssh is told: its name, perhaps with a user before it.
        name: by which all others reach it; an IPv6 address has brackets.
        port: where its worker listens; `ANY_PORT` for one that is free.
    """

    login: str
    name: str
    port: int = ANY_PORT

    def __str__(self) -> str:
        return self.name


def parse_hosts(text: str) -> list[Host]:
    """The hosts that a text names: "a,b", each perhaps with a user and a port: "user@a:2222".

    Raises:
        ClusterError: it has another form.
    """
    return [_host(part) for part in addresses_in(text)]


def check_reachable_names(hosts: Sequence[Host]) -> None:
    """Workers reach each other by the names of their hosts, which mean the same everywhere.

    Raises:
        ClusterError: some mean this very machine, wherever they are looked up, and others do not.
    """
    own = [host for host in hosts if host.name.strip("[]").startswith(_LOOPBACK)]
    if own and len(own) < len(hosts):
        raise ClusterError(
            f"'{own[0]}' means another machine to each of the other hosts; name it as they reach it"
        )


def _host(text: str) -> Host:
    user, _, place = text.rpartition("@")
    has_port = ":" in place.rpartition("]")[2]
    try:
        bare, port = host_and_port(place if has_port else f"{place}:1")
    except ClusterError as error:
        raise ClusterError(
            f"'{text[:_SHOWN]}' is no host; expected one such as 'a', 'user@a', 'a:2222' or "
            f"'[fe80::1]:2222'{f' ({error})' if has_port else ''}"
        ) from None
    if text.startswith("-") or place.startswith("-"):  # ssh would take it for an option
        raise ClusterError(f"'{text[:_SHOWN]}' is no host: it begins with '-'")
    name = f"[{bare}]" if ":" in bare else bare
    return Host(f"{user}@{bare}" if user else bare, name, port if has_port else ANY_PORT)
