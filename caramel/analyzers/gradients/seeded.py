"""Raw gradients among the tensors that are linear in the seed of differentiation."""

from __future__ import annotations

from collections.abc import Callable

from caramel.analyzers.gradients.regions import Regions
from caramel.analyzers.gradients.search import ROWS
from caramel.analyzers.gradients.seeds import not_linear, regions_by_seeds
from caramel.analyzers.gradients.wider import WiderSearch
from caramel.core.facts import LoopFrames, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef


class SeededSearch(WiderSearch):
    """Finds the cut behind what `caramel.analyzers.gradients.seeds` says is differentiation.

    Args:
        is_wrong: whether a tensor is known to be no sum over the examples.
    """

    def __init__(
        self,
        graph: OpGraph,
        job: TrainingJob,
        access: StateAccess,
        frames: LoopFrames,
        regions: Regions,
        is_wrong: Callable[[TensorRef], bool],
    ) -> None:
        seeded = regions_by_seeds(graph, regions)
        super().__init__(graph, job, access, frames, seeded)
        self._is_wrong = is_wrong
        self._culprits = not_linear(graph, seeded)

    def _accepts(self, tensor: TensorRef, role: str) -> bool:
        return role == ROWS or not (tensor.op in self._culprits or self._is_wrong(tensor))

    def _obstacle(self, tensor: TensorRef) -> str | None:
        return self._culprits.get(tensor.op)
