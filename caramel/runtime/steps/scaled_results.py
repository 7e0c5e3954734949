"""From scalars of the workers to that of the whole batch: what to fetch besides, and how to add.

A fetched scalar is the sum of the workers', each times its part of the whole batch (`Weight`). What
is the same on every worker, such as a weight decay in a sum, counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from caramel.core.facts import MEAN, SUM, LossScale, Weight
from caramel.core.names import TensorRef, tensor_in_replica
from caramel.core.plan import Plan
from caramel.modifiers.batch_weights import share
from caramel.runtime.job import PlanSource


class Scaling:
    """How fetched scalars of one plan are made one.

    Args:
        plans: knows how scalars scale with the examples.
    """

    def __init__(self, plan: Plan, plans: PlanSource) -> None:
        self._plan, self._plans = plan, plans
        self._weights = set(plan.job.weights)

    def besides(self, tensors: Iterable[TensorRef]) -> list[TensorRef]:
        """What has to be fetched besides some tensors of the single-device graph."""
        found: dict[TensorRef, None] = {}
        for tensor in tensors:
            scale = self._scale(tensor)
            if scale is None:
                continue
            found |= dict.fromkeys(tensor_in_replica(0, each) for each in shared_reads(scale))
            if scale.weight not in (None, MEAN, SUM):
                found |= dict.fromkeys(self._shares(scale.weight))
        return list(found)

    def parts(
        self, tensor: TensorRef, fetched: Mapping[TensorRef, Any]
    ) -> tuple[Sequence[float] | None, float]:
        """By what each worker's scalar is multiplied, and what of it is the same on all.

        None if it counts in proportion to the worker's number of examples.
        """
        scale = self._scale(tensor)
        if scale is None or scale.weight in (None, MEAN):
            return None, 0.0
        here = {each: fetched[tensor_in_replica(0, each)] for each in shared_reads(scale)}
        shared = shared_value(scale, here)
        if scale.weight == SUM:
            return [1.0] * self._plan.workers, shared
        shares = [float(fetched[each]) for each in self._shares(scale.weight)]
        return [each / self._plan.workers for each in shares], shared

    def _scale(self, tensor: TensorRef) -> LossScale | None:
        if self._plan.workers == 1:
            return None
        scale = self._plans.scale_of(tensor)
        if scale is None or scale.weight in (None, MEAN, SUM) or scale.weight in self._weights:
            return scale
        return None  # the plan does not have it

    def _shares(self, weight: Weight | None) -> list[TensorRef]:
        assert weight is not None
        return [share(worker, weight) for worker in range(self._plan.workers)]


def shared_reads(scale: LossScale) -> list[TensorRef]:
    """From which tensors that is computed what is the same on every worker."""
    reads = (tensor for term in scale.shared for tensor in (*term.factors, *term.divisors))
    return list(dict.fromkeys(reads))


def shared_value(scale: LossScale, values: Mapping[TensorRef, Any]) -> float:
    """What is the same on every worker.

    Args:
        values: of `shared_reads`.
    """

    def product(tensors: Sequence[TensorRef]) -> float:
        return float(np.prod([np.float64(values[tensor]) for tensor in tensors]))

    return sum((t.sign * product(t.factors) / product(t.divisors) for t in scale.shared), start=0.0)
