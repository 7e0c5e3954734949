"""Which fetches of a step belong to its deferred part?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from caramel.errors import FeedError
from caramel.facts import StateAccess
from caramel.graph import OpGraph
from caramel.names import TensorRef
from caramel.plan import Plan


@dataclass(frozen=True, slots=True)
class StepValue:
    """A tensor of a step, or if it is a raw gradient its `aggregated` value."""

    tensor: TensorRef
    aggregated: bool = False


@dataclass(frozen=True)
class LateFetches:
    """Tells fetches apart, by the ops of the single-device graph.

    Attributes:
        graph: the single-device graph.
        plan: says what moves into the next step.
        access: which variables each op touches.
    """

    graph: OpGraph
    plan: Plan
    access: StateAccess

    def is_late(self, op: str, tensor: TensorRef | None) -> bool:
        """Whether a fetch is computed from what is deferred, or is that itself."""
        return tensor in self._sums or op in self._behind

    def is_beside(self, op: str) -> bool:
        """Whether a fetch reads variables that moved ops touch, and waits for no token."""
        if not self._touched:
            return False
        own = self.graph.ancestors([op], stop=self._step) - self._step
        return any(self.access.reads.get(name, frozenset()) & self._touched for name in own)

    def inputs(self, ops: Iterable[str]) -> list[StepValue]:
        """What late fetches read, apart from moved ops, from the step they belong to.

        Raises:
            FeedError: a fetch waits for an op of the step, so it cannot run after it.
        """
        found: dict[StepValue, None] = {}
        moved = frozenset(self.plan.deferral.moved)
        for name in sorted(self.graph.ancestors(ops, stop=moved) & self._behind - moved):
            op = self.graph[name]
            waits = [c for c in op.control_inputs if c in self._step and c not in self._behind]
            if waits:
                raise FeedError(
                    f"'{name}' cannot be fetched: it is computed from deferred gradients and waits "
                    f"for '{waits[0]}', which has run before; use a plan that defers nothing"
                )
            for tensor in op.inputs:
                if tensor.op not in self._behind and (name, tensor) not in self._deferred_reads:
                    found[StepValue(tensor, (name, tensor) in self._aggregated_reads)] = None
        return [each for each in found if self.graph.spec(each.tensor).dtype != "resource"]

    @cached_property
    def _aggregated_reads(self) -> frozenset[tuple[str, TensorRef]]:
        """Which op reads the aggregated value in place of which raw gradient."""
        return frozenset(
            (name, tensor)
            for gradient in self.plan.gradients
            for name in gradient.consumers
            for tensor in (gradient.values, gradient.indices)
            if tensor is not None
        )

    @cached_property
    def _deferred_reads(self) -> frozenset[tuple[str, TensorRef]]:
        deferred = self.plan.deferred
        tensors = {
            tensor
            for gradient in self.plan.gradients
            if gradient.parameter in deferred
            for tensor in (gradient.values, gradient.indices)
        }
        return frozenset(pair for pair in self._aggregated_reads if pair[1] in tensors)

    @cached_property
    def _sums(self) -> frozenset[TensorRef]:
        deferred = self.plan.deferred
        return frozenset(g.values for g in self.plan.gradients if g.parameter in deferred)

    @cached_property
    def _behind(self) -> frozenset[str]:
        """Moved ops, and ops outside the step that are behind them or read their gradients."""
        deferred = self.plan.deferred
        moved = self.plan.deferral.moved
        waiting = [*moved]
        for gradient in self.plan.gradients:
            if gradient.parameter in deferred:
                waiting += gradient.consumers
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen or (name in self._step and name not in moved):
                continue
            seen.add(name)
            waiting.extend(self.graph.consumers[name])
        return frozenset(seen)

    @cached_property
    def _step(self) -> frozenset[str]:
        return frozenset(self.graph.ancestors([self.plan.train_op, self.plan.loss]))

    @cached_property
    def _touched(self) -> frozenset[str]:
        return frozenset(barrier.variable for barrier in self.plan.deferral.barriers)
