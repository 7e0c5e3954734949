"""What a session takes over from another one with the same parameter servers.

A session that trains begins with copies of the other's variables, also if that has lost a worker.
One that only infers works on the other's variables themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.core.devices import task_of
from caramel.core.dtypes import is_differentiable
from caramel.core.errors import ClusterError, PlanError
from caramel.core.facts import Variable
from caramel.core.names import EVALUATION, in_copy, in_replica
from caramel.core.plan import Plan
from caramel.modifiers.other_variables import read_other, take_op, value_there
from caramel.modifiers.variable_ops import drawing_offset
from caramel.runtime.execution.containers import Containers
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.variables import SharedState

_NOWHERE = "on no server"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The variables of another session.

    Attributes:
        plan: a plan of the other session's job.
        runner: the other session's runner.
        shares: whether the new session works on the very variables that are on the servers.
    """

    plan: Plan
    runner: Runner
    shares: bool

    def check(self, plan: Plan) -> None:
        """Raise unless the variables are those of a plan.

        Raises:
            PlanError: they are not.
            ClusterError: a server was lost, and what it had with it.
        """
        lost = [task.device for task in self.runner.lost if task.device in self.plan.job.servers]
        if lost:
            raise ClusterError(
                f"the session whose variables are asked for has lost {', '.join(lost)}, and what "
                "was there with it: start it again, and restore the last checkpoint"
            )
        own, others = _homes(plan), _homes(self.plan)
        if own != others:
            name = next(n for n in (*own, *others) if own.get(n) != others.get(n))
            raise PlanError(
                f"variable '{name}' is {own.get(name, _NOWHERE)} here and "
                f"{others.get(name, _NOWHERE)} in the session whose variables are asked for; both "
                "models must be of the same job, with the same parameter servers"
            )

    @property
    def container(self) -> str | None:
        """Nothing outlives the new session."""
        return None

    @property
    def looks(self) -> bool:
        """It has what it needs."""
        return False

    def containers(self) -> Containers | None:
        """Where the new session has its state; None for new containers."""
        if not self.shares:
            return None
        return self.runner.containers.sharing_servers()

    def given(self, plan: Plan) -> frozenset[str]:
        """The variables that are not initialised: those on servers."""
        return plan.job.served

    def prepare(self, job: Job, runner: Runner, cluster: Cluster) -> None:
        """Add what reads the other session's variables to the new session's graph.

        Raises:
            PlanError: the sessions have different servers.
        """
        if runner.server_addresses != self.runner.server_addresses:
            raise PlanError(
                f"the parameter servers are {', '.join(runner.server_addresses)} here and "
                f"{', '.join(self.runner.server_addresses)} in the session whose variables are "
                "asked for; servers inside this process are the same only if there are as many "
                "workers, too (cluster.without leaves some of these out)"
            )
        variables = job.plan.job.variables
        handles = {in_copy(EVALUATION, variable.handle) for variable in variables}
        handles |= {in_replica(0, variable.handle) for variable in variables}
        nodes = tf.compat.v1.GraphDef()
        nodes.ParseFromString(job.graph.parts[0].graph_def)
        found = {node.name: node for node in nodes.node if node.name in handles}
        other = self.runner.containers
        devices = self._readable(cluster)
        added = read_other(job.plan, found, other.on_servers, other.on_workers, devices)
        runner.add(added.SerializeToString(), 0)

    def hand_over(self, job: Job, runner: Runner, state: SharedState, cluster: Cluster) -> None:
        """Give the new session's variables their values; all others were initialised.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.run`.
        """
        plan, what = job.plan, "taking over variables"
        if not self.shares:
            served = [v for v in plan.job.variables if v.name in plan.job.served]
            runner.run([], [take_op(variable) for variable in served], {}, what)
        own = [v for v in plan.job.variables if v.name not in plan.job.served]
        workers = tuple(self._readable(cluster))
        if own and not workers:
            _log.warning(
                "no worker of the other session is left: %s begin anew",
                ", ".join(variable.name for variable in own),
            )
        elif own:
            tensors = [value_there(worker, variable) for variable in own for worker in workers]
            values = iter(runner.run(tensors, [], {}, what))
            read = {variable.name: [next(values) for _ in workers] for variable in own}
            together = {v.name: merged(v, read[v.name], plan, workers) for v in own}
            state.assign(own, together)

    def _readable(self, cluster: Cluster) -> Mapping[int, str]:
        """The devices of the other session's workers that are there and in a cluster."""
        gone = {task.device for task in self.runner.lost}
        there = set(cluster.devices) - gone
        devices = enumerate(self.plan.job.devices)
        return {worker: device for worker, device in devices if task_of(device) in there}


def _homes(plan: Plan) -> Mapping[str, str]:
    """What each variable on a server is like, and on which one it is, in words."""
    found = {}
    for name, server in plan.decision.server_of.items():
        spec = plan.job.variable_of[name].spec
        shape = "any shape" if spec.shape is None else f"shape {list(spec.shape)}"
        found[name] = f"{spec.dtype} of {shape} on {plan.job.servers[server]}"
    return found


def merged(
    variable: Variable, values: Sequence[np.ndarray], plan: Plan, workers: Sequence[int]
) -> np.ndarray:
    """What a variable of the workers is together."""
    if variable.name in plan.job.summed:
        return np.asarray(sum(values[1:], start=values[0]))
    if variable.name in plan.job.local and is_differentiable(variable.spec.dtype):
        total = np.asarray(sum(values[1:], start=values[0]))
        return np.asarray(total / total.dtype.type(len(values)))
    first = np.array(values[0])
    offset = drawing_offset(plan, workers[0], variable)
    return first if offset is None else first - offset
