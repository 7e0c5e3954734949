"""What several workers bring: their step beside that of one worker, and what other machines would
bring.

For the last lines of a program, in words that need no paper.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from caramel.analyzers.whole_feeds import whole_feeds
from caramel.capture import rows
from caramel.capture.context import Context
from caramel.capture.structures import fed_pairs, kind_of, parts_of, tensors_of, value_of
from caramel.cluster.cluster import Cluster
from caramel.core.errors import CaramelError
from caramel.core.util.fingerprint import processors
from caramel.core.util.progress import working
from caramel.core.util.sizes import counted
from caramel.planning.from_profile import outline_of
from caramel.planning.what_if.scaling import scale
from caramel.profiling.ops import profile_steps
from caramel.simulation.assumed import AssumedHost, assumed_hardware
from caramel.simulation.hardware import Host

LINK_BITS_PER_S = 1e9
LATENCY_S = 1e-4
_STEPS = 10  # that are traced, of each job
_ALIKE = 0.05  # what is faster by less is as fast

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gain:
    """What workers bring.

    Attributes:
        workers: how many there are.
        cores: how many of this machine's cores they share; None if some are on another machine.
        alone_s: one worker's step with the whole batch, on this machine, in seconds.
        step_s: the step of all workers.
        apart_s: what a step is predicted to take on so many machines like this one; None if that
            cannot be predicted.
    """

    workers: int
    cores: int | None
    alone_s: float
    step_s: float
    apart_s: float | None

    @property
    def speedup(self) -> float:
        """How many times as fast as one worker all are."""
        return self.alone_s / self.step_s

    def __str__(self) -> str:
        own, machines = counted(self.workers, "worker"), counted(self.workers, "machine")
        lines = [
            f"one worker alone: {_ms(self.alone_s)} a step with the same batch",
            f"{own}: {_ms(self.step_s)} a step, {_times(self.speedup)}",
        ]
        if self.cores is not None and self.speedup < 1 + _ALIKE:
            shared = (
                f"the {self.workers} workers share this machine's {counted(self.cores, 'core')}"
            )
            lines.append(f"why: {shared}, which one worker alone keeps busy; nothing can be gained")
        elif self.speedup < 1 + _ALIKE:
            lines.append("why: the transfers take longer than the computation that is saved")
        if self.apart_s is not None and self.cores is not None:
            predicted = f"{_ms(self.apart_s)} are predicted, {_times(self.alone_s / self.apart_s)}"
            lines.append(f"on {machines} like this one with links of 1 Gbit/s {predicted}")
        return "\n".join(lines)


@working("measuring one worker alone")
def gain(
    context: Context,
    feeds: Mapping[Any, Any],
    *,
    cluster: Cluster,
    step_s: float,
) -> Gain:
    """Measure one worker on this machine, and predict machines like it.

    It takes some steps of the job with the whole batch and with a worker's part of it, on variables
    of their own.

    Args:
        context: the single-device job.
        feeds: the whole batch, and whatever else a step is fed.
        cluster: the workers.
        step_s: their usual step, in seconds.

    Raises:
        ProfileError: a placeholder is not fed.
        tf.errors.OpError: an op has failed.
    """
    whole = profile_steps(context, feed=feeds, steps=_STEPS, use_cache=False)
    assert whole.step_s is not None
    return Gain(
        workers=cluster.size,
        cores=processors() if _is_here(cluster) else None,
        alone_s=whole.step_s,
        step_s=step_s,
        apart_s=_apart_s(context, feeds, cluster.size),
    )


def _apart_s(context: Context, feeds: Mapping[Any, Any], workers: int) -> float | None:
    """What a step is predicted to take on as many machines like this one."""
    if workers < 2:
        return None
    jobs = [step.job for step in context.steps.values()]
    context = context.feeding_whole(frozenset(whole_feeds(context.op_graph, jobs)))
    part = {key: _part(context, key, value, workers) for key, value in fed_pairs(feeds)}
    try:
        timing = profile_steps(context, feed=part, steps=_STEPS, use_cache=False)
        outline = outline_of(context.op_graph, context.job, timing)
        link = AssumedHost(LINK_BITS_PER_S, LINK_BITS_PER_S)
        hardware = assumed_hardware([link] * workers, LATENCY_S, timing)
        scaled, _ = scale(outline, hardware, alone=Host(1.0, 1.0, timing.slowdown))
    except CaramelError as error:
        _log.info("no other machines can be predicted: %s", error)
        return None
    return min(scaled.planned_s, *scaled.plain_s.values())


def _part(context: Context, key: Any, value: Any, workers: int) -> Any:
    """A worker's part of what is fed, if it is a batch."""
    kind, ops = kind_of(key), {context.tensor(each, "feeds").op for each in tensors_of(key)}
    if kind == "slices" or ops & context.job.replicated_feeds:
        return value
    if kind is not None:
        parts = tuple(np.asarray(part) for part in parts_of(key, value))
        own = max(1, rows.number(kind, parts) // workers)
        return value_of(kind, rows.take(kind, parts, 0, own))
    array = np.asarray(value)
    return array[: max(1, len(array) // workers)] if array.ndim else value


def _is_here(cluster: Cluster) -> bool:
    """Whether all workers are on this machine."""
    hosts = {(task.address or "localhost").rpartition(":")[0] for task in cluster.tasks}
    return hosts <= {"", "localhost", "127.0.0.1"}


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"


def _times(ratio: float) -> str:
    return f"{ratio:.2f} times as fast as one"
