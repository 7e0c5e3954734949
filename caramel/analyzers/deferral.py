"""What moves into the next step when the aggregation of some gradients does?

The aggregation of a *deferred* gradient, and everything downstream of it (`moves`), runs at the
start of the next step. Every op sees the values that it would have seen without deferral.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import cached_property

from caramel.analyzers.frames import outermost
from caramel.analyzers.moves import Moves
from caramel.core import op_types
from caramel.core.consequences import Barrier, Deferral, Detour, Kept
from caramel.core.decision import Edge
from caramel.core.errors import PlanError
from caramel.core.facts import LoopFrames, StateAccess, TrainingJob
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.planned_job import AggregatedGradient

_UNKEPT_DTYPES = frozenset({"resource", "variant", "unknown"})


class Deferrals:
    """Answers for one job what moves with which gradients.

    Args:
        graph: the single-device graph.
        job: the training job in it.
        access: which variables each op touches.
        frames: in which loop each op is.
        gradients: everything that is aggregated.
    """

    def __init__(
        self,
        graph: OpGraph,
        job: TrainingJob,
        access: StateAccess,
        frames: LoopFrames,
        gradients: Sequence[AggregatedGradient],
    ) -> None:
        self._graph, self._job, self._access, self._frames = graph, job, access, frames
        self._gradients = {gradient.parameter: gradient for gradient in gradients}
        self._raw = {
            tensor: gradient.parameter for gradient in gradients for tensor in _tensors(gradient)
        }
        self._allowed: set[tuple[str, ...]] = set()  # what may move

    def reason_against(self, parameters: Set[str]) -> str | None:
        """Why the gradients of these parameters cannot be deferred together; None if they can."""
        order = self.moves.of(parameters)
        if order in self._allowed and not any(self._is_empty(name) for name in parameters):
            return None
        moved = frozenset(order)
        try:
            self._check(moved, parameters)
            for _ in self._barriers(order, moved):
                pass
        except PlanError as error:
            return str(error)
        self._allowed.add(order)
        return None

    def updated_with(self, parameters: Set[str]) -> frozenset[str]:
        """The variables whose updates move with the gradients of these parameters."""
        writes = self._access.writes
        return frozenset(v for op in self.moves.of(parameters) for v in writes.get(op, ()))

    def of(self, parameters: Set[str]) -> Deferral:
        """What moves with the gradients of these parameters.

        Raises:
            PlanError: they cannot be deferred; says why.
        """
        if not parameters:
            return Deferral()
        order = self.moves.of(parameters)
        moved = frozenset(order)
        self._check(moved, parameters)
        detours = tuple(self._detours(moved))
        graph = self._graph
        results = [name for name in order if not any(c in moved for c in graph.consumers[name])]
        return Deferral(
            moved=order,
            kept=tuple(self._kept(order, moved, parameters)),
            results=tuple(results),
            stays=tuple(self._stays(moved)),
            detours=detours,
            orders=tuple(Edge(*pair) for pair in self.moves.orders(parameters)),
            barriers=tuple(self._barriers(order, moved)),
        )

    # The step

    @cached_property
    def _step(self) -> frozenset[str]:
        return frozenset(self._graph.ancestors([self._job.train_op, self._job.loss.op]))

    @cached_property
    def _order(self) -> tuple[str, ...]:
        """The ops of the step, each after what it waits for."""
        return tuple(name for name in self._graph.topological_order() if name in self._step)

    @cached_property
    def moves(self) -> Moves:
        """Which ops move with which gradients."""
        return Moves(self._graph, self._access, self._order, tuple(self._gradients.values()))

    @cached_property
    def _reads(self) -> frozenset[str]:
        """The ops by which variables are read outside the step."""
        return frozenset(variable.read for variable in self._job.variables)

    @cached_property
    def _timeless(self) -> frozenset[str]:
        """Ops that put out the same in every step: constants, handles, what is made of them."""
        found: set[str] = set()
        for name in self._order:
            op = self._graph[name]
            is_source = op.kind in ("Const", op_types.VARIABLE)
            is_computed = (
                not op.stateful and op.kind not in op_types.PLACEHOLDERS and bool(op.inputs)
            )
            if (is_source or is_computed) and all(source in found for source in op.sources):
                found.add(name)
        return frozenset(found)

    # What may not move

    def _is_empty(self, parameter: str) -> bool:
        return not self._gradients[parameter].elements

    def _check(self, moved: Set[str], parameters: Set[str]) -> None:
        named = _some(parameters)
        empty = sorted(name for name in parameters if self._is_empty(name))
        if empty:
            raise PlanError(f"the gradient of '{empty[0]}' is empty, so it cannot be deferred")
        if self._job.loss.op in moved:
            raise PlanError(f"gradients of {named} cannot be deferred: the loss depends on them")
        behind = [parameter for tensor, parameter in self._raw.items() if tensor.op in moved]
        if behind:
            raise PlanError(
                f"gradients of {named} cannot be deferred: the gradient of '{behind[0]}' is "
                "computed from what they update"
            )
        for name in moved:
            op = self._graph[name]
            # An op inside a loop or a branch cannot be moved out of it.
            if self._frames.frame.get(name, "") or op.kind in op_types.PASS_THROUGH - {"Identity"}:
                raise PlanError(
                    f"gradients of {named} cannot be deferred: '{name}', which depends on them, is "
                    "part of a loop or a condition"
                )
            # TensorFlow lets what waits for such an op by a control edge go on before the
            # function's ops have run.
            if op.kind in op_types.FUNCTIONAL_CONTROL_FLOW and self.moves.touched(name):
                raise PlanError(
                    f"gradients of {named} cannot be deferred: '{name}' ({op.kind}), which depends "
                    "on them, touches variables in a function, whose end nothing can wait for"
                )
            for tensor in op.inputs:
                if tensor.op in moved or tensor.op in self._timeless:
                    continue
                if self._graph.spec(tensor).dtype in _UNKEPT_DTYPES:
                    raise PlanError(
                        f"gradients of {named} cannot be deferred: '{name}' reads '{tensor}', "
                        "which cannot be kept for the next step"
                    )
            # It may not have run in the step before: nothing can wait for it then.
            skippable = [s for s in op.sources if s in self._skippable and s not in moved]
            if skippable:
                raise PlanError(
                    f"gradients of {named} cannot be deferred: '{name}' waits for "
                    f"'{skippable[0]}', which is part of a loop or a condition"
                )

    @cached_property
    def _skippable(self) -> frozenset[str]:
        """Ops inside loops, or in a branch of a v1 condition."""
        found: set[str] = set()
        for name in self._order:
            op = self._graph[name]
            is_inside = self._frames.frame.get(name, "") or op.kind == "Switch"
            is_end = op.kind in ("Merge", "Exit")
            if is_inside or (not is_end and any(source in found for source in op.sources)):
                found.add(name)
        return frozenset(found)

    # What stays

    def _kept(self, order: Iterable[str], moved: Set[str], parameters: Set[str]) -> Iterator[Kept]:
        """What moved ops read from ops that stay."""
        seen: set[Kept] = set()
        for name in order:
            for tensor in self._graph[name].inputs:
                if tensor.op in moved or tensor.op in self._timeless:
                    continue
                parameter = self._raw.get(tensor)
                aggregated = parameter is not None and name in self._gradients[parameter].consumers
                # A deferred gradient itself is kept by its aggregation.
                if aggregated and parameter in parameters:
                    continue
                kept = Kept(tensor, self._graph.spec(tensor), aggregated)
                if kept not in seen:
                    seen.add(kept)
                    yield kept

    def _stays(self, moved: Set[str]) -> Iterator[str]:
        """What a step has to run, apart from the loss: the train op, or what it waited for."""
        seen: set[str] = set()
        waiting = [self._job.train_op]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in moved:
                waiting.extend(self._graph[name].sources)
            elif name not in self._timeless:
                yield name

    def _detours(self, moved: Set[str]) -> Iterator[Detour]:
        """What ops that stay wait for instead of moved ones: for what these waited for.

        An op that only waits for a moved one (by control edges) stays as long as nobody can tell.
        So Adam's powers and a step counter stay, and an average of the weights moves.
        """
        sources = _StayingSources(self._graph, moved, self._timeless)
        for name in self._order:
            if name in moved:
                continue
            lost = tuple(c for c in self._graph[name].control_inputs if c in moved)
            if lost:
                before = sorted({s for each in lost for s in sources.of(each)})
                yield Detour(name, lost, tuple(before))

    def _barriers(self, order: Iterable[str], moved: Set[str]) -> Iterator[Barrier]:
        """Ops of the next step that touch what moved ops touch, one of them writing."""
        moves = self.moves
        by_variable: dict[str, list[str]] = {}
        for name in order:
            for variable in sorted(moves.touched(name)):
                by_variable.setdefault(variable, []).append(name)
        staying = {n for v in by_variable for n in moves.touching(v) if n not in moved}
        waiting: dict[str, dict[str, None]] = {}
        for name in moves.in_order(staying):
            for variable in sorted(moves.touched(name)):
                others = by_variable.get(variable, ())
                if any(variable in moves.conflict(name, other) for other in others):
                    # That op would wait for the deferred part whenever the variable is saved or
                    # fetched.
                    if name in self._reads:
                        raise PlanError(
                            f"updates of '{variable}' cannot be deferred: the step reads it by "
                            f"'{name}', which also reads it outside the step"
                        )
                    handle = self._graph[name].inputs[0]
                    outer = outermost(self._graph, self._frames, name, handle)
                    waiting.setdefault(variable, {})[outer] = None
        for variable, ops in waiting.items():
            yield Barrier(variable, tuple(by_variable[variable]), tuple(ops))


class _StayingSources:
    """Which ops that stay does a moved op wait for, directly or through other moved ops?"""

    def __init__(self, graph: OpGraph, moved: Set[str], timeless: Set[str]) -> None:
        self._graph, self._moved, self._timeless = graph, moved, timeless
        self._known: dict[str, frozenset[str]] = {}

    def of(self, name: str) -> frozenset[str]:
        """The staying ops."""
        waiting = [name]
        while waiting:
            current = waiting[-1]
            if current in self._known:
                waiting.pop()
                continue
            inner = [s for s in self._graph[current].sources if s in self._moved]
            unknown = [s for s in inner if s not in self._known]
            if unknown:
                waiting.extend(unknown)
                continue
            direct = {
                s
                for s in self._graph[current].sources
                if s not in self._moved and s not in self._timeless
            }
            self._known[current] = frozenset(direct).union(*(self._known[s] for s in inner))
            waiting.pop()
        return self._known[name]


def _tensors(gradient: AggregatedGradient) -> tuple[TensorRef, ...]:
    if gradient.indices is None:
        return (gradient.values,)
    return (gradient.values, gradient.indices)


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - 2} more" if len(listed) > 2 else ""
    return ", ".join(f"'{name}'" for name in listed[:2]) + more
