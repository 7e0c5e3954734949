"""Directories for what is being written tell who made them; what was interrupted is removed.

The number of a process means something only on its machine, until that is started again, and in its
container. So a directory is removed only there, and only if it is this user's.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from functools import cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")


def temporary_prefix(name: str) -> str:
    """How the name of a directory begins in which this process prepares `name`.

    `tempfile` makes a name of it that nobody can guess, and fails where there is something of that
    name.
    """
    return f".{name}.saving-{_here()}-{os.getpid()}-"


def remove_leftovers(directory: Path, name: str) -> None:
    """Remove what processes that have ended left behind of `name`.

    Raises:
        OSError: the directory cannot be read.
    """
    start = f".{name}.saving-{_here()}-"
    for each in directory.iterdir():
        process, dash, _ = each.name.removeprefix(start).partition("-")
        if not (each.name.startswith(start) and dash and process.isdecimal()):
            continue
        if not os.path.exists(f"/proc/{process}") and _is_own_directory(each):
            shutil.rmtree(each, ignore_errors=True)


def _is_own_directory(path: Path) -> bool:
    try:
        status = path.lstat()  # no link is followed
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


@cache
def _here() -> str:
    """This machine since it was started, and this container; random where it cannot be known."""
    try:
        known = f"{_BOOT.read_text()} {os.readlink(_PROCESSES)}"
    except OSError:
        return secrets.token_hex(8)
    return hashlib.sha256(known.encode()).hexdigest()[:16]
