"""A process that takes part in aggregations, and does what the measuring process says.

The two speak JSON, a line each, over a Unix socket at a path, which reaches over the borders of
network namespaces and sends nothing over their interfaces. A process that waits for an order uses
no processor. Nothing but the standard library is needed, whatever environment a peer has.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PERIOD = 7  # of the values along a tensor


@dataclass(frozen=True)
class Place:
    """What a process is told about itself.

    Attributes:
        rank: which it is.
        workers: how many hosts there are.
        path: of the socket.
        extra: what else its system has to know.
    """

    rank: int
    workers: int
    path: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """All of it as one argument of a command."""
        return json.dumps(asdict(self))

    @staticmethod
    def read() -> Place:
        """What the command line of this process says."""
        return Place(**json.loads(sys.argv[1]))


@dataclass(frozen=True)
class Cell:
    """One way to aggregate a tensor whose entry j on worker i is ``(i + 1) * (1 + j % PERIOD)``.

    Attributes:
        fill: puts the values there.
        step: aggregates, and returns when the mean is there.
        error: the largest difference of an entry from the mean.
    """

    fill: Callable[[], Any]
    step: Callable[[], Any]
    error: Callable[[], float]


def mean_factor(workers: int) -> float:
    """The mean of the tensors is this times ``1 + j % PERIOD``."""
    return (workers + 1) / 2


def serve(place: Place, make: Callable[[int], Mapping[str, Cell]]) -> None:
    """Obey until the measuring process is gone.

    Args:
        place: of this process.
        make: gives the cells for tensors of so many elements; it is called for each size.
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place.path)
    cells: Mapping[str, Cell] = {}
    with connection.makefile("r") as orders:

        def answer(**values: Any) -> None:
            connection.sendall(f"{json.dumps(values)}\n".encode())

        answer(rank=place.rank)
        for line in orders:
            order = json.loads(line)
            if order["do"] == "make":
                cells = make(order["elements"])
                answer(cells=list(cells))
            elif order["do"] == "check":
                cell = cells[order["cell"]]
                cell.fill()
                cell.step()
                answer(error=float(cell.error()))
            else:
                answer(
                    samples_s=_timed(cells[order["cell"]].step, order["untimed"], order["timed"])
                )
    sys.stdout.flush()
    os._exit(0)  # nobody waits for the threads of libraries


def _timed(step: Callable[[], Any], untimed: int, timed: int) -> list[float]:
    for _ in range(untimed):
        step()
    samples_s = []
    for _ in range(timed):
        begin = time.perf_counter()
        step()
        samples_s.append(time.perf_counter() - begin)
    return samples_s
