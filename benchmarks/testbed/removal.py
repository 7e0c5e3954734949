"""Removes beds: this process's own, and what killed ones have left."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from benchmarks.testbed.names import ETC, NAME, NAMESPACES, all_beds, links, names_in
from benchmarks.testbed.programs import end_processes
from benchmarks.testbed.system import BedError, attempt

open_beds: set[str] = set()
"""The names of this process's beds."""


def remove_by_name(bed: str) -> None:
    """Remove all that bears the name of `bed`, complete or not; the caller holds the lock."""
    for link in links(bed):
        attempt("ip", "link", "delete", link)
    for name in names_in(NAMESPACES, bed):
        attempt("ip", "netns", "delete", name)
    for name in names_in(ETC, bed):
        shutil.rmtree(ETC / name, ignore_errors=True)
    with suppress(OSError):  # somebody else uses it
        ETC.rmdir()
    if left := {*links(bed), *names_in(NAMESPACES, bed), *names_in(ETC, bed)}:
        raise BedError(f"could not remove {', '.join(sorted(left))}")


def remove_leftovers() -> None:
    """Remove the beds whose creators have gone; the caller holds the lock."""
    for bed in sorted(all_beds()):
        match = NAME.fullmatch(bed)
        assert match is not None
        if _is_left_over(bed, int(match["pid"])):
            with suppress(BedError):  # it is in nobody's way
                end_processes(bed, [])
                remove_by_name(bed)


def _is_left_over(bed: str, creator_pid: int) -> bool:
    if creator_pid == os.getpid():
        return bed not in open_beds
    try:
        status = Path(f"/proc/{creator_pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(") ")[2].startswith("Z")  # ended, its parent has not noticed yet
