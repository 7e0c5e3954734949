"""Do all workers compute the same bits from the same factors? Compared now and then.

Where factors are sent, every worker multiplies them by itself, and no bytes of the product cross.
If a processor computes other bits, replicas drift apart without any error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.runtime.steps.feeds import SplitFeeds

COMPARED_EVERY = 1000
"""Steps; the first ones, at first each second one and then ever less often, are compared, too."""

_UNSURE_STEPS = 64  # in which gradients that are 0 are compared again


@dataclass(frozen=True, slots=True)
class Unlike:
    """A worker that computes a gradient from the same factors with other bits than worker 0."""

    worker: int
    parameter: str


class FactorComparison:
    """In which steps of a plan checksums are compared, and what they show.

    Args:
        plan: says which gradients are computed from factors.
    """

    def __init__(self, plan: Plan) -> None:
        self._parameters = [group.members[0] for group in plan.factored]
        self._seen_shapes: set[frozenset[tuple[TensorRef, tuple[int, ...]]]] = set()
        self._is_unsure = False  # a gradient was 0 when it was compared

    def is_due(self, step: int, feeds: SplitFeeds) -> bool:
        """Whether a step compares the bits of what every worker computes by itself.

        Args:
            step: its number among those of the plan, from 1.
            feeds: what it is fed.
        """
        if not self._parameters:
            return False
        # Kernels choose how to compute by shapes and sizes.
        shapes = frozenset(
            (tensor, np.shape(value)) for own in feeds.values for tensor, value in own.items()
        )
        is_new = shapes not in self._seen_shapes
        self._seen_shapes.add(shapes)
        is_regular = step & (step - 1) == 0 or step % COMPARED_EVERY == 0
        return is_new or is_regular or (self._is_unsure and step <= _UNSURE_STEPS)

    def first_unlike(self, checksums: Sequence[np.ndarray]) -> Unlike | None:
        """The first worker with other checksums than worker 0.

        Args:
            checksums: of each worker one for each gradient; empty if they were not compared.
        """
        self._is_unsure = any(not np.all(own) for own in checksums)
        for worker, own in enumerate(checksums):
            for parameter, number, wanted in zip(self._parameters, own, checksums[0], strict=True):
                if number != wanted:
                    return Unlike(worker, parameter)
        return None
