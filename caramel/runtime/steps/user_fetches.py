"""What a user fetches: tensors, operations or names in any structure, and back into that."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from caramel.capture.structures import Fetched, kind_of, tensors_of, value_of, value_of_workers
from caramel.core.errors import FeedError
from caramel.core.names import TensorRef
from caramel.runtime.job import Job
from caramel.runtime.steps.exchangeable import check_fetched, check_object
from caramel.runtime.steps.step_result import Fetch


class UserFetches:
    """A structure of what is fetched.

    Args:
        job: whose graph has it.
        structure: tensors, operations or names, or a structure of them.

    Attributes:
        flat: each tensor or op in it, in order.

    Raises:
        FeedError: something in it cannot be fetched.
    """

    def __init__(self, job: Job, structure: Any) -> None:
        self._fetched = Fetched.of(structure)
        self.flat: list[Fetch] = []
        for leaf, is_own in zip(self._fetched.leaves, self._fetched.apart, strict=True):
            apart = is_own or kind_of(leaf) is not None
            own = [_fetch(job, tensor, is_own=is_own) for tensor in tensors_of(leaf)]
            self.flat += [dataclasses.replace(fetch, apart=apart, own=is_own) for fetch in own]

    @property
    def ops(self) -> list[str]:
        """The op of each."""
        return [fetch.op for fetch in self.flat]

    def check_together(self, method: str) -> None:
        """Raise if workers' own values are wanted, where no worker has any.

        Args:
            method: what is asked for them.

        Raises:
            FeedError: they are.
        """
        if any(self._fetched.apart):
            raise FeedError(
                f"{method} has no values of each worker: caramel.per_worker is for session.step "
                "and session.run"
            )

    def packed(self, values: Sequence[Any]) -> Any:
        """The structure with values in it.

        Args:
            values: for each of `flat` its value, or those of all workers if they are wanted; None
                for an op.
        """
        leaves = zip(self._fetched.by_leaf(values), self._fetched.apart, strict=True)
        return self._fetched.pack(
            [
                _of_each_worker(leaf, own)
                if is_own
                else value_of(kind, own)
                if (kind := kind_of(leaf))
                else own[0]
                for (leaf, own), is_own in leaves
            ]
        )

    def packed_of_workers(
        self, values: Sequence[Any], examples: Sequence[int] | None, job: Job
    ) -> Any:
        """The structure with what a step returned: of composites the rows of all workers.

        Args:
            values: for each of `flat` its result; None for an op.
            examples: the workers' numbers of examples; None if unknown.
            job: says whose rows are the examples of its worker.
        """
        results: list[Any] = []
        leaves = zip(self._fetched.by_leaf(values), self._fetched.apart, strict=True)
        for (leaf, own), is_own in leaves:
            kind = kind_of(leaf)
            if is_own:
                results.append(_of_each_worker(leaf, own))
            elif kind is None:
                results.append(own[0])
            else:
                ops = [job.context.tensor(tensor, "fetches").op for tensor in tensors_of(leaf)]
                has_rows = not job.state.worker_dependent.isdisjoint(ops)
                results.append(value_of_workers(kind, own, examples if has_rows else None))
        return self._fetched.pack(results)


def _of_each_worker(leaf: Any, values: Sequence[Any]) -> tuple[Any, ...]:
    """What each worker has of a leaf.

    Args:
        values: for each of its tensors those of all workers.
    """
    kind = kind_of(leaf)
    if kind is None:
        return tuple(values[0])
    return tuple(value_of(kind, each) for each in zip(*values, strict=True))


def _fetch(job: Job, given: Any, *, is_own: bool) -> Fetch:
    check_object(given)
    op, index = job.context.tensor_or_operation(given, "fetches")
    is_operation = isinstance(given, tf.Operation) or (
        index is None and not job.context.op_graph[op].outputs
    )
    is_run = is_operation or (index is None and isinstance(given, str))
    tensor = None if is_run else TensorRef(op, index or 0)
    # Of a gradient that is aggregated in parts, what these are together.
    whole = None
    if tensor is not None and not is_own:
        whole = job.context.row_splits.aggregated.get(tensor)
    if whole is not None:
        op, tensor = whole.op, whole
    check_fetched(job, op, None if op in job.plan.job.variable_of_handle else tensor)
    if is_own and tensor is None:
        has_value = bool(job.context.op_graph[op].outputs)
        instead = f"; give a tensor, such as '{op}:0'" if has_value else ""
        raise FeedError(f"per_worker: '{op}' is an operation, and has no value{instead}")
    return Fetch(op, tensor)
