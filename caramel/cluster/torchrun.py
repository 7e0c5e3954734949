"""Jobs that torchrun started, or that set its variables: ranks that know where rank 0 is.

`RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` say that, and no other address. So ranks meet
at rank 0: each tells it the port that it has taken, and learns all addresses. On `MASTER_PORT`
torchrun itself listens, so they meet one port further.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

from caramel.cluster.launch import Launch, number, rank_of, ranked, short
from caramel.core.errors import ClusterError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Is set where torchrun itself has started the process, not a script that knows its variables."""

MEETING_S = 60.0
"""How long ranks wait for each other, in seconds."""

_ONE_S = 2.0  # for what one rank has to say, which is ready when it connects
_AGAIN_S = 0.1  # until a rank tries again whether rank 0 is there
_MOST_BYTES = 2**20
_HELLO = "caramel"


def describes(environ: Mapping[str, str]) -> bool:
    """Whether all variables are there."""
    return all(environ.get(name) for name in VARIABLES)


def launch_of(
    environ: Mapping[str, str], servers: int = 0, *, meeting_s: float = MEETING_S
) -> Launch:
    """The ranks' addresses, which they tell each other: every rank has to call this.

    Args:
        environ: has all of `VARIABLES`.
        servers: how many of the first ranks are parameter servers.
        meeting_s: how long ranks wait for each other, in seconds.

    Raises:
        ClusterError: the variables contradict each other, or ranks did not come in time.
    """
    size, rank = rank_of(environ["WORLD_SIZE"], environ["RANK"], "WORLD_SIZE", "RANK")
    host, text = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    port = number(text, f"MASTER_PORT is '{short(text)}'") + 1
    if not 1 < port <= 65535:
        raise ClusterError(f"MASTER_PORT is {port - 1}; expected 1 to 65534")
    deadline = time.monotonic() + meeting_s
    with ExitStack() as stack:  # ports stay bound until all have chosen, so that they differ
        chosen = stack.enter_context(socket.socket())
        chosen.bind(("", 0))
        own = chosen.getsockname()[1]
        if rank == 0:
            addresses = _gathered(host, port, size, own, deadline)
        else:
            addresses = _told(host, port, size, rank, own, deadline)
    return ranked("torchrun", addresses, rank, servers)


def _gathered(host: str, port: int, size: int, own: int, deadline: float) -> list[str]:
    """As rank 0: the addresses of all ranks, once all have come and were told them."""
    found = {0: _address(host, own)}
    with ExitStack() as stack:
        try:
            listening = stack.enter_context(socket.create_server(("", port), backlog=size))
        except OSError as error:
            raise ClusterError(
                f"rank 0 cannot listen on port {port}, where ranks meet (MASTER_PORT + 1): {error}"
            ) from None
        waiting = {}
        while len(found) < size:
            listening.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, peer = listening.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(size) if rank not in found)
                raise ClusterError(
                    f"of {size} ranks these did not come to rank 0 at {host}:{port}: {missing}"
                ) from None
            stack.enter_context(connection)
            told = _hello(connection, size)
            if told is not None:  # else a stranger
                rank, theirs = told
                found[rank], waiting[rank] = _address(peer[0], theirs), connection
        addresses = [found[rank] for rank in range(size)]
        for connection in waiting.values():
            with suppress(OSError):  # that rank says itself that it heard nothing
                connection.sendall(json.dumps(addresses).encode() + b"\n")
    return addresses


def _hello(connection: socket.socket, size: int) -> tuple[int, int] | None:
    """Rank and port of who connects; None if it is no rank of this job."""
    connection.settimeout(_ONE_S)
    try:
        with connection.makefile("rb") as reading:
            told = json.loads(reading.readline(_MOST_BYTES))
        rank, port, its_size = (int(told[name]) for name in ("rank", "port", "size"))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    fits = told.get(_HELLO) == 1 and its_size == size and 0 < rank < size and 0 < port < 65536
    return (rank, port) if fits else None


def _told(host: str, port: int, size: int, rank: int, own: int, deadline: float) -> list[str]:
    """As another rank: the addresses of all, which rank 0 tells."""
    hello = json.dumps({_HELLO: 1, "rank": rank, "size": size, "port": own}).encode() + b"\n"
    reason = "it does not listen"
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection((host, port), left_s) as connection:
                connection.sendall(hello)
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                with connection.makefile("rb") as reading:
                    line = reading.readline(_MOST_BYTES)
            if line:
                return _all_of(json.loads(line), size)
            reason = "it ended"
        except (ValueError, RecursionError):
            reason = "what is there is no rank of Caramel"
        except OSError as error:
            reason = str(error)
        time.sleep(_AGAIN_S)
    raise ClusterError(
        f"rank {rank} learnt no addresses from rank 0 at {host}:{port} (MASTER_PORT + 1): {reason}"
    )


def _all_of(told: Any, size: int) -> list[str]:
    """The addresses of so many ranks.

    Raises:
        ValueError: it is something else.
    """
    are_texts = isinstance(told, list) and all(isinstance(address, str) for address in told)
    if not are_texts or len(told) != size:
        raise ValueError(f"these are no {size} addresses")
    return list(told)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
