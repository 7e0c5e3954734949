"""A `caramel worker` that tells on request how much memory it has allocated and not freed.

What the system counts is more: workers keep what they free (`caramel.native.malloc`), so it is the
most that they have ever had at once, and what lies idle between.

    python -m benchmarks.faults.memory_worker FD --cluster HOST:PORT,... --task NUMBER

For each line that comes in, a line with a number of bytes goes out by the file descriptor.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def bytes_in_use() -> int:
    """What this process has allocated and not freed."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _MallInfo2
    found = mallinfo2()
    return int(found.uordblks + found.hblkhd)


def _answer(descriptor: int) -> None:
    for _ in sys.stdin:
        os.write(descriptor, b"%d\n" % bytes_in_use())


if __name__ == "__main__":
    threading.Thread(target=_answer, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = ["caramel", "worker", *sys.argv[2:]]
    from caramel.cli.main import main

    main()
