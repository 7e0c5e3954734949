"""Which variables are left when workers are lost? Each worker has a replica of most of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import tensorflow as tf

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.modifiers.values_left import Source
from caramel.modifiers.variable_copies import original_of
from caramel.runtime.checkpoint import some_of
from caramel.runtime.job import Job


def sources_of(job: Job) -> tuple[Source, ...]:
    """All replicas of all variables, in the order of the workers."""
    nodes = tf.compat.v1.GraphDef()
    nodes.ParseFromString(job.graph.parts[0].graph_def)
    handles = {node.name: node for node in nodes.node if node.op == "VarHandleOp"}
    found: dict[str, Source] = {}
    for worker in range(job.plan.workers):
        for variable in job.plan.job.variables:
            name = original_of(job.plan, worker, variable)
            if name in handles:
                found.setdefault(name, Source(worker, variable, handles[name]))
    return tuple(found.values())


def devices_of(cluster: Cluster, lost: Collection[Task] = ()) -> frozenset[str]:
    """The tasks of a cluster but for some that were lost, by their devices."""
    return frozenset(task.device for task in cluster.tasks if task not in lost)


def gone(job: Job, sources: Sequence[Source], tasks: Collection[str]) -> tuple[str, ...]:
    """The names of the variables of which some part is on none of some tasks."""
    left = {source.variable.name for source in sources if source.task in tasks}
    splits = job.context.row_splits
    return tuple(
        variable.name
        for variable in job.context.variables
        if variable.saved and any(part.name not in left for part in splits.parts(variable))
    )


def told_of_loss(job: Job, cluster: Cluster, lost: Sequence[Task]) -> str:
    """What is gone with tasks that were lost, and what to do, in words."""
    again = "start it again, open a new session and restore the last checkpoint"
    names = gone(job, sources_of(job), devices_of(cluster, lost))
    if names:
        return f"the variables that it held are gone ({some_of(names)}): {again}"
    if cluster.servers:
        return (
            "the variables are still on the servers: start it again, or make a model of "
            "cluster.without(error.lost), and open model.session(variables=this_session)"
        )
    return (
        f"the other workers have all variables, which session.rescue(path) writes: {again}, or that"
    )
