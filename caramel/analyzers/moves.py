"""Which ops move into the next step with which gradients?

With a gradient moves whatever reads its aggregate, and whatever reads the output of a moved op.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from caramel.core.facts import StateAccess
from caramel.core.graph import OpGraph
from caramel.core.planned_job import AggregatedGradient

_WITHOUT_EFFECT = frozenset({"NoOp", "ControlTrigger"})
_NOTHING: frozenset[str] = frozenset()


class Moves:
    """Answers for one step which ops move with which gradients.

    Args:
        graph: the single-device graph.
        access: which variables each op touches.
        order: the ops of the step, each after what it waits for.
        gradients: everything that is aggregated.
    """

    def __init__(
        self,
        graph: OpGraph,
        access: StateAccess,
        order: Sequence[str],
        gradients: Sequence[AggregatedGradient],
    ) -> None:
        self._graph, self._access, self._order = graph, access, order
        self._parameters = [gradient.parameter for gradient in gradients]
        self._bit = {name: 1 << number for number, name in enumerate(self._parameters)}
        self._touched: dict[str, frozenset[str]] = {}  # by op, as far as it was asked for
        self._with_state = [name for name in order if self._has_state(name)]
        self._number = {name: number for number, name in enumerate(self._with_state)}
        self._touching: dict[str, list[str]] = {}
        for name in self._with_state:
            for variable in self.touched(name):
                self._touching.setdefault(variable, []).append(name)
        roots: dict[str, int] = {}
        for gradient in gradients:
            for name in gradient.consumers:
                roots[name] = roots.get(name, 0) | self._bit[gradient.parameter]
        self._before: dict[str, int] = {}  # ops with state that each op waits for
        # Gradients with which each op moves. What moves with several is what moves with each of
        # them, since what lets an op move, a tensor or a conflict, belongs to one. So all are
        # looked at together, in one pass over the step, with a bit for each.
        self._moves: dict[str, int] = {}
        self._find(roots)

    # Ops

    def touched(self, name: str) -> frozenset[str]:
        """The variables that an op reads or writes."""
        known = self._touched.get(name)
        if known is None:
            access = self._access
            known = access.reads.get(name, _NOTHING) | access.writes.get(name, _NOTHING)
            self._touched[name] = known
        return known

    def touching(self, variable: str) -> Sequence[str]:
        """The ops of the step that touch a variable, in its order."""
        return self._touching.get(variable, ())

    def in_order(self, touching: Iterable[str]) -> list[str]:
        """Ops of the step that touch variables, in its order."""
        return sorted(touching, key=self._number.__getitem__)

    def has_effect(self, name: str) -> bool:
        """Whether an op does something that is not about variables."""
        op = self._graph[name]
        return op.stateful and not self.touched(name) and op.kind not in _WITHOUT_EFFECT

    def conflict(self, one: str, other: str) -> frozenset[str]:
        """The variables that both ops touch, and one of them writes."""
        writes = self._access.writes
        one_writes, other_writes = writes.get(one, _NOTHING), writes.get(other, _NOTHING)
        return (one_writes & self.touched(other)) | (other_writes & self.touched(one))

    def _has_state(self, name: str) -> bool:
        return bool(self.touched(name)) or self.has_effect(name)

    # What moves

    def of(self, parameters: Iterable[str]) -> tuple[str, ...]:
        """The ops that move with any of these gradients, in the order of the step."""
        wanted = self._bits(parameters)
        return tuple(name for name, bits in self._moves.items() if bits & wanted)

    def parameters(self, name: str) -> frozenset[str]:
        """The gradients with each of which an op moves."""
        bits = self._moves.get(name, 0)
        return frozenset(p for number, p in enumerate(self._parameters) if bits >> number & 1)

    def orders(self, parameters: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Pairs of ops that move with these gradients, of which the second waits for what the first
        does to variables that it touches, or for what else either of them does."""
        wanted = self._bits(parameters)
        effects = [name for name in self._with_state if self.has_effect(name)]
        for name in self.of(parameters):
            bits, before = self._moves[name] & wanted, self._before[name]
            others: Iterable[str] = self._with_state
            if not self.has_effect(name):
                others = dict.fromkeys([*effects, *self._in_conflict(name)])
            for other in sorted(others):
                if before >> self._number[other] & 1 and self._moves.get(other, 0) & bits:
                    yield other, name

    def _bits(self, parameters: Iterable[str]) -> int:
        bits = 0
        for parameter in parameters:
            bits |= self._bit[parameter]
        return bits

    def _in_conflict(self, name: str) -> Iterable[str]:
        """The ops that touch a variable that this one touches, too, one of them writing."""
        writes = self._access.writes
        own = writes.get(name, _NOTHING)
        for variable in self.touched(name):
            for other in self._touching[variable]:
                if variable in own or variable in writes.get(other, _NOTHING):
                    yield other

    def _find(self, roots: dict[str, int]) -> None:
        """Go over the step once."""
        graph, moves, number, before = self._graph, self._moves, self._number, self._before
        behind: dict[str, int] = {}  # gradients with which one of the ops before moves
        for name in self._order:
            op, waits, states, beside = graph[name], 0, 0, 0
            for source in op.sources:
                waits |= before.get(source, 0)
                states |= behind.get(source, 0)
                if source in number:
                    waits |= 1 << number[source]
                    states |= moves.get(source, 0)
                beside |= moves.get(source, 0)
            before[name], behind[name] = waits, states
            bits = roots.get(name, 0)
            for tensor in op.inputs:
                bits |= moves.get(tensor.op, 0)
            # An op that only waits for a moved one moves if somebody could tell that it did not: if
            # it has effects that are not about variables, or touches a variable that a moved op
            # before it touches, one of them writing.
            if name in number:
                if self.has_effect(name):
                    bits |= states | beside
                for other in self._in_conflict(name):
                    if waits >> number[other] & 1:
                        bits |= moves.get(other, 0)
            if bits:
                moves[name] = bits
