"""Evaluates batches on all workers, without training: each worker computes its part of a batch.

What is returned is that of all examples of all batches, however many each batch has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from caramel.core import names
from caramel.core.errors import FeedError
from caramel.core.facts import MEAN, SUM, LossScale
from caramel.core.names import TensorRef
from caramel.core.op_types import ITERATOR_READS
from caramel.runtime.evaluation import readable, refuse_training, written_by
from caramel.runtime.job import Job
from caramel.runtime.running_job import RunningJob
from caramel.runtime.steps.combine_results import combine
from caramel.runtime.steps.feeds import SplitFeeds, split_feeds
from caramel.runtime.steps.scaled_results import shared_reads, shared_value
from caramel.runtime.steps.step_result import Fetch
from caramel.runtime.steps.user_feeds import feeds_of
from caramel.runtime.steps.user_fetches import UserFetches
from caramel.runtime.work import Work

_METHOD = "session.evaluate"


def evaluate_batches(work: Work, batches: Any, fetches: Any) -> Any:
    """What is fetched of all examples; see `caramel.runtime.session.Session.evaluate`.

    Args:
        work: does what is asked for; each batch by itself is done again after a loss.
        batches: what is fed for each batch; or for the only one.
        fetches: tensors or names, or a structure of them; None for the loss.
    """
    parts: list[_Part] = []
    for feed_dict in _several(batches):
        evaluate = partial(_evaluate, feed_dict=feed_dict, fetches=fetches, begins=not parts)
        parts.append(work.read(evaluate))
    if not parts:
        raise FeedError(f"{_METHOD} was given no batch")
    job = work.running.job
    fetched = _fetched(work.running, fetches)
    # A worker without an example has repeated that of another one.
    counting = [(p, w) for p in parts for w, count in enumerate(p.examples) if count]
    examples = [part.examples[worker] for part, worker in counting]
    shared = parts[-1].shared
    results = [
        _together(job, fetch, [p.values[number][w] for p, w in counting], examples, shared)
        for number, fetch in enumerate(fetched.flat)
    ]
    return fetched.packed_of_workers(results, examples, job)


@dataclass(frozen=True, slots=True)
class _Part:
    """What the workers have computed of one batch.

    Attributes:
        values: for each fetch the values of the workers.
        examples: the workers' numbers of examples.
        shared: of what is the same on all of them, the tensors that it is computed from.
    """

    values: Sequence[Sequence[Any]]
    examples: Sequence[int]
    shared: Mapping[TensorRef, Any]


def _several(batches: Any) -> Iterator[Any]:
    """What is fed for each batch."""
    if isinstance(batches, Mapping):
        yield batches
    elif isinstance(batches, Iterable) and not isinstance(batches, str | bytes):
        yield from batches
    else:
        raise FeedError(
            f"{_METHOD} takes what is fed, for one batch or for several (a list, a generator), not "
            f"a {type(batches).__name__}"
        )


def _fetched(running: RunningJob, fetches: Any) -> UserFetches:
    if fetches is None:
        fetches = str(running.controllers.own(None).job.context.job.loss)
    fetched = UserFetches(running.job, fetches)
    fetched.check_together(_METHOD)
    return fetched


def _evaluate(running: RunningJob, *, feed_dict: Any, fetches: Any, begins: bool) -> _Part:
    """Let the workers compute their parts of one batch.

    Args:
        begins: whether it is the first one, before which steps may have been done.
    """
    job, state = running.job, running.state
    fetched = _fetched(running, fetches)
    feeds = split_feeds(feeds_of(job, feed_dict), job.plan.workers, repeats=True)
    running.missing_feeds.check(job.context, fetched.ops, feeds.values[0])
    _check(running, fetched.flat, feeds)
    scales = [_scale(job, fetch) for fetch in fetched.flat]
    running.settle()
    state.refresh()
    if begins:
        running.worker_copies.expire()
    flat = [readable(job, fetch.tensor) for fetch in fetched.flat if fetch.tensor is not None]
    copies = running.worker_copies.of(job, running.runner, [tensor.op for tensor in flat])
    copies.refresh(running.runner)
    workers = range(job.plan.workers)
    shared = list(dict.fromkeys(t for s in scales if s is not None for t in shared_reads(s)))
    tensors = [copies.on(worker, tensor) for tensor in flat for worker in workers]
    tensors += [copies.on(0, tensor) for tensor in shared]
    needed = job.context.op_graph.ancestors(tensor.op for tensor in flat)
    fed = {
        copies.on(worker, tensor): value
        for worker in workers
        for tensor, value in feeds.values[worker].items()
        if tensor.op in needed
    }
    results = iter(running.runner.run(tensors, [], fed, _METHOD))
    values = [[next(results) for _ in workers] for _ in flat]
    assert feeds.examples is not None, "which was checked"
    return _Part(values, feeds.examples, dict(zip(shared, results, strict=True)))


def _check(running: RunningJob, flat: Sequence[Fetch], feeds: SplitFeeds) -> None:
    """Raise unless the workers' parts of a batch can be evaluated, and put together.

    Raises:
        FeedError: they cannot; says why.
    """
    job = running.job
    if feeds.examples is None:
        raise FeedError(
            f"{_METHOD} splits batches over the workers, but nothing that is fed is a batch; use "
            "session.run"
        )
    for fetch in flat:
        if fetch.tensor is None:
            raise FeedError(f"{_METHOD}: '{fetch.op}' is an operation, and has no value")
    graph = job.context.op_graph
    fed = frozenset(tensor.op for tensor in feeds.values[0])
    closure = graph.ancestors([fetch.op for fetch in flat], stop=fed)
    refuse_training(job, running.controllers.train_ops, flat, closure, _METHOD)
    if variables := written_by(job, closure - fed):
        raise FeedError(
            f"{_METHOD} changes nothing, but what is fetched writes variable "
            f"'{variables[0].name}' (a metric that gathers, say): fetch what is computed of a "
            "batch, which is put together over all batches, or use session.run"
        )
    reads = sorted(op for op in closure - fed if graph[op].kind in ITERATOR_READS)
    if reads:
        raise FeedError(
            f"{_METHOD} takes batches that are fed, but what is fetched reads an input pipeline of "
            f"the graph ('{reads[0]}'): feed '{reads[0]}:0' and the other outputs, or use "
            "session.run"
        )


def _scale(job: Job, fetch: Fetch) -> LossScale | None:
    """How a scalar goes with the examples, if it is no mean over them.

    Raises:
        FeedError: it is divided by a count of its own, which the batches have together.
    """
    assert fetch.tensor is not None, "which was checked"
    scale = job.plans.scale_of(fetch.tensor)
    if scale is None or scale.weight in (None, MEAN):
        return None
    if scale.weight != SUM:
        divisors = " and ".join(f"'{divisor.tensor}'" for divisor in scale.weight.divisors)
        raise FeedError(
            f"{_METHOD} cannot put '{fetch.tensor}' together over several batches: it is divided "
            f"by {divisors or 'their numbers of examples'}, of which each batch has its own; fetch "
            "the sum and the count, and divide what is returned"
        )
    return scale


def _together(
    job: Job,
    fetch: Fetch,
    values: Sequence[Any],
    examples: Sequence[int],
    shared: Mapping[TensorRef, Any],
) -> Any:
    """The result of one fetch.

    Args:
        values: what each worker has computed of each batch.
        examples: the numbers of examples of these.
        shared: what is the same on all workers is computed from these.
    """
    if fetch.apart:
        return values
    tensor, scale = fetch.tensor, _scale(job, fetch)
    assert tensor is not None, "which was checked"
    is_batch = (
        not tensor.op.startswith(names.REPORT) and tensor.op in job.state.worker_dependent
    ) and job.context.op_graph.spec(tensor).shape != ()
    return combine(
        values,
        examples=examples,
        is_batch=is_batch,
        parts=None if scale is None else [1.0] * len(values),
        shared=0.0 if scale is None else shared_value(scale, shared),
    )
