"""Evaluates batches on all workers, without training: each worker computes its part of a batch that
is fed, or the next batch of an input pipeline.

What is returned is that of all examples of all batches, however many each batch has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from caramel.core import names
from caramel.core.errors import FeedError
from caramel.core.facts import MEAN, SUM, LossScale
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.op_types import ITERATOR_READS
from caramel.runtime.evaluation import readable, refuse_training, written_by
from caramel.runtime.job import Job
from caramel.runtime.pipeline_elements import Element, PipelineReads
from caramel.runtime.running_job import RunningJob
from caramel.runtime.steps.combine_results import combine
from caramel.runtime.steps.feeds import SplitFeeds, single_feeds, split_feeds
from caramel.runtime.steps.scaled_results import shared_reads, shared_value
from caramel.runtime.steps.step_result import Fetch
from caramel.runtime.steps.user_feeds import feeds_of, whole_feeds_of
from caramel.runtime.steps.user_fetches import UserFetches
from caramel.runtime.work import Work

_METHOD = "session.evaluate"


def evaluate_batches(work: Work, batches: Any, fetches: Any) -> Any:
    """What is fetched of all examples; see `caramel.runtime.session.Session.evaluate`.

    Args:
        work: does what is asked for; each batch by itself is done again after a loss.
        batches: what is fed for each batch, or for the only one, or while pipelines are read.
        fetches: tensors or names, or a structure of them; None for the loss.
    """
    parts: list[_Part] = []
    for turn in _turns(work, batches, fetches):
        evaluate = partial(_evaluate, turn=turn, fetches=fetches, begins=not parts)
        parts += work.read(evaluate)
    job = work.running.job
    fetched = _fetched(work.running, fetches)
    # A worker without an example has repeated that of another one.
    counting = [(p, w) for p in parts for w, count in enumerate(p.examples) if count]
    if not counting:
        raise FeedError(f"{_METHOD} was given no batch")
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


_Turn = Callable[[RunningJob], Sequence[SplitFeeds]]
"""What workers are given to compute, one after the other; it depends on how many there are."""


def _turns(work: Work, batches: Any, fetches: Any) -> Iterator[_Turn]:
    """All that is evaluated."""
    running = work.running
    if batches is None or isinstance(batches, Mapping):
        feeds = feeds_of(running.job, batches)
        fed = frozenset(single.tensor.op for feed in feeds for single in single_feeds(feed))
        flat = _fetched(running, fetches).flat
        wanted = [fetch.tensor for fetch in flat if fetch.tensor is not None]
        reads = PipelineReads.of(running.job.context.op_graph, wanted, fed)
        if reads is not None:
            given = fed.union(tensor.op for tensor in reads.tensors)
            _check_reads(running.job, flat, given)
            _check(running, flat, given)
            yield from _turns_of_pipelines(work, reads, whole_feeds_of(running.job, batches))
            return
    for feed_dict in _several(batches):
        yield partial(_split, feed_dict=feed_dict)


def _split(running: RunningJob, *, feed_dict: Any) -> Sequence[SplitFeeds]:
    """A batch that is fed, each worker a part of it."""
    job = running.job
    return [split_feeds(feeds_of(job, feed_dict), job.plan.workers, repeats=True)]


def _turns_of_pipelines(
    work: Work, reads: PipelineReads, whole: Mapping[TensorRef, Any]
) -> Iterator[_Turn]:
    """All elements of pipelines.

    Args:
        whole: what is fed with each of them.
    """
    elements = reads.elements(work, whole)
    count = 0
    while some := list(islice(elements, work.running.job.plan.workers)):
        count += len(some)
        yield partial(_one_each, elements=some, whole=whole)
    if not count:
        raise FeedError(
            f"the input pipeline that '{reads.readers[0]}' reads is at its end: run the "
            f"initializer of its iterator by session.run before {_METHOD}"
        )


def _one_each(
    running: RunningJob, *, elements: Sequence[Element], whole: Mapping[TensorRef, Any]
) -> Sequence[SplitFeeds]:
    """Elements of pipelines, one for each worker as often as need be."""
    workers = running.job.plan.workers
    found = []
    for begin in range(0, len(elements), workers):
        some = elements[begin : begin + workers]
        # Workers for which there is none repeat another one's, which does not count.
        idle = [Element(some[0].values, 0)] * (workers - len(some))
        given = [*some, *idle]
        values = tuple({**whole, **element.values} for element in given)
        found.append(SplitFeeds(values, tuple(element.examples for element in given)))
    return found


def _several(batches: Any) -> Iterator[Any]:
    """What is fed for each batch."""
    if batches is None or isinstance(batches, Mapping):
        yield batches or {}
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


def _evaluate(running: RunningJob, *, turn: _Turn, fetches: Any, begins: bool) -> Sequence[_Part]:
    """Let the workers compute what is their turn.

    Args:
        begins: whether it is the first one, before which steps may have been done.
    """
    fetched = _fetched(running, fetches)
    if begins:
        running.worker_copies.expire()
    return [_computed(running, fetched, feeds) for feeds in turn(running)]


def _computed(running: RunningJob, fetched: UserFetches, feeds: SplitFeeds) -> _Part:
    """Let each worker compute what it is fed."""
    job, state = running.job, running.state
    running.missing_feeds.check(job.context, fetched.ops, feeds.values[0])
    given = frozenset(tensor.op for tensor in feeds.values[0])
    _check_reads(job, fetched.flat, given)
    if feeds.examples is None:
        raise FeedError(
            f"{_METHOD} splits batches over the workers, but nothing that is fed is a batch; use "
            "session.run"
        )
    _check(running, fetched.flat, given)
    scales = [_scale(job, fetch) for fetch in fetched.flat]
    running.settle()
    state.refresh()
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
    return _Part(values, feeds.examples, dict(zip(shared, results, strict=True)))


def _check(running: RunningJob, flat: Sequence[Fetch], fed: frozenset[str]) -> None:
    """Raise unless what is fetched can be evaluated by all workers.

    Args:
        fed: ops whose outputs are fed.

    Raises:
        FeedError: they cannot; says why.
    """
    job = running.job
    for fetch in flat:
        if fetch.tensor is None:
            raise FeedError(f"{_METHOD}: '{fetch.op}' is an operation, and has no value")
    graph = job.context.op_graph
    closure = graph.ancestors([fetch.op for fetch in flat], stop=fed)
    refuse_training(job, running.controllers.train_ops, flat, closure, _METHOD)
    if variables := written_by(job, closure - fed):
        raise FeedError(
            f"{_METHOD} changes nothing, but what is fetched writes variable "
            f"'{variables[0].name}' (a metric that gathers, say): fetch what is computed of a "
            "batch, which is put together over all batches, or use session.run"
        )


def _check_reads(job: Job, flat: Sequence[Fetch], fed: frozenset[str]) -> None:
    """Raise if workers would take elements of pipelines.

    Args:
        fed: ops whose outputs are fed.

    Raises:
        FeedError: they would.
    """
    graph = job.context.op_graph
    closure = graph.ancestors([fetch.op for fetch in flat], stop=fed)
    if reads := sorted(op for op in closure - fed if _reads_pipeline(graph, op)):
        raise FeedError(
            f"{_METHOD} takes batches that are fed, or reads input pipelines of the graph where "
            "get_next() stands by itself and nothing but its values is needed, but what is fetched "
            f"reads one at '{reads[0]}': give no list of batches, or use session.run"
        )


def _reads_pipeline(graph: OpGraph, op: str) -> bool:
    """Whether an op takes elements of a pipeline, or lets others do so."""
    waits = any(graph[other].kind in ITERATOR_READS for other in graph[op].control_inputs)
    return waits or "Iterator" in graph[op].kind


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
