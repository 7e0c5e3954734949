"""Clusters as options of commands describe them."""

from __future__ import annotations

from pathlib import Path

from caramel.cluster.cluster import Cluster
from caramel.cluster.parsing import parse_workers
from caramel.core.errors import ClusterError

WORKERS = (
    '"4" for workers inside this process, "local:4" for processes that are started on this '
    'machine, or those that run: "host:port,host:port", or JSON.'
)
"""What an option --workers takes, for its help."""

WORKERS_START_S = 10.0
"""How long commands wait for workers that run, in seconds."""


def workers_of(text: str | None, certificates: Path | None) -> Cluster:
    """Workers that can be reached, as --workers describes them; without it the launcher's.

    Raises:
        ClusterError: it describes none.
        WorkerStartError: one cannot be reached or started.
    """
    if text is None:
        if certificates is not None:
            raise ClusterError("--certificates are for workers that run: name them by --workers")
        cluster = Cluster.from_environment()
    else:
        cluster = _parsed(text, certificates)
    # If this process is a worker itself, its server has not been started yet.
    if cluster.kind == "remote" and cluster.task is None:
        cluster.wait_until_reachable(WORKERS_START_S)
    return cluster


def _parsed(text: str, certificates: Path | None) -> Cluster:
    try:
        return Cluster.parse(text, certificates=certificates)
    except ClusterError as error:
        raise ClusterError(f"--workers: {error}") from None


def count_of(text: str) -> int:
    """How many workers --workers describes; none is started or asked.

    Raises:
        ClusterError: it describes none.
    """
    try:
        described = parse_workers(text)
        return described.count or Cluster.of(described.jobs).size
    except ClusterError as error:
        raise ClusterError(f"--workers: {error}") from None
