"""Commands of the system, what of it a bed needs, and the lock under which beds are changed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LOCK_DIRECTORY = "/run"  # is always there, so that no file for the lock is left behind
LOCK_TIMEOUT_S = 60.0


class BedError(RuntimeError):
    """A test bed cannot be made, changed or removed; the message says why."""


def missing() -> list[str]:
    """What this machine lacks for a bed, in words; empty if nothing."""
    if os.geteuid() != 0:
        return ["root"]
    programs = dict.fromkeys(("ip", "tc", "bridge"), "iproute2")
    programs |= {"unshare": "util-linux", "taskset": "util-linux", "hostname": "hostname"}
    lacking = [
        f"the program {program} (package {package})"
        for program, package in programs.items()
        if shutil.which(program) is None
    ]
    if not lacking and attempt("unshare", "--net", "--uts", "true").returncode:
        lacking = ["permission to make network namespaces"]
    return lacking


def attempt(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command, whether or not it succeeds."""
    # In a session of its own: Ctrl-C in a terminal does not stop a removal half-way.
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, start_new_session=True
    )


def call(*command: str) -> str:
    """Run a command; returns its output.

    Raises:
        BedError: it failed; says why.
    """
    done = attempt(*command)
    if done.returncode:
        reason = "; ".join(done.stderr.split("\n")[:3]).strip("; ")
        raise BedError(f"{' '.join(command)} failed: {reason or done.returncode}")
    return done.stdout


def keep_silent(*ip_and_interface: str) -> None:
    """Let an interface have no IPv6 address, and so nothing to announce on the wire."""
    *ip, interface = ip_and_interface
    attempt(*ip, "link", "set", interface, "addrgenmode", "none")  # fails where there is no IPv6


@contextmanager
def lock() -> Iterator[None]:
    """Only one bed of this machine is made or removed at a time."""
    descriptor = os.open(LOCK_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise BedError(f"another bed is being made for over {LOCK_TIMEOUT_S:.0f} s")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)  # this also unlocks
