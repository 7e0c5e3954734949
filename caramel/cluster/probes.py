"""Who listens at an address?"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from typing import Literal

from caramel.cluster.addresses import host_and_port

Answer = Literal["accepts", "refuses", "silent"]
"""To a TCP connection: it is accepted; the host says that nobody listens; nothing is said."""


def answers(addresses: Sequence[str | None], timeout_s: float) -> list[Answer]:
    """What is answered at each address in time, tried all at once.

    Args:
        addresses: ``host:port``; None, for a server in this process, always accepts.
        timeout_s: how long they may take together, in seconds.
    """
    found: list[Answer] = ["accepts" if address is None else "silent" for address in addresses]
    deadline = time.monotonic() + timeout_s

    def probe(number: int, host: str, port: int) -> None:
        try:
            with socket.create_connection((host, port), timeout_s):
                found[number] = "accepts"
        except ConnectionRefusedError:
            found[number] = "refuses"
        except (OSError, UnicodeError):  # the latter from host names that cannot be encoded
            pass

    threads = [
        threading.Thread(target=probe, args=(number, *host_and_port(address)), daemon=True)
        for number, address in enumerate(addresses)
        if address is not None
    ]
    try:
        for thread in threads:
            thread.start()
    except RuntimeError:  # Python begins no thread while it ends: then nothing is known
        return ["accepts"] * len(addresses)
    for thread in threads:  # looking up a name has no time limit of its own
        thread.join(max(0.0, deadline - time.monotonic()))
    # A copy: threads that are late may still write.
    return list(found)
