"""Workers as one text describes them, on a command line or in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from caramel.cluster.addresses import host_and_port
from caramel.core.errors import ClusterError
from caramel.core.util.sizes import parse_whole

LOCAL = "local:"
_SHOWN = 200
_ADDRESSES = re.compile("[:,{]")  # one of these is in any of them, and in JSON


@dataclass(frozen=True, slots=True)
class DescribedWorkers:
    """What a text says.

    Attributes:
        kind: where they are: "embedded" (in this process), "local" (processes to be started on this
            machine) or "remote" (they run).
        count: how many; None if they have addresses.
        jobs: these addresses, as `caramel.Cluster.of` takes them.
    """

    kind: Literal["embedded", "local", "remote"]
    count: int | None
    jobs: Any = None


def parse_workers(text: str) -> DescribedWorkers:
    """What a text says: "4", "local:4", "host:port,host:port", or JSON.

    Raises:
        ClusterError: it is none of these.
    """
    given = text.strip()
    local = given.startswith(LOCAL) and "," not in given  # else of hosts, the first called so
    count = parse_whole(given.removeprefix(LOCAL))
    if count is not None or local:
        if not count:
            raise ClusterError(f"'{given[:_SHOWN]}' is no number of workers, at least 1")
        return DescribedWorkers("local" if local else "embedded", count)
    if not _ADDRESSES.search(given):
        raise ClusterError(
            f"'{given[:_SHOWN]}' describes no workers; expected a number for workers inside "
            "this process (4), local:4 for processes of this machine, host:port,host:port for "
            "workers that run, or JSON"
        )
    return DescribedWorkers("remote", None, parse_jobs(given))


def parse_servers(text: str, workers: DescribedWorkers) -> int | Sequence[str] | None:
    """The parameter servers beside such workers: how many are made with them, or, of workers that
    run, their addresses; None if the text of the workers has them.

    Raises:
        ClusterError: it does not fit the workers.
    """
    number = parse_whole(text.strip())
    if workers.count is not None:
        if not number:
            raise ClusterError(
                f"parameter_servers is how many are made beside the workers, at least 1, not "
                f"'{text[:_SHOWN]}'"
            )
        return number
    if isinstance(workers.jobs, Mapping):
        known = workers.jobs.get("ps", ())  # of which kind it is, is looked at later
        if number is None or (isinstance(known, Sequence) and number != len(known)):
            raise ClusterError(
                f"parameter_servers is '{text[:_SHOWN]}', and the workers are described with their "
                "servers: name these there alone"
            )
        return None
    if number is not None:
        raise ClusterError(
            f"parameter_servers is '{text[:_SHOWN]}', but the workers run: name the addresses of "
            "the servers, too, as 'host:port,host:port'"
        )
    return addresses_in(text)


def parse_jobs(text: str) -> Any:
    """Addresses with commas in between, as a list, or a JSON object of jobs.

    Raises:
        ClusterError: it is neither.
    """
    if not text.lstrip().startswith("{"):
        addresses = addresses_in(text)
        for address in addresses:
            host_and_port(address)
        return addresses
    try:
        jobs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"it is not valid JSON ({error}): {text[:_SHOWN]}") from None
    return jobs


def addresses_in(text: str) -> Sequence[str]:
    """What commas are between."""
    return [address.strip() for address in text.split(",")]
