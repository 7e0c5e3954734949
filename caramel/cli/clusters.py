"""Clusters as options of commands describe them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from caramel.cluster.cluster import Cluster
from caramel.core.errors import ClusterError
from caramel.core.util.sizes import parse_whole

WORKERS_START_S = 10.0
"""How long `caramel profile` and `caramel trace` wait for workers, in seconds."""


def cluster_to_trace(text: str | None, certificates: Path | None) -> Cluster:
    """Running workers that can be reached, or as many as asked for, started here."""
    count = None if text is None else parse_whole(text)
    if certificates is not None and (text is None or count is not None):
        raise ClusterError("--certificates are for workers that run: name them by --cluster")
    if count is not None:
        return Cluster.local(count)
    if text is None:
        cluster = Cluster.from_environment()
    else:
        cluster = parse_cluster(text, certificates=certificates)
    # If this process is a worker itself, its server has not been started yet.
    if cluster.task is None:
        cluster.wait_until_reachable(WORKERS_START_S)
    return cluster


def parse_cluster(
    text: str,
    option: str = "--cluster",
    *,
    servers: Sequence[str] | None = None,
    certificates: Path | None = None,
) -> Cluster:
    """The cluster that an option describes: addresses, or JSON.

    Args:
        text: what the user gave.
        option: its name, for messages.
        servers: addresses of parameter servers.
        certificates: of this host, if it is secure.

    Raises:
        ClusterError: it describes none.
    """
    if not text.lstrip().startswith("{"):
        return Cluster.of(addresses_in(text), parameter_servers=servers, certificates=certificates)
    try:
        jobs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"{option} is not valid JSON ({error}): {text[:200]}") from None
    return Cluster.of(jobs, parameter_servers=servers, certificates=certificates)


def addresses_in(text: str) -> list[str]:
    """What commas are between."""
    return [address.strip() for address in text.split(",")]
