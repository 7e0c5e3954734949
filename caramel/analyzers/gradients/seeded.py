"""Raw gradients among the tensors that are linear in the seed of differentiation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from caramel.analyzers.gradients.roles import ROWS
from caramel.analyzers.gradients.search import Step
from caramel.analyzers.gradients.seeds import not_linear, regions_by_seeds
from caramel.analyzers.gradients.wider import WiderSearch
from caramel.core.names import TensorRef


class SeededSearch(WiderSearch):
    """Finds the cut behind what `seeds` says is differentiation.

    Args:
        is_wrong: whether a tensor is known to be no sum over the examples.
    """

    def __init__(self, step: Step, is_wrong: Callable[[TensorRef], bool]) -> None:
        regions = regions_by_seeds(step.graph, step.regions)
        super().__init__(replace(step, regions=regions))
        self._is_wrong = is_wrong
        self._culprits = not_linear(step.graph, regions)

    def _accepts(self, tensor: TensorRef, role: str) -> bool:
        return role == ROWS or not (tensor.op in self._culprits or self._is_wrong(tensor))

    def _obstacle(self, tensor: TensorRef) -> str | None:
        return self._culprits.get(tensor.op)
