"""Runs the training steps of one plan: what they fetch and feed, and what of them is done later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from caramel.core import names
from caramel.core.errors import CaramelError, FeedError
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.modifiers.aggregation.results import aggregated_tensors
from caramel.modifiers.batch_weights import counts, share, uneven
from caramel.modifiers.defer import step_ops
from caramel.modifiers.serving.pulls import first_pulls
from caramel.native.session import NoSuchOpError
from caramel.runtime.execution.calls import DEFAULT, CallOptions
from caramel.runtime.execution.runner import Runner
from caramel.runtime.execution.variant_runner import VariantRunner
from caramel.runtime.job import Job, Variant
from caramel.runtime.steps.combine_results import combine
from caramel.runtime.steps.deferred import Pending
from caramel.runtime.steps.deferred_fetches import LateFetches
from caramel.runtime.steps.exchangeable import check_own
from caramel.runtime.steps.factor_comparison import FactorComparison
from caramel.runtime.steps.feeds import SplitFeeds
from caramel.runtime.steps.marks import StepMarks
from caramel.runtime.steps.scaled_results import Scaling
from caramel.runtime.steps.step_result import Fetch, StepResult


def _ordered(graph: OpGraph, plan: Plan) -> OpGraph:
    """The graph with the edges by which the plan orders what a step reads and writes."""
    return graph.with_edges((edge.before, edge.after) for edge in plan.consequences.orders)


class PlanExecutor:
    """Runs the training steps of one variant.

    Nothing is pending when it is made; `flush` before another executor or anything else looks at
    variables.

    Args:
        variant: says which plan, and where its nodes are.
        job: the distributed graph and what is known of it.
        runner: runs parts of the whole graph.
    """

    def __init__(self, variant: Variant, job: Job, runner: Runner) -> None:
        plan = variant.plan
        self.name = variant.name
        self.plan = plan
        self._job, self._plan = job, plan
        self._runner = VariantRunner(runner, variant.number)
        self._pending = Pending(self._runner, plan)
        self._late = LateFetches(_ordered(job.context.op_graph, plan), plan, job.access)
        self._aggregated = [aggregated_tensors(plan, worker) for worker in range(plan.workers)]
        self._targets = step_ops(plan)
        self._first_pulls = first_pulls(plan)
        self._calls_before = -1  # the runner's, after the last step
        self._absent = frozenset(plan.consequences.serving.absent)
        self._comparison = FactorComparison(plan)
        self._steps = 0
        self._counted = plan.job.examples is not None and plan.workers > 1 and plan.counts_examples
        self._scaling = Scaling(plan, job.plans)

    @property
    def preparation(self) -> list[str]:
        """Ops of the whole graph that `begin` runs; others may run beside them."""
        return self._runner.in_whole_graph(self._pending.preparation)

    def begin(self) -> None:
        """Prepare the first step."""
        self._runner.extend()
        self._pending.begin()

    @property
    def marks(self) -> StepMarks:
        """How far the call that is under way has come."""
        return self._pending.marks

    @property
    def is_pending(self) -> bool:
        """Whether anything of the last step is left to be done."""
        return self._pending.is_pending

    def did_all(self, options: CallOptions) -> bool:
        """Whether all that it has done left its marks.

        Args:
            options: how the workers are asked.

        Raises:
            WorkerLostError, tf.errors.OpError: the workers cannot be asked.
        """
        return self._pending.marks.are_complete(options)

    @property
    def is_proven(self) -> bool:
        """Whether all that a step does has ended once, also what it leaves to be done later."""
        return self._steps > 0 and (self._pending.parts_done > 0 or not self._pending.defers)

    def flush(self, options: CallOptions = DEFAULT) -> None:
        """Do what is pending of the last step."""
        self._pending.flush("the last step's deferred updates", options)

    def abandon(self) -> None:
        """The last steps do not count: drop what is pending of them."""
        self._pending.abandon()

    def free(self) -> None:
        """Let go of what the executor keeps on the workers; it can be used again."""
        self.flush()
        self._pending.free()

    def close(self) -> None:
        """End the executor's threads."""
        self._pending.close()

    def serves(self, fetches: Iterable[Fetch]) -> bool:
        """Whether a step has all fetches, each as if nothing were deferred."""
        return not any(self._late.is_late(*self._read(fetch)) for fetch in fetches)

    def _read(self, fetch: Fetch) -> tuple[str, TensorRef | None]:
        """What is fetched; in place of a variable's handle the op that reads it."""
        variable = self._plan.job.variable_of_handle.get(fetch.op)
        if variable is None or fetch.tensor is None:
            return fetch.op, fetch.tensor
        return variable.read, TensorRef(variable.read)

    def step(
        self, fetches: Sequence[Fetch], feeds: SplitFeeds, options: CallOptions = DEFAULT
    ) -> StepResult:
        """One training step with fetches that the executor serves.

        Args:
            options: how its calls are made.

        Raises:
            WorkerLostError: a worker was lost.
            tf.errors.OpError: an op has failed.
        """
        is_first = self._pull_ahead(options)
        compiled, parts = self._runner.compiled, self._pending.parts_done
        is_compared = self._comparison.is_due(self._steps + 1, feeds)
        besides = self._scaling.besides(f.tensor for f in fetches if f.tensor and not f.apart)
        values, examples, checksums, more = self._run_step(
            fetches, besides, feeds, options, is_compared=is_compared
        )
        known = dict(zip(besides, more, strict=True))
        self._steps += 1
        results = [
            column
            if fetch.apart
            else None
            if fetch.tensor is None
            else self._combine(fetch.tensor, column, examples, known)
            for fetch, column in zip(fetches, values, strict=True)
        ]
        did_one_part = self._pending.parts_done == parts + 1 or not self._pending.defers
        is_usual = did_one_part and self._runner.compiled == compiled
        is_usual = is_usual and not is_compared and not is_first
        self._calls_before = self._runner.calls
        unlike = self._comparison.first_unlike(checksums)
        return StepResult(results, is_usual, unlike, examples)

    def _pull_ahead(self, options: CallOptions) -> bool:
        """Let workers have what is pulled ahead; whether anything had to be done for that.

        They have it from the last step, if no other call was made since: that may have written
        variables.
        """
        if not self._first_pulls or self._runner.calls == self._calls_before:
            return False
        self._runner.run([], self._first_pulls, {}, "sending variables to the workers", options)
        return True

    def _run_step(
        self,
        flat: Sequence[Fetch],
        besides: Sequence[TensorRef],
        feeds: SplitFeeds,
        options: CallOptions,
        *,
        is_compared: bool,
    ) -> tuple[list[list[Any]], Sequence[int] | None, Sequence[np.ndarray], Sequence[Any]]:
        """For each fetch its value on every worker, the workers' numbers of examples, if asked for
        checksums of what each worker has computed from factors, and the tensors `besides`."""
        plan, workers = self._plan, range(self._plan.workers)
        fed = {
            names.tensor_in_replica(worker, tensor): value
            for worker in workers
            for tensor, value in feeds.values[worker].items()
        }
        fed |= self._share_feeds(feeds.examples)
        once = self._plan.consequences.serving.done_once
        fed |= {  # what is done once is fed what all workers are
            names.tensor_in_copy(names.ONCE, tensor): value
            for tensor, value in feeds.values[0].items()
            if tensor.op in once
        }
        tensors = [
            self._own_on(worker, fetch.tensor)
            if fetch.own
            else self._tensor_on(worker, fetch.tensor)
            for fetch in flat
            for worker in workers
            if fetch.tensor is not None
        ]
        tensors += besides
        if self._counted:
            tensors.append(counts(0))
        extra = [f.op for f in flat if f.tensor is None and not self._late.is_of_step(f.op)]
        targets = [
            *self._targets,
            *(self._op_on(worker, op) for op in extra for worker in workers),
        ]
        if is_compared:
            tensors += [names.factor_checksums(worker) for worker in workers]
        try:
            results = self._pending.step(tensors, targets, fed, "a training step", options)
        except NoSuchOpError as error:  # nothing has run
            raise self._no_part_of_a_step(error) from None
        checksums = [results.pop() for _ in workers][::-1] if is_compared else []
        examples: Sequence[int] | None = feeds.examples
        if self._counted:
            examples = [int(count) for count in results.pop()]
        elif examples is None and self._job.pipelines.fixed_examples is not None:
            examples = [self._job.pipelines.fixed_examples] * plan.workers
        more = results[len(results) - len(besides) :]
        remaining = iter(results)
        values = [
            [next(remaining) for _ in workers] if fetch.tensor is not None else [] for fetch in flat
        ]
        return values, examples, checksums, more

    def _no_part_of_a_step(self, error: NoSuchOpError) -> CaramelError:
        """What to tell of an op that not all replicas have."""
        op = names.without_prefix(names.without_variant(error.op))
        if op not in self._job.context.op_graph:
            return error
        if op in self._absent and not self._plan.job.gradients:
            return FeedError(
                f"'{op}' is no part of a step of agents that only infer (mode='inference'): nobody "
                "trains there; use session.run, or another model"
            )
        if op in self._absent:
            return FeedError(
                f"'{op}' is no part of a training step: with parameter servers nobody has all that "
                "it is computed from, since workers compute from examples, and servers from "
                "aggregated gradients; fetch what it reads"
            )
        return FeedError(
            f"'{op}' is no part of a training step: it belongs to initial values, which one worker "
            "computes for all; use session.run"
        )

    def _share_feeds(self, examples: Sequence[int] | None) -> dict[TensorRef, Any]:
        """How much each worker's part counts; nothing is fed while all count alike."""
        if not self._plan.counts_examples or examples is None or len(set(examples)) == 1:
            return {}
        total = sum(examples)
        fed: dict[TensorRef, Any] = {}
        for worker, count in enumerate(examples):
            fed[share(worker)] = np.array(count * self._plan.workers / total)
            fed[uneven(worker)] = np.array(True)
        return fed

    def _combine(
        self,
        tensor: TensorRef,
        values: Sequence[Any],
        examples: Sequence[int] | None,
        known: Mapping[TensorRef, Any],
    ) -> Any:
        parts, shared = self._scaling.parts(tensor, known)
        spec = self._job.context.op_graph.spec(tensor)
        return combine(
            values,
            examples=examples,
            is_batch=not tensor.op.startswith(names.REPORT)
            and tensor.op in self._job.state.worker_dependent
            and tensor not in self._aggregated[0]
            and spec.shape != (),
            parts=parts,
            shared=shared,
        )

    def _tensor_on(self, worker: int, tensor: TensorRef) -> TensorRef:
        """Where a tensor of the single-device graph is found; in place of a handle its value."""
        if replaced := self._aggregated[worker].get(tensor):
            return replaced
        variable = self._plan.job.variable_of_handle.get(tensor.op)
        if variable is not None:
            return TensorRef(self._op_on(worker, variable.read))
        return TensorRef(self._op_on(worker, tensor.op), tensor.index)

    def _own_on(self, worker: int, tensor: TensorRef) -> TensorRef:
        """Where a worker's own value of a tensor is found, which nothing was made of yet.

        Raises:
            FeedError: workers have none.
        """
        check_own(self._job, self._plan, tensor)
        variable = self._plan.job.variable_of_handle.get(tensor.op)
        op = tensor.op if variable is None else variable.read
        return names.tensor_in_replica(worker, TensorRef(op, tensor.index))

    def _op_on(self, worker: int, op: str) -> str:
        """Where an op of the single-device graph is: in the replica, or where it is done once."""
        if op in self._absent and op in self._plan.consequences.serving.done_once:
            return names.in_copy(names.ONCE, op)
        return names.in_replica(worker, op)
