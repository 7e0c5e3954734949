"""What ``caramel trace`` does: runs steps of a job, and shows what every worker did when."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from caramel.capture import rows
from caramel.capture.structures import (
    fed_pairs,
    kind_of,
    parts_of,
    single_pairs,
    tensors_of,
    value_of,
)
from caramel.cli.user_job import UserJob
from caramel.cluster.cluster import Cluster
from caramel.core.errors import PlanError, ProfileError
from caramel.core.names import TensorRef, is_checksum
from caramel.core.op_types import PLACEHOLDERS
from caramel.core.placement import Placement
from caramel.core.plan import Plan
from caramel.core.timeline import Timeline
from caramel.core.util.sizes import bytes_text
from caramel.models.allreduce import ARModel
from caramel.models.placed import PlacedModel
from caramel.profiling.ops import WARM_UP_STEPS, pipeline_starters
from caramel.report.layout import RESOURCES
from caramel.runtime.session import Session
from caramel.simulation.simulate import simulate

_MOST_TRACED = 4  # steps are traced for each that is wanted, as some compare factors' products

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Traced:
    """Steps that were traced, the plan that they carried out, and what was predicted of it.

    `predicted` is None where nothing is known of times, or the plan was given.
    """

    timelines: tuple[Timeline, ...]
    plan: Plan
    predicted: Timeline | None = None

    @property
    def deferred(self) -> frozenset[str]:
        """Names of the groups that are aggregated in the next step."""
        return frozenset(group.name for group in self.plan.decision.groups if group.deferred)


def trace_job(
    job: UserJob,
    cluster: Cluster,
    *,
    steps: int = 3,
    profile: str | os.PathLike[str] | None = None,
    plan: str | os.PathLike[str] | None = None,
) -> Traced:
    """Train a job for some steps, of which the last ones are traced.

    Every worker is fed what the job says that one worker is fed. Input pipelines that end start
    again.

    Args:
        job: the job, with what one worker is fed.
        cluster: the workers.
        steps: how many steps are traced, after some that are not.
        profile: what ``caramel profile`` wrote; without it nothing is planned.
        plan: what ``caramel plan --out`` wrote, or `Plan.to_json` of any model without parameter
            servers, to be carried out in place of a new plan. If it has a placement, the only
            replica is spread over the workers.

    Raises:
        CaramelError: something that the user can correct.
        tf.errors.OpError: an op has failed.
    """
    given = None if plan is None else _read_plan(Path(plan))
    starters = pipeline_starters(job.context)
    model: ARModel | PlacedModel
    if given is not None and given.placement is not None:
        model = PlacedModel(job.context, cluster, profile=profile, plan=given)
    else:
        model = ARModel(job.context, cluster, profile=profile, plan=given)
    initial = _initial_feeds(job)
    with model.session(trials=None, initial_feeds=initial) as session:  # one plan does all steps
        # The model knows what of the feed every worker gets whole.
        own = dataclasses.replace(job, context=model.context)
        run = _Run(session, own, model.plan.workers, starters)
        run.start_pipelines()
        for _ in range(WARM_UP_STEPS):
            run.step(session.step)
        traced: list[Timeline] = []
        # One at a time: only afterwards is it known whether a step was a usual one.
        while len(found := _usual(traced)) < steps and len(traced) < _MOST_TRACED * steps + 1:
            traced += run.step(lambda feed: session.trace(1, feed))
    return Traced((found or tuple(traced))[-steps:], model.plan, _predicted(model))


def _initial_feeds(job: UserJob) -> dict[str, Any]:
    """What of the first step's feed initial values depend on."""
    about, graph = job.context.job, job.context.op_graph
    initial = graph.ancestors(
        [*about.table_initializers, *(v.initializer for v in about.variables)]
    )
    # A feed that is a function need not be asked then.
    if not any(graph[name].kind in PLACEHOLDERS for name in initial):
        return {}
    given = job.feed(0) if callable(job.feed) else job.feed or {}
    named = {job.context.tensor(tensor, "feed"): value for tensor, value in single_pairs(given)}
    return {str(tensor): value for tensor, value in named.items() if tensor.op in initial}


def _predicted(model: ARModel | PlacedModel) -> Timeline | None:
    """A step of the chosen plan as it was predicted."""
    if isinstance(model, PlacedModel):
        explained = model.explain()
        knows_times = explained.placed is not None and explained.placed.knows_times
        return explained.predicted if knows_times else None
    if model.decision.outlook is None:
        return None
    plan, outlook = model.decision.plan, model.decision.outlook
    return simulate(plan, outlook.workload(bool(plan.decision.edges)), outlook.hardware).timeline


def _usual(traced: Sequence[Timeline]) -> tuple[Timeline, ...]:
    """The steps without the first one, in which TensorFlow prepared the traced calls.

    Steps that compare what workers compute from factors do more than others.
    """
    return tuple(step for step in traced[1:] if not _compares(step))


def _compares(step: Timeline) -> bool:
    """Whether a step also compares what workers compute from factors."""
    return any(is_checksum(span.name) for span in step.spans)


def _read_plan(path: Path) -> Plan:
    try:
        return Plan.from_json(path.read_text())
    except (OSError, UnicodeDecodeError, PlanError) as error:
        raise PlanError(f"cannot read the plan {path}: {error}") from None


class _Run:
    """A job under way: what each step is fed, and pipelines that start again when they end."""

    def __init__(
        self, session: Session, job: UserJob, workers: int, starters: Sequence[str]
    ) -> None:
        self._session, self._job, self._workers = session, job, workers
        self._starters = starters
        self._number = 0  # of the next step
        about = job.context.job
        graph = job.context.op_graph
        self._of_step = graph.ancestors([about.train_op, about.loss.op])
        self._of_start = graph.ancestors(starters)

    def start_pipelines(self) -> None:
        """Start the input pipelines of all workers."""
        if self._starters:
            fed = {t: value for t, value in self._fed().items() if t.op in self._of_start}
            self._session.run(list(self._starters), {str(t): value for t, value in fed.items()})

    def step(self, run: Callable[[Mapping[Any, Any]], Result]) -> Result:
        """Run one step, if need be with pipelines started again.

        Args:
            run: runs a step that is fed this.
        """
        feed = self._step_feed()
        self._number += 1
        try:
            return run(feed)
        except tf.errors.OutOfRangeError:
            if not self._starters:
                raise
        self.start_pipelines()
        try:
            return run(feed)
        except tf.errors.OutOfRangeError:
            raise ProfileError(
                "an input pipeline does not have one element for each worker (started by "
                f"{', '.join(self._starters)})"
            ) from None

    def _fed(self) -> dict[TensorRef, Any]:
        """What one worker is fed in this step."""
        pairs = single_pairs(self._given())
        return {self._job.context.tensor(tensor, "feed"): value for tensor, value in pairs}

    def _given(self) -> Mapping[Any, Any]:
        feed = self._job.feed
        return feed(self._number) if callable(feed) else feed or {}

    def _step_feed(self) -> dict[Any, Any]:
        """What all workers together are fed: batches one after the other, the rest once."""
        context = self._job.context
        feed: dict[Any, Any] = {}
        for key, value in fed_pairs(self._given()):
            ops = {context.tensor(tensor, "feed").op for tensor in tensors_of(key)}
            if ops & self._of_step:
                is_whole = bool(ops & context.job.replicated_feeds)
                feed[key] = value if is_whole else self._of_all(key, value)
        return feed

    def _of_all(self, key: Any, value: Any) -> Any:
        """A value for each worker, one after the other."""
        kind = kind_of(key)
        if kind is None:
            return np.concatenate([value] * self._workers) if np.ndim(value) else value
        # Rows of a variable: the same for all workers.
        if kind == "slices":
            return value
        parts = tuple(np.asarray(part) for part in parts_of(key, value))
        return value_of(kind, rows.join(kind, [parts] * self._workers))


# What came out ----------------------------------------------------------------------------------


_WORDS = (
    "rho: the least time on the wire for each second of computation; alpha: how much of the "
    "shorter of both goes on while the other one does (1: all, -: nothing); U: the part of the "
    "step in which a worker computes"
)


def show_traced(traced: Traced, console: Console) -> None:
    """Print how long each worker was busy with what, and what the paper's figures say of it."""
    if traced.plan.placement is not None:
        console.print(_devices(traced, traced.plan.placement))
    else:
        console.print(_workers(traced))
        console.print(_WORDS, highlight=False, soft_wrap=True)
    pauses = [timeline.link_pauses for timeline in traced.timelines]
    console.print(
        f"the busiest link is idle for {_median_ms([each.before_s for each in pauses])} ms before "
        f"its first transfer, {_median_ms([each.between_s for each in pauses])} ms between "
        f"transfers and {_median_ms([each.after_s for each in pauses])} ms after the last",
        highlight=False,
        soft_wrap=True,
    )


def _devices(traced: Traced, placement: Placement) -> Table:
    """What each device of a replica that is spread did, and what its tensors took."""
    steps = len(traced.timelines)
    table = Table(title=f"1 replica on {len(placement.devices)} devices, median of {steps} steps")
    table.add_column("device")
    for column in ("ops", "compute ms", "sent", "received", "tensors", "step ms", "U"):
        table.add_column(column, justify="right")
    for number, name in enumerate(placement.devices):
        own = [timeline.of_worker(number) for timeline in traced.timelines]
        ops = [len({s.name for s in each.spans if s.resource == "compute"}) for each in own]
        memory = [m.peak_bytes for t in traced.timelines for m in t.memory if m.worker == number]
        table.add_row(
            f"{number} {name}",
            f"{statistics.median_low(ops):,}",
            _median_ms([timeline.busy_s(number, "compute") for timeline in own]),
            _median_bytes([timeline.sent_bytes(number) for timeline in own]),
            _median_bytes([timeline.received_bytes(number) for timeline in own]),
            _median_bytes(memory) if memory else "",
            *_times(own),
        )
    table.add_row("all", *[""] * 5, *_times(traced.timelines))
    if traced.predicted is not None:
        table.add_row("predicted", *[""] * 5, *_times([traced.predicted]))
    return table


def _times(steps: Sequence[Timeline]) -> tuple[str, str]:
    """Step time and U."""
    times, *_, utilisation = _figures(steps)
    return times, utilisation


def _median_bytes(sizes: Sequence[float]) -> str:
    return bytes_text(round(statistics.median(sizes)))


def _workers(traced: Traced) -> Table:
    workers, steps = traced.plan.workers, len(traced.timelines)
    table = Table(title=f"{workers} workers, median of {steps} traced steps, in ms")
    for column in ("worker", "compute", "reduce", "send", "receive", "step"):
        table.add_column(column, justify="right")
    for column in ("rho", "alpha", "U"):
        table.add_column(column, justify="right")
    for worker in range(workers):
        own = [timeline.of_worker(worker) for timeline in traced.timelines]
        busy = (
            _median_ms([timeline.busy_s(worker, resource) for timeline in own])
            for resource in RESOURCES
        )
        table.add_row(str(worker), *busy, *_figures(own))
    table.add_row("all", *[""] * len(RESOURCES), *_figures(traced.timelines))
    if traced.predicted is not None:
        table.add_row("predicted", *[""] * len(RESOURCES), *_figures([traced.predicted]))
    return table


def _figures(steps: Sequence[Timeline]) -> tuple[str, ...]:
    """Step time, rho, alpha and U."""
    ratios = (
        [step.rho for step in steps],
        [step.alpha for step in steps],
        [step.utilisation for step in steps],
    )
    times = _median_ms([step.step_s for step in steps])
    rho, alpha, utilisation = (statistics.median(ratio) for ratio in ratios)
    # A step that is longer than both one after the other hides nothing.
    return times, f"{rho:.2f}", f"{alpha:.2f}" if alpha >= 0 else "-", f"{utilisation:.2f}"


def _median_ms(seconds: Sequence[float]) -> str:
    """Down to microseconds below one millisecond, where additions of small jobs are."""
    median_ms = statistics.median(seconds) * 1e3
    return f"{median_ms:.1f}" if median_ms >= 1 else f"{median_ms:.3f}"
