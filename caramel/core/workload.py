"""What a step of a job computes and aggregates, as far as its time depends on it.

Small enough to be kept in a profile, so that steps can be simulated without the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from caramel.core.graph import TensorSpec


@dataclass(frozen=True, slots=True)
class Size:
    """Of what is aggregated for a parameter: elements, and bytes of each.

    Attributes:
        parameter: that of the gradient of which this is a part; None for a whole one.
    """

    elements: int
    element_bytes: int
    parameter: str | None = None

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.elements * self.element_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the forward and backward pass that waits for nothing once it has begun.

    Attributes:
        name: of its last op that takes time.
        seconds: on a worker's device.
        ops: how many ops that take time it has.
        needs: variables that it is the first to need the new value of.
        yields: parameters whose raw gradients are complete when it ends.
    """

    name: str
    seconds: float
    ops: int = 1
    needs: frozenset[str] = frozenset()
    yields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """What is computed from aggregated gradients.

    Attributes:
        name: of its last op that takes time, or of its last op.
        seconds: on a worker's device.
        gradients: the parameters whose aggregated gradients it waits for.
        moves_with: it runs in the next step if the gradient of one of these parameters is deferred.
        writes: the variables that it assigns.
    """

    name: str
    seconds: float
    gradients: frozenset[str]
    moves_with: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()

    def in_parts(self, parts: Mapping[str, Collection[str]], share: float = 1.0) -> Update:
        """The same for parts of parameters, of which it does a share."""
        return replace(
            self,
            seconds=share * self.seconds,
            gradients=frozenset(_in_parts(self.gradients, parts)),
            moves_with=frozenset(_in_parts(self.moves_with, parts)),
            writes=frozenset(_in_parts(self.writes, parts)),
        )


@dataclass(frozen=True, slots=True)
class Product:
    """A gradient that can be computed from its factors.

    Attributes:
        bytes: of the factors of one worker.
        seconds: to compute it once, on a worker's device. (From a worker's own factors it is
            computed in the chain in any case.)
    """

    bytes: int
    seconds: float


_UNKNOWN = Product(0, 0.0)


def _in_parts(names: Iterable[str], parts: Mapping[str, Collection[str]]) -> list[str]:
    """Names of variables, with those of its parts for each that is in parts."""
    return [part for name in names for part in parts.get(name, (name,))]


@dataclass(frozen=True)
class Workload:
    """What does a worker compute in a step?

    Attributes:
        chain: forward and backward pass, in the order in which they are computed.
        updates: what waits for aggregated gradients.
        products: what it takes to send the factors of a gradient in its place, by parameter, for
            those that have factors of known size.
    """

    chain: tuple[Piece, ...]
    updates: tuple[Update, ...] = ()
    products: Mapping[str, Product] = field(default_factory=dict)

    @property
    def computation_s(self) -> float:
        """C, with the updates."""
        return sum(p.seconds for p in self.chain) + sum(u.seconds for u in self.updates)

    def piece_seconds(self, op_s: float) -> tuple[float, ...]:
        """What each piece takes where the runtime takes so much for each op."""
        known = self._piece_seconds
        # Kept, since a search asks for it thousands of times.
        if op_s not in known:
            known[op_s] = tuple(piece.seconds + op_s * piece.ops for piece in self.chain)
        return known[op_s]

    @cached_property
    def _piece_seconds(self) -> dict[float, tuple[float, ...]]:
        return {}

    def product(self, parameter: str) -> Product:
        """What a gradient takes that is sent by its factors; nothing if that is not known."""
        return self.products.get(parameter, _UNKNOWN)

    def in_parts(self, parts: Mapping[str, Mapping[str, float]]) -> Workload:
        """The same with some parameters in parts, whose updates are done apart.

        Args:
            parts: by the name of each of these the names of its parts, with their shares.
        """

        chain = tuple(
            replace(
                each,
                needs=frozenset(_in_parts(each.needs, parts)),
                yields=tuple(_in_parts(each.yields, parts)),
            )
            for each in self.chain
        )
        updates: list[Update] = []
        for each in self.updates:
            apart = parts.get(next(iter(each.gradients)), {}) if len(each.gradients) == 1 else {}
            for part, share in apart.items():
                updates.append(
                    each.in_parts({**parts, **dict.fromkeys(each.gradients, (part,))}, share)
                )
            if not apart:
                updates.append(each.in_parts(parts))
        return replace(self, chain=chain, updates=tuple(updates))

    @cached_property
    def yielded_at(self) -> dict[str, int]:
        """With which piece each raw gradient is complete, by its number."""
        return {name: number for number, each in enumerate(self.chain) for name in each.yields}

    @cached_property
    def gradients_of_updates(self) -> tuple[tuple[str, ...], ...]:
        """The gradients that each update waits for, in order."""
        return tuple(tuple(sorted(update.gradients)) for update in self.updates)

    @cached_property
    def needed_at(self) -> dict[str, int]:
        """Which piece first needs each variable."""
        found: dict[str, int] = {}
        for number, piece in enumerate(self.chain):
            for variable in sorted(piece.needs):
                found.setdefault(variable, number)
        return found

    @cached_property
    def needed_after(self) -> dict[str, int]:
        """Which piece first needs what is updated with each parameter, if that moves; the number of
        pieces if none does."""
        last = len(self.chain)
        found: dict[str, int] = {}
        for update in self.updates:
            first = min((self.needed_at.get(name, last) for name in update.writes), default=last)
            for parameter in update.moves_with:
                found[parameter] = min(first, found.get(parameter, last))
        return found

    @property
    def ready_s(self) -> dict[str, float]:
        """When each raw gradient is complete if nothing is waited for, from the begin of a step."""
        found, clock_s = {}, 0.0
        for piece in self.chain:
            clock_s += piece.seconds
            found.update(dict.fromkeys(piece.yields, clock_s))
        return found

    @property
    def needed_s(self) -> dict[str, float]:
        """When each variable is first needed if nothing is waited for."""
        found: dict[str, float] = {}
        clock_s = 0.0
        for piece in self.chain:
            found.update(dict.fromkeys(sorted(piece.needs), clock_s))
            clock_s += piece.seconds
        return found


@dataclass(frozen=True, slots=True)
class Gradient:
    """What is aggregated for one parameter, and whether that can wait for the next step.

    Attributes:
        parameter: the parameter it belongs to.
        elements: of the parameter.
        dtype: of the parameter.
        is_sparse: whether only some rows of it are there.
        stays: why it cannot be deferred; None if it can.
        rows: of how many rows each server may have some; 0 if it stays whole.
    """

    parameter: str
    elements: int
    dtype: str
    is_sparse: bool = False
    stays: str | None = None
    rows: int = 0

    @property
    def spec(self) -> TensorSpec:
        """dtype and shape of the parameter, flat but for its rows."""
        shape = (self.rows, self.elements // self.rows) if self.rows else (self.elements,)
        return TensorSpec(self.dtype, shape)


@dataclass(frozen=True, slots=True)
class JobOutline:
    """What is known of a job without its graph.

    Attributes:
        free: what a worker computes if nothing orders it.
        ordered: likewise with the control edges that let gradients get ready in one order.
        gradients: what is aggregated.
        on_processor: whether processors compute, whose products are the same everywhere.
    """

    free: Workload
    ordered: Workload
    gradients: tuple[Gradient, ...]
    on_processor: bool = False
