"""Where variables that are on servers are, and what is done with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from caramel.core import names
from caramel.core.consequences import Place
from caramel.core.plan import Plan


def server_devices(plan: Plan, places: Iterable[Place]) -> Mapping[str, str]:
    """The device of each op that is on a server.

    What the user asked for by `tf.device` does not count there: it was meant for where it computes.
    """
    return {place.op: plan.job.servers[place.server] for place in places}


def prefix_of(plan: Plan, variable: str, worker: int) -> str:
    """The prefix of the copy in which a worker's variable is: on a server it is everyone's."""
    return names.EVALUATION if variable in plan.job.served else names.replica_prefix(worker)
