"""Which parameters are split by rows over the servers, and into how many rows each?

One that is larger than a server's share of all bytes. It fills up what the whole ones leave free,
so that it has as few parts as can be.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from caramel.core.dtypes import dtype_bytes
from caramel.core.graph import TensorSpec

ALIGNED_BYTES = 64
"""Parts begin at multiples of so many bytes, of the longest vectors of processors: what a kernel
computes of the last few elements by themselves it computes of the same ones then."""


def larger_than_a_share(parameters: Mapping[str, TensorSpec], servers: int) -> list[str]:
    """The parameters that are larger than a server's share of all, the largest first.

    Args:
        parameters: all of them by name.
        servers: how many there are.
    """
    share = _all_bytes(parameters) / servers
    return [name for name in _longest_first(parameters) if (parameters[name].bytes or 0) > share]


def rows_of_parts(
    parameters: Mapping[str, TensorSpec], servers: int, split: Container[str]
) -> dict[str, tuple[int, ...]]:
    """The numbers of rows of the parts of each parameter that is to be split, in their order.

    Args:
        parameters: all of them by name.
        servers: how many there are.
        split: the names of those that are to be split, which are divisible.
    """
    share = _all_bytes(parameters) / servers
    loads, names = [0] * servers, _longest_first(parameters)
    for name in names:
        if name not in split:
            loads[loads.index(min(loads))] += parameters[name].bytes or 0
    found = {name: _rows(parameters[name], loads, share) for name in names if name in split}
    return {name: rows for name, rows in found.items() if len(rows) > 1}


def is_divisible(spec: TensorSpec) -> bool:
    """Whether a variable has rows between which it can be split."""
    return bool(spec.shape and spec.bytes and (spec.shape[0] or 0) > _step(spec))


def _all_bytes(parameters: Mapping[str, TensorSpec]) -> int:
    return sum(spec.bytes or 0 for spec in parameters.values())


def _longest_first(parameters: Mapping[str, TensorSpec]) -> list[str]:
    return sorted(parameters, key=lambda name: (-(parameters[name].bytes or 0), name))


def _rows(spec: TensorSpec, loads: list[int], share: float) -> tuple[int, ...]:
    """Rows that fill up the servers, beginning with the one that has the least; adds to loads."""
    left = (spec.shape or (0,))[0] or 0
    row_bytes, step = (spec.bytes or 0) // left, _step(spec)
    rows: list[int] = []
    for server in sorted(range(len(loads)), key=lambda server: (loads[server], server)):
        free = (share - loads[server]) / row_bytes
        if not left or free <= 0:
            continue
        own = step * max(1, round(free / step))
        own = own if left - own >= step / 2 else left  # no part of next to nothing
        rows.append(own)
        loads[server] += own * row_bytes
        left -= own
    if left:  # what was rounded off
        rows[-1] += left
    return tuple(rows)


def _step(spec: TensorSpec) -> int:
    """Every how many rows a part may begin."""
    _, *others = spec.shape or (0,)
    row_bytes = math.prod(d or 0 for d in others) * (dtype_bytes(spec.dtype) or 0)
    return ALIGNED_BYTES // math.gcd(ALIGNED_BYTES, row_bytes) if row_bytes else 1
