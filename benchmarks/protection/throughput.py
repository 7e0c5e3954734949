"""Bytes through two relays, on this machine: how many seconds of a core each needs for them.

A process sends to the relay beside it, which encrypts (`out`); that one to another, which decrypts
(`in`) and hands on to a process that reads. The time that counts is that of each relay's process,
so it does not matter who else uses the machine, but for caches.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from caramel.protection.credentials import Credentials
from caramel.protection.relay import Place, Relay, local_listener, port_of

_HOST = "127.0.0.1"
_BLOCK_BYTES = 1 << 20


def carried(certificates: Path, size_bytes: float) -> dict[str, float]:
    """Seconds of a core that each relay took, by its way, to carry so many bytes in one direction.

    Args:
        certificates: of this host.
    """
    sink, entrance, way_out = (local_listener() for _ in range(3))
    credentials = Credentials(certificates)
    to_sink = (_HOST, port_of(sink))
    place = Place(_HOST, port_of(entrance))
    relays = {
        "in": _forked(
            lambda relay: relay.let_in([entrance], lambda: socket.create_connection(to_sink)),
            credentials,
        ),
        "out": _forked(lambda relay: relay.let_out(way_out, place), credentials),
    }
    try:
        got: list[int] = []
        reader = threading.Thread(target=lambda: got.append(_read_all(sink)))
        reader.start()
        before = {way: _processor_s(pid) for way, pid in relays.items()}
        sent, block = 0, bytes(_BLOCK_BYTES)
        with socket.create_connection((_HOST, port_of(way_out))) as connection:
            while sent < size_bytes:
                connection.sendall(block)
                sent += len(block)
            connection.shutdown(socket.SHUT_WR)
            reader.join()
        assert got == [sent], "all of it has arrived"
        used_s = {way: _processor_s(pid) - before[way] for way, pid in relays.items()}
        return {way: each * size_bytes / sent for way, each in used_s.items()}
    finally:
        for pid in relays.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for listener in (sink, entrance, way_out):
            listener.close()


def _forked(begin: Callable[[Relay], None], credentials: Credentials) -> int:
    """The process id of a relay."""
    pid = os.fork()
    if pid == 0:
        _be_relay(begin, credentials)
    return pid


def _be_relay(begin: Callable[[Relay], None], credentials: Credentials) -> NoReturn:
    try:
        begin(Relay(credentials, print))
        while True:
            time.sleep(60)
    finally:
        os._exit(1)


def _read_all(listener: socket.socket) -> int:
    connection, _ = listener.accept()
    buffer, got = bytearray(_BLOCK_BYTES), 0
    with connection:
        while count := connection.recv_into(buffer):
            got += count
    return got


def _processor_s(pid: int) -> float:
    """Seconds of processors that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
