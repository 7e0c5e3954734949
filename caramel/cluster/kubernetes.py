"""Indexed jobs of Kubernetes: pods whose names differ in their index only.

The pod with index 2 of the job `train` has the host name ``train-2``. With a headless service
(`subdomain` in the pod's template) the others know it as ``train-2.SERVICE``.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from caramel.cluster.launch import Launch, rank_of, ranked
from caramel.core.errors import ClusterError

INDEX = "JOB_COMPLETION_INDEX"
SIZE = "WORLD_SIZE"


def describes(environ: Mapping[str, str]) -> bool:
    """Whether this process is in a pod of an indexed job."""
    return bool(environ.get(INDEX))


def launch_of(
    environ: Mapping[str, str], base_port: int, servers: int = 0, *, host: str | None = None
) -> Launch:
    """The addresses of all pods of the job.

    Args:
        environ: has `INDEX`, and in `SIZE` how many pods there are, which Kubernetes does not say.
        base_port: on which each listens.
        servers: how many of the first pods are parameter servers.
        host: the full name of this pod; by default what the system says.

    Raises:
        ClusterError: the variables contradict each other, or the pod's name is another one.
    """
    if not environ.get(SIZE):
        raise ClusterError(
            f"{INDEX} is set, so this is a pod of an indexed job; set {SIZE} in the pod's template "
            "to the number of completions, which Kubernetes does not tell"
        )
    size, rank = rank_of(environ[SIZE], environ[INDEX], SIZE, INDEX)
    name, _, domain = (host or socket.getfqdn()).partition(".")
    if not name.endswith(f"-{rank}"):
        raise ClusterError(
            f"this pod is called '{name}', and not '...-{rank}' as that with {INDEX} {rank} of an "
            "indexed job; give the workers' addresses"
        )
    if size > 1 and not domain:
        raise ClusterError(
            f"the pod '{name}' has no domain by which the others know it: make a headless service, "
            "and set 'subdomain' in the pod's template to its name"
        )
    common = name.removesuffix(str(rank))
    behind = f".{domain}" if domain else ""
    addresses = [f"{common}{index}{behind}:{base_port}" for index in range(size)]
    return ranked("Kubernetes", addresses, rank, servers)
