"""Training steps: what is given is checked and split, done by a controller, and put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caramel.core.errors import FeedError
from caramel.core.facts import MEAN
from caramel.core.memory import MemoryCurve
from caramel.core.names import TensorRef
from caramel.core.profile import Profile
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.progress import working
from caramel.core.util.sizes import counted
from caramel.runtime.control.controller import Controller
from caramel.runtime.job import Job
from caramel.runtime.running_job import RunningJob
from caramel.runtime.steps.entries import check_entries
from caramel.runtime.steps.exchangeable import check_one_example
from caramel.runtime.steps.feeds import Rows, SplitFeeds, split_feeds
from caramel.runtime.steps.step_result import Fetch, StepResult
from caramel.runtime.steps.user_feeds import check_mapping, feeds_of
from caramel.runtime.steps.user_fetches import UserFetches
from caramel.runtime.traces.held_memory import held_memory
from caramel.runtime.traces.step_timeline import traced_timeline

Run = Callable[[Controller, Sequence[Fetch], SplitFeeds], StepResult]
"""How a controller does a step."""


def training_step(
    running: RunningJob,
    feed_dict: Mapping[Any, Any] | None,
    fetches: Any = None,
    step: StepName | None = None,
    *,
    run: Run = Controller.step,
    repeats: bool = False,
) -> Any:
    """One training step; see `caramel.runtime.session.Session.step`.

    Args:
        feed_dict: values by tensor or name.
        fetches: what to return; None for the loss.
        step: its name, where the job has several.
        run: lets a controller do it.
        repeats: whether there may be fewer examples than workers.
    """
    check_mapping(feed_dict)  # before fetches, with which it may have been confused
    state, controllers = running.state, running.controllers
    wanted = controllers.own(step).job.context.job.loss if fetches is None else fetches
    fetched = UserFetches(running.job, str(wanted) if isinstance(wanted, TensorRef) else wanted)
    controller = controllers.serving(step, fetched.ops)
    job = controller.job
    feeds = _split(job, feed_dict, repeats=repeats)
    train = job.context.job
    needed = [*fetched.ops, train.train_op, train.loss.op]
    running.missing_feeds.check(job.context, needed, feeds.values[0])
    if state.is_torn:
        running.settle()
    state.may_change()
    with state.torn_by_failures():
        controllers.take_over(controller)
        result = run(controller, fetched.flat, feeds)
        if result.unlike is not None:
            controller.leave_factors(result.unlike)
            state.tear()
    return fetched.packed_of_workers(result.values, result.examples, job)


def _split(job: Job, feed_dict: Mapping[Any, Any] | None, *, repeats: bool) -> SplitFeeds:
    """What each worker is fed.

    Raises:
        FeedError: something does not fit.
    """
    given = feeds_of(job, feed_dict)
    feeds = split_feeds(given, job.plan.workers, repeats=repeats)
    if feeds.repeats and not _counts_by_examples(job):
        raise FeedError(
            f"a batch of {counted(sum(feeds.examples or ()), 'example')} cannot be split over "
            f"{job.plan.workers} workers: the loss is no mean over the examples that are fed, so "
            "none can be repeated on a worker without counting; feed at least one for each"
        )
    if feeds.examples is None and job.state.taken_for_batches:
        check_one_example(job, feeds)
    if composites := [each for each in given if isinstance(each, Rows)]:
        check_entries(job.context.op_graph, job.context.job, composites, feeds)
    return feeds


def _counts_by_examples(job: Job) -> bool:
    """Whether a worker's part counts by the number of examples that it was fed, and that alone."""
    plan = job.plan
    means = all(plan.weight(gradient) == MEAN for gradient in plan.job.gradients)
    return means and plan.counts_examples and plan.job.examples is None


@working("tracing steps")
def traced_steps(
    running: RunningJob, steps: int, feed_dict: Mapping[Any, Any] | None, step: StepName | None
) -> tuple[Timeline, ...]:
    """Timelines of some training steps; see `caramel.runtime.session.Session.trace`.

    Args:
        steps: how many.
        feed_dict: as for `training_step`, for each of them.
        step: its name, where the job has several.
    """
    clock_offsets_s = running.runner.clock_offsets_s()
    traced = [_traced(running, feed_dict, step) for _ in range(steps)]
    found = tuple(_timeline(running.job, each, clock_offsets_s) for each in traced)
    running.controllers.own(step).tell_traced(found)
    return found


def profiled_steps(
    running: RunningJob, steps: int, feed_dict: Mapping[Any, Any] | None, step: StepName | None
) -> Profile:
    """What some training steps tell; see `caramel.runtime.session.Session.profile`.

    Args:
        steps: how many.
        feed_dict: as for `training_step`, for each of them.
        step: its name, where the job has several.
    """
    clock_offsets_s = running.runner.clock_offsets_s()
    traced = [_traced(running, feed_dict, step) for _ in range(steps)]
    sizes = {str(tensor): size for tensor, size in traced[-1].fed_bytes.items()}
    traces = [each.stats for each in traced]
    plans = running.controllers.own(step).job.plans
    return plans.profile(traced[-1].plan, traces, clock_offsets_s, sizes)


@dataclass(frozen=True, slots=True)
class _Traced:
    """The plan that did a step, the `StepStats` protos of its calls, and what it was fed."""

    plan: str
    stats: list[Any]
    feeds: SplitFeeds

    @property
    def fed_bytes(self) -> dict[TensorRef, int]:
        """The sizes of what the first worker was fed, where they say what it takes."""
        fed = self.feeds.values[0].items()
        return {tensor: value.nbytes for tensor, value in fed if not value.dtype.hasobject}


def _timeline(job: Job, traced: _Traced, clock_offsets_s: Sequence[float]) -> Timeline:
    """The timeline of a step; with the memory of its devices, where one replica is spread."""
    timeline = traced_timeline(job.plan, traced.stats, clock_offsets_s)
    memory: tuple[MemoryCurve, ...] = ()
    if job.plan.placement is not None:
        memory = held_memory(
            traced.stats,
            timeline,
            job.plan.placement,
            job.context.op_graph,
            traced.fed_bytes,
            clock_offsets_s,
        )
    return dataclasses.replace(timeline, plan=traced.plan, memory=memory)


def _traced(
    running: RunningJob, feed_dict: Mapping[Any, Any] | None, step: StepName | None
) -> _Traced:
    found: list[_Traced] = []

    def run(controller: Controller, fetches: Sequence[Fetch], feeds: SplitFeeds) -> StepResult:
        traces: list[Any] = []
        result = controller.step_as_before(fetches, feeds, traces)
        stats = [metadata.step_stats for metadata in traces]
        found.append(_Traced(controller.executor.name, stats, feeds))
        return result

    training_step(running, feed_dict, step=step, run=run)
    return found[0]
