"""The variables of a session that has lost workers, from those that are left.

Every worker has a replica of most variables, whichever drives the session, and TensorFlow keeps it
until somebody drops it. So a new session, driven by a worker that is left, reads it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np

from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.errors import CheckpointError, SessionError
from caramel.modifiers.values_left import Source, is_left, read_left, value_left
from caramel.modifiers.variable_ops import is_merged
from caramel.runtime.checkpoint import SavedTensor, some_of, write_checkpoint
from caramel.runtime.execution.distributed_graph import DistributedGraph
from caramel.runtime.execution.liveness import unanswering
from caramel.runtime.execution.runner import Runner
from caramel.runtime.inheritance import merged
from caramel.runtime.job import Job
from caramel.runtime.remains import devices_of, gone, sources_of
from caramel.runtime.running_job import RunningJob
from caramel.runtime.saving import check_path
from caramel.runtime.variables import chunks

_ANSWER_S = 5.0
_START_S = 60.0

_log = logging.getLogger(__name__)


def rescue_variables(running: RunningJob, path: str | os.PathLike[str]) -> str:
    """Write a checkpoint of what is left; see `caramel.runtime.session.Session.rescue`."""
    check_path(path)
    job, runner = running.job, running.runner
    if not runner.has_failed:
        raise SessionError("the session has lost no worker: session.save writes a checkpoint")
    cluster = runner.cluster
    lost = {*runner.lost, *unanswering(cluster, _ANSWER_S)}
    sources = sources_of(job)
    _check(job, cluster, sources, lost)
    left = cluster.without(lost) if lost else cluster
    with closing(
        _reader(running, left, [s for s in sources if s.task in devices_of(left)])
    ) as read:
        # One that was started again answers, and has nothing.
        lost.update(_empty(read, left, sources))
        _check(job, cluster, sources, lost)
        there = [source for source in sources if source.task in devices_of(cluster, lost)]
        values = dict(_values(read, job, there))
    saved = [variable for variable in job.context.variables if variable.saved]
    written = write_checkpoint(
        path, [SavedTensor(v.full_name, v.slice_spec, values[v.name]) for v in saved]
    )
    _log.warning(
        "checkpoint '%s' has the variables of %s; in the last step, which has failed, some of them "
        "may have been updated and others not",
        written,
        "the parameter servers" if cluster.servers else f"worker {there[0].worker}",
    )
    return written


def _check(job: Job, cluster: Cluster, sources: Sequence[Source], lost: Collection[Task]) -> None:
    """Raise if something is nowhere but on tasks that were lost."""
    if names := gone(job, sources, devices_of(cluster, lost)):
        where = " and ".join(cluster.describe(task) for task in cluster.tasks if task in lost)
        raise CheckpointError(
            f"nothing is written: {where} had these variables alone, and they are gone: "
            f"{some_of(names)}; restore the last checkpoint"
        )


def _reader(running: RunningJob, left: Cluster, sources: Sequence[Source]) -> Runner:
    """What reads the variables, in the containers of the session that has failed."""
    failed, graph = running.runner, DistributedGraph()
    graph.add(read_left(sources))
    reader = Runner(
        graph,
        left.devices,
        left,
        start_timeout_s=_START_S,
        call_timeout_s=failed.limit_of_calls_s,
        config=failed.config,
        containers=failed.containers.of_another(),
    )
    try:
        reader.extend()
    except BaseException:
        reader.close()
        raise
    return reader


def _empty(read: Runner, left: Cluster, sources: Sequence[Source]) -> list[Task]:
    """The tasks that have none of what they should have."""
    one_of = {source.task: source for source in reversed(sources)}
    asked = [task for task in left.tasks if task.device in one_of]
    tensors = [is_left(one_of[t.device].worker, one_of[t.device].variable) for t in asked]
    found = read.run(tensors, [], {}, "looking for variables")
    return [task for task, is_there in zip(asked, found, strict=True) if not is_there]


def _values(read: Runner, job: Job, sources: Sequence[Source]) -> Iterator[tuple[str, np.ndarray]]:
    """Names and values of the user's variables: of the first worker that has them, or merged."""
    plan, splits = job.plan, job.context.row_splits
    workers: dict[str, list[int]] = {}
    for source in sources:
        workers.setdefault(source.variable.name, []).append(source.worker)
    for chunk in chunks([variable for variable in job.context.variables if variable.saved]):
        parts = [part for variable in chunk for part in splits.parts(variable)]
        read_of = {p.name: workers[p.name][: None if is_merged(p, plan) else 1] for p in parts}
        tensors = [value_left(worker, part) for part in parts for worker in read_of[part.name]]
        results = iter(read.run(tensors, [], {}, "reading variables"))
        values: Mapping[str, np.ndarray] = {
            part.name: merged(part, [next(results) for _ in own], plan, own)
            for part in parts
            if (own := read_of[part.name])
        }
        for variable in chunk:
            own_parts = [values[part.name] for part in splits.parts(variable)]
            yield variable.name, np.concatenate(own_parts) if own_parts[1:] else own_parts[0]
