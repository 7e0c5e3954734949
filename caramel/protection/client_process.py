"""The relay of a program that drives workers, as a process: ``python -m ... FILE_DESCRIPTOR``.

The file descriptor is a Unix socket to the program. Lines of JSON go both ways: first the
certificates and the relays of all tasks, answered by the ports where each is reached; then
questions what some answer to a connection. Each answer has the number of its question. It ends with
the program.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from caramel.core.errors import CertificateError
from caramel.protection.credentials import Credentials
from caramel.protection.local_users import is_of_this_user
from caramel.protection.relay import Place, Relay, UnreachableError, local_listener, port_of

_LOOK_S = 0.5


def main(descriptor: int) -> None:
    """Serve until the program has ended, or has closed its side."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rw") as lines:
        settings = json.loads(lines.readline())
        places = [Place(*place) for place in settings["places"]]
        try:
            relay = Relay(Credentials(Path(settings["certificates"])), lambda line: None)
        except CertificateError as error:
            _answer(lines, settings, {"error": str(error)})
            return
        listeners = [local_listener() for _ in places]
        for listener, place in zip(listeners, places, strict=True):
            relay.let_out(listener, place, is_of_this_user)
        _answer(lines, settings, {"ports": [port_of(each) for each in listeners]})
        for line in lines:
            asked = json.loads(line)
            wanted = [places[number] for number in asked["tasks"]]
            _answer(lines, asked, {"answers": answers(relay, wanted, asked["timeout_s"])})


def answers(relay: Relay, places: Sequence[Place], timeout_s: float) -> list[tuple[str, str]]:
    """What each place answers to a connection, tried all at once: "accepts", "refuses" or "silent",
    and why it cannot be used."""
    # What has not answered then: looking up a name has no time limit of its own.
    found = [("silent", "it does not answer in time")] * len(places)

    def try_one(number: int) -> None:
        try:
            relay.reach(places[number], timeout_s)
            found[number] = ("accepts", "")
        except UnreachableError as error:
            found[number] = ("silent" if error.is_silent else "refuses", str(error))

    threads = [
        threading.Thread(target=try_one, args=(number,), daemon=True)
        for number in range(len(places))
    ]
    until_s = time.monotonic() + timeout_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until_s - time.monotonic()))
    return list(found)


def _answer(lines: TextIO, asked: dict[str, Any], answer: dict[str, Any]) -> None:
    lines.write(json.dumps({"number": asked["number"], **answer}) + "\n")
    lines.flush()


def _end_with(parent_pid: int) -> None:
    # The socket alone does not tell: forks of the program may have it, too.
    while os.getppid() == parent_pid:
        time.sleep(_LOOK_S)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
