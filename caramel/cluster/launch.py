"""A job as its launcher describes it, and how numbers in descriptions are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caramel.core.errors import ClusterError
from caramel.core.util.sizes import parse_whole

MOST_WORKERS = 65_536
"""What describes more is taken for a mistake."""

_SHOWN = 200  # characters of a description in a message


@dataclass(frozen=True, slots=True)
class Launch:
    """A job as its launcher describes it.

    Attributes:
        source: who describes it, for messages.
        workers: addresses, or a mapping from jobs to addresses.
        own: job and index of this process's own task; None if it is none of them.
    """

    source: str
    workers: Any
    own: tuple[str, int] | None = None


def ranked(source: str, addresses: Sequence[str], rank: int, servers: int) -> Launch:
    """A job of ranks with these addresses, of which the first ones are parameter servers.

    Raises:
        ClusterError: no rank is left to be a worker.
    """
    if servers >= len(addresses):
        raise ClusterError(
            f"parameter_servers is {servers}, but {source} has {len(addresses)} ranks: none is "
            "left to be a worker"
        )
    if not servers:
        return Launch(source, addresses, ("worker", rank))
    jobs = {"ps": addresses[:servers], "worker": addresses[servers:]}
    return Launch(source, jobs, ("ps", rank) if rank < servers else ("worker", rank - servers))


def number(text: str, what: str) -> int:
    """A number that is not negative.

    Raises:
        ClusterError: it is none, or has too many digits to mean anything; begins with `what`.
    """
    found = parse_whole(text)
    if found is None:
        raise ClusterError(f"{what}; expected a number")
    return found


def rank_of(size_text: str, rank_text: str, size_name: str, rank_name: str) -> tuple[int, int]:
    """The number of ranks, and which of them this process is.

    Raises:
        ClusterError: they are no such numbers.
    """
    size = number(size_text, f"{size_name} is '{short(size_text)}'")
    rank = number(rank_text, f"{rank_name} is '{short(rank_text)}'")
    if not 1 <= size <= MOST_WORKERS:
        raise ClusterError(f"{size_name} is {size}; expected 1 to {MOST_WORKERS}")
    if rank >= size:
        raise ClusterError(f"{rank_name} is {rank}, but {size_name} is {size}")
    return size, rank


def short(text: str) -> str:
    """The begin of a text that may be long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
