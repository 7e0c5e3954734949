"""Which parameters are split by rows over the servers, and into how many rows each?

One that is larger than a server's share of all bytes. It fills up what the whole ones leave free,
so that it has as few parts as can be.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable

from caramel.core.facts import Variable
from caramel.core.graph import dtype_bytes

ALIGNED_BYTES = 64
"""Parts begin at multiples of so many bytes, of the longest vectors of processors: what a kernel
computes of the last few elements by themselves it computes of the same ones then."""


def larger_than_a_share(parameters: Iterable[Variable], servers: int) -> list[Variable]:
    """The parameters that are larger than a server's share of all, the largest first."""
    parameters = list(parameters)
    share = sum(variable.spec.bytes or 0 for variable in parameters) / servers
    return [each for each in _longest_first(parameters) if (each.spec.bytes or 0) > share]


def rows_of_parts(
    parameters: Iterable[Variable], servers: int, split: Container[str]
) -> dict[str, tuple[int, ...]]:
    """The numbers of rows of the parts of each parameter that is to be split, in their order.

    Args:
        parameters: all of them.
        servers: how many there are.
        split: the names of those that are to be split, which are divisible.
    """
    parameters = _longest_first(parameters)
    share = sum(variable.spec.bytes or 0 for variable in parameters) / servers
    loads = [0] * servers
    for variable in parameters:
        if variable.name not in split:
            loads[loads.index(min(loads))] += variable.spec.bytes or 0
    found = {v.name: _rows(v, loads, share) for v in parameters if v.name in split}
    return {name: rows for name, rows in found.items() if len(rows) > 1}


def is_divisible(variable: Variable) -> bool:
    """Whether a variable has rows between which it can be split."""
    shape = variable.spec.shape
    return bool(shape and variable.spec.bytes and (shape[0] or 0) > _step(variable))


def _longest_first(variables: Iterable[Variable]) -> list[Variable]:
    return sorted(variables, key=lambda each: (-(each.spec.bytes or 0), each.name))


def _rows(variable: Variable, loads: list[int], share: float) -> tuple[int, ...]:
    """Rows that fill up the servers, beginning with the one that has the least; adds to loads."""
    left = (variable.spec.shape or (0,))[0] or 0
    row_bytes, step = (variable.spec.bytes or 0) // left, _step(variable)
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


def _step(variable: Variable) -> int:
    """Every how many rows a part may begin."""
    _, *others = variable.spec.shape or (0,)
    row_bytes = math.prod(d or 0 for d in others) * (dtype_bytes(variable.spec.dtype) or 0)
    return ALIGNED_BYTES // math.gcd(ALIGNED_BYTES, row_bytes) if row_bytes else 1
