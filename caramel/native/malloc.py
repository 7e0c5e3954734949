"""Memory that a step frees is kept for the next one.

A step allocates what the step before it has freed: activations, gradients, and the messages that
carry them. Kept in one heap, they are there already. The price is that a process stays as large as
it has once been.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

# Parameters of mallopt, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER = -1
_GROWTH_BYTES = 64 * 2**20

_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")
"""Files of the control group in which a container runs, in both versions."""

_USERS_OWN = ("MALLOC_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Let this process keep the memory that it frees for the next step, from now on.

    Workers do so by themselves. Where one is in the process of the program that drives the job
    (one of several inside it, or worker 0 of a launcher), call this first, before the graph is
    built: for threads that have begun before it only works in part.

    Returns:
        Whether it does: not where the environment already says how memory is to be allocated
        (``MALLOC_...`` or ``GLIBC_TUNABLES``, which is how to switch it off:
        ``MALLOC_ARENA_MAX=0`` is the library's default), nor with another C library. Further calls
        change nothing.
    """
    if any(name.startswith(_USERS_OWN) for name in os.environ):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: on Windows there is no such library
        return False
    options = (
        # Else there are several heaps, of which the threads of TensorFlow and gRPC use any. Heaps
        # that are there already stay, and TensorFlow's first op starts a thread with one.
        (_ARENA_MAX, 1),
        # Else fresh pages, which the kernel must clear, are mapped for each allocation of more than
        # 32 MB.
        (_MMAP_MAX, 0),
        # Else what is free at the end of the heap is given back to the system.
        (_TRIM_THRESHOLD, _NEVER),
        (_TOP_PAD, _GROWTH_BYTES),
    )
    return all(set_option(option, value) == 1 for option, value in options)


def total_bytes(limits: Path = Path("/sys/fs/cgroup")) -> int:
    """The memory of this machine, or what a container may use of it.

    Args:
        limits: where the kernel tells of the latter.
    """
    totals = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for name in _LIMITS:
        with suppress(OSError, ValueError):  # there is no such file; it says "max"
            totals.append(int((limits / name).read_text()))
    return min(totals)
