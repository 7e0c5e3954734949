"""Where what is done once in a step stands: in the evaluation copy, on the servers."""

from __future__ import annotations

from collections.abc import Mapping

from caramel.core import names
from caramel.core.plan import Plan


def devices_at_home(plan: Plan) -> Mapping[str, str]:
    """The device of each op of the evaluation copy that stands on a server.

    What the user asked for by `tf.device` does not count there: it was meant for where it computes.
    """
    return {place.op: plan.job.servers[place.server] for place in plan.consequences.serving.places}


def prefix_of(plan: Plan, variable: str, worker: int) -> str:
    """The prefix of the copy in which a worker's variable is: on a server it is everyone's."""
    return names.EVALUATION if variable in plan.job.served else names.replica_prefix(worker)


def is_of_step(plan: Plan, name: str) -> bool:
    """Whether a node of the evaluation copy is needed by a step: what is done once, and what
    workers read."""
    own = names.without_prefix(name)
    variable = plan.job.variable_of_handle.get(own)
    is_served = variable is not None and variable.name in plan.job.served
    return is_served or own in plan.consequences.serving.kept_at_home
