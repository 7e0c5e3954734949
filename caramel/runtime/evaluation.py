"""Runs part of the graph once, without training.

It runs on the source of the variables, which is the evaluation copy if there is one, else worker 0;
what is wanted of each worker, on copies that read what the worker has for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from caramel.core import names
from caramel.core.errors import FeedError
from caramel.core.facts import Variable
from caramel.core.names import TensorRef
from caramel.core.op_types import ITERATOR_READS
from caramel.core.variable_access import handle_of
from caramel.modifiers import variable_ops
from caramel.runtime.job import Job
from caramel.runtime.running_job import RunningJob
from caramel.runtime.steps.exchangeable import check_own
from caramel.runtime.steps.step_result import Fetch
from caramel.runtime.steps.user_feeds import whole_feeds_of
from caramel.runtime.steps.user_fetches import UserFetches
from caramel.runtime.worker_copies import Copies

_OPENS = "MakeIterator"


@dataclass(frozen=True, slots=True)
class Effects:
    """What is another one after a call than before it.

    Attributes:
        writes: whether variables may be.
        prepared: ops that were run on all workers to open pipelines or to fill tables.
        opened: iterators that begin anew.
        reads: ops by which elements of pipelines were taken.
    """

    writes: bool
    prepared: frozenset[str]
    opened: frozenset[str]
    reads: tuple[str, ...]


def effects_of(job: Job, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Effects:
    """What `evaluate` does besides returning something."""
    graph, feeds = job.context.op_graph, whole_feeds_of(job, feed_dict)
    fetched = UserFetches(job, fetches).ops
    closure = graph.ancestors(fetched, stop=frozenset(tensor.op for tensor in feeds))
    made = {handle_of(graph, graph[op].inputs[1]) for op in closure if graph[op].kind == _OPENS}
    reads = sorted(op for op in closure if graph[op].kind in ITERATOR_READS)
    prepared = frozenset(op for op in fetched if _prepares_workers(job, op))
    return Effects(bool(written_by(job, closure)), prepared, frozenset(made), tuple(reads))


def evaluate(running: RunningJob, fetches: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
    """What is fetched; see `caramel.runtime.session.Session.run`.

    Args:
        fetches: tensors, operations or names, or a structure of them.
        feed_dict: values by tensor or name, none of them split.
    """
    job, state = running.job, running.state
    fetched = UserFetches(job, fetches)
    flat, feeds = fetched.flat, whole_feeds_of(job, feed_dict)
    if not flat:
        return fetches
    running.missing_feeds.check(job.context, fetched.ops, feeds)
    closure = job.context.op_graph.ancestors(
        fetched.ops, stop=frozenset(tensor.op for tensor in feeds)
    )
    refuse_training(job, running.controllers.train_ops, flat, closure, "session.run")
    own = [fetch.tensor for fetch in flat if fetch.own and fetch.tensor is not None]
    _check_own(job, own, feeds)
    running.settle()
    state.refresh()
    prefix = variable_ops.source_prefix(job.plan)
    apart = _Apart.of(running, own)
    places = [
        []
        if fetch.tensor is None
        else apart.places(fetch.tensor)
        if fetch.own
        else [_readable(job, prefix, fetch.tensor)]
        for fetch in flat
    ]
    targets = [names.in_copy(prefix, fetch.op) for fetch in flat if fetch.tensor is None]
    fed = {names.tensor_in_copy(prefix, t): value for t, value in feeds.items()}
    fed |= apart.fed(feeds)
    written = written_by(job, closure)
    with state.torn_by_failures() if written else nullcontext():
        tensors = [tensor for each in places for tensor in each]
        results = iter(running.runner.run(tensors, targets, fed, "session.run"))
        _repeat_on_workers(running, fetched.ops, feeds)
        state.broadcast(written)
    values = [[next(results) for _ in each] for each in places]
    return fetched.packed(
        [
            each if fetch.own else next(iter(each), None)
            for fetch, each in zip(flat, values, strict=True)
        ]
    )


@dataclass(frozen=True, slots=True)
class _Apart:
    """What is computed on each worker, of what that has for itself.

    Attributes:
        job: whose tensors they are.
        tensors: of the user's graph.
        copies: where workers compute them; None if there are none.
    """

    job: Job
    tensors: Sequence[TensorRef]
    copies: Copies | None

    @classmethod
    def of(cls, running: RunningJob, tensors: Sequence[TensorRef]) -> _Apart:
        """Those tensors; what computes them is made if it is not there.

        Raises:
            WorkerLostError, StepTimeoutError, tf.errors.OpError: as `Runner.extend`.
        """
        job = running.job
        if not tensors:
            return cls(job, (), None)
        own = [readable(job, tensor) for tensor in tensors]
        ops = list(dict.fromkeys(tensor.op for tensor in own))
        return cls(job, own, running.worker_copies.of(job, running.runner, ops, apart=True))

    def places(self, tensor: TensorRef) -> list[TensorRef]:
        """Where each worker has a tensor."""
        assert self.copies is not None, "they are made of all tensors that are asked for"
        own = readable(self.job, tensor)
        return [self.copies.on(worker, own) for worker in range(self.job.plan.workers)]

    def fed(self, feeds: Mapping[TensorRef, np.ndarray]) -> dict[TensorRef, np.ndarray]:
        """What is fed to the workers' copies: to each all of it, as far as it reads that."""
        needed = self.job.context.op_graph.ancestors(tensor.op for tensor in self.tensors)
        return {
            place: value
            for tensor, value in feeds.items()
            if tensor.op in needed
            for place in self.places(tensor)
        }


def _check_own(job: Job, own: Sequence[TensorRef], feeds: Mapping[TensorRef, np.ndarray]) -> None:
    """Raise unless workers can compute some tensors, each for itself.

    Raises:
        FeedError: they cannot; says why.
    """
    graph, fed = job.context.op_graph, frozenset(tensor.op for tensor in feeds)
    for tensor in own:
        check_own(job, job.plan, tensor)
        closure = graph.ancestors([tensor.op], stop=fed) - fed
        if variables := written_by(job, closure):
            raise FeedError(
                f"per_worker: '{tensor}' writes variable '{variables[0].name}', which session.run "
                "does once for all workers; fetch it without per_worker, or with session.step"
            )
        reads = sorted(op for op in closure if graph[op].kind in ITERATOR_READS)
        if reads:
            raise FeedError(
                f"per_worker: '{tensor}' reads an input pipeline of the graph ('{reads[0]}'), of "
                "which session.run takes elements once for all workers; fetch it with "
                f"session.step, or feed '{reads[0]}:0' and the other outputs"
            )


def refuse_training(
    job: Job,
    train_ops: Iterable[str],
    flat: Sequence[Fetch],
    closure: set[str],
    method: str,
) -> None:
    """Raise if a fetch belongs to training: it would be that of one worker, or of none.

    Args:
        method: what was asked for it.
    """
    for train_op in train_ops:
        if train_op in closure:
            raise FeedError(
                f"{method} would run the train op '{train_op}' on one worker only; use session.step"
            )
    consumers = {name for g in job.plan.job.gradients for name in g.consumers}
    for fetch in flat:
        name = names.in_copy(variable_ops.source_prefix(job.plan), fetch.op)
        of_training = name not in job.graph or (
            job.plan.is_distributed and closure.intersection(consumers)
        )
        if of_training:
            raise FeedError(
                f"'{fetch.op}' is computed from gradients, which only a training step has; fetch "
                "it with session.step"
            )


def readable(job: Job, tensor: TensorRef) -> TensorRef:
    """What is fetched; in place of a variable's handle its value."""
    variable = job.plan.job.variable_of_handle.get(tensor.op)
    return tensor if variable is None else TensorRef(variable.read)


def _readable(job: Job, prefix: str, tensor: TensorRef) -> TensorRef:
    """A tensor in a copy; in place of a variable's handle its value."""
    variable = job.plan.job.variable_of_handle.get(tensor.op)
    if variable is None:
        return names.tensor_in_copy(prefix, tensor)
    return variable_ops.source_value(variable)


def written_by(job: Job, closure: Iterable[str]) -> list[Variable]:
    """The variables that ops write."""
    writes = job.access.writes
    written = {name for op in closure for name in writes.get(op, ())}
    return [variable for variable in job.plan.job.variables if variable.name in written]


def _repeat_on_workers(
    running: RunningJob, fetched: Iterable[str], feeds: Mapping[TensorRef, np.ndarray]
) -> None:
    """Do to every worker's pipelines and tables what was done to the source's."""
    job = running.job
    source = variable_ops.source_prefix(job.plan)
    replicas = (names.replica_prefix(worker) for worker in range(job.plan.workers))
    others = [prefix for prefix in replicas if prefix != source]
    ops = [op for op in fetched if _prepares_workers(job, op)]
    targets = [names.in_copy(prefix, op) for op in ops for prefix in others]
    if targets:
        fed = {
            names.tensor_in_copy(prefix, tensor): value
            for prefix in others
            for tensor, value in feeds.items()
        }
        running.runner.run([], targets, fed, "session.run on all workers")


def _prepares_workers(job: Job, op: str) -> bool:
    """Whether an op starts an input pipeline of the step, or fills a table."""
    graph = job.context.op_graph
    tables = set(job.context.job.table_initializers)
    iterators = set(job.pipelines.iterators)
    for name in graph.ancestors([op]):
        if name in tables:
            return True
        if graph[name].kind == _OPENS:
            return handle_of(graph, graph[name].inputs[1]) in iterators
    return False
