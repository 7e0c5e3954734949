"""Which fetches of a step cannot be had from a plan that defers part of it?"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from caramel.core.facts import StateAccess
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.plan import Plan

_NOTHING: frozenset[str] = frozenset()


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
    _known: dict[tuple[str, TensorRef | None], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def is_late(self, op: str, tensor: TensorRef | None) -> bool:
        """Whether a fetch is not what it is without deferral.

        It is a deferred gradient, waits for what is deferred, or touches a variable that deferred
        ops touch, too, one of them writing, without being an op of the step; so it does not wait
        for them.

        Args:
            op: what is fetched, or to be run.
            tensor: its output; None if it is only to be run. An op of the step is run anyway.
        """
        key = (op, tensor)
        if key not in self._known:
            self._known[key] = bool(self.plan.consequences.deferral.moved) and self._is_late(
                op, tensor
            )
        return self._known[key]

    def is_of_step(self, op: str) -> bool:
        """Whether every step runs an op, whatever is fetched."""
        return op in self._trained

    def _is_late(self, op: str, tensor: TensorRef | None) -> bool:
        if tensor is None and self.is_of_step(op):
            return False
        if tensor in self._gradients or not self._deferred.isdisjoint(self.graph.ancestors([op])):
            return True
        beside = self.graph.ancestors([op], stop=self._step) - self._step
        reads, writes = self.access.reads, self.access.writes
        return any(
            reads.get(name, _NOTHING) & self._written
            or writes.get(name, _NOTHING) & (self._written | self._read)
            for name in beside
        )

    @cached_property
    def _read(self) -> frozenset[str]:
        """The variables that deferred ops read."""
        return _NOTHING.union(
            *(
                self.access.reads.get(name, _NOTHING)
                for name in self.plan.consequences.deferral.moved
            )
        )

    @cached_property
    def _written(self) -> frozenset[str]:
        """The variables that deferred ops write."""
        return _NOTHING.union(
            *(
                self.access.writes.get(name, _NOTHING)
                for name in self.plan.consequences.deferral.moved
            )
        )

    @cached_property
    def _gradients(self) -> frozenset[TensorRef]:
        """The tensors of deferred gradients."""
        deferred = [g for g in self.plan.job.gradients if g.parameter in self.plan.deferred]
        tensors = [
            tensor for gradient in deferred for tensor in (gradient.values, gradient.indices)
        ]
        return frozenset(tensor for tensor in tensors if tensor is not None)

    @cached_property
    def _deferred(self) -> frozenset[str]:
        """Ops that run in the next step, and what reads deferred gradients outside of any step."""
        readers = {
            name
            for gradient in self.plan.job.gradients
            if gradient.parameter in self.plan.deferred
            for name in gradient.consumers
        }
        return frozenset(self.plan.consequences.deferral.moved) | readers

    @cached_property
    def _trained(self) -> frozenset[str]:
        return frozenset(self.graph.ancestors([self.plan.job.train_op]))

    @cached_property
    def _step(self) -> frozenset[str]:
        return self._trained | self.graph.ancestors([self.plan.job.loss])
