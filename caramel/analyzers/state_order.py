"""In which order does a step read and write its variables where its edges leave that open?

TensorFlow promises no order of ops that do not wait for each other, but on one device there is one
in practice. Between workers there is none: one would read the old value and another one the new.
`state_order` finds each pair of accesses of which neither waits for the other, and the control
edges that order them as one device does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from caramel.analyzers.branches import branches_around
from caramel.analyzers.frames import ROOT
from caramel.analyzers.fusions import fusions_among
from caramel.analyzers.units import loops_of
from caramel.core import op_types
from caramel.core.facts import (
    LoopFrames,
    StateAccess,
    StateOrder,
    TrainingJob,
    UnorderedPair,
    WorkerInputs,
)
from caramel.core.graph import OpGraph
from caramel.core.variable_access import handle_of

_NOTHING: frozenset[str] = frozenset()
_INLINED = op_types.FUNCTIONAL_CONTROL_FLOW | {"StatelessIf", "StatelessCase", "StatelessWhile"}


def state_order(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
    inputs: WorkerInputs,
) -> StateOrder:
    """The order of what a training step reads and writes."""
    return order_of(graph, job, access, frames, inputs, [job.train_op, job.loss.op])


def order_of(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    frames: LoopFrames,
    inputs: WorkerInputs,
    roots: Iterable[str],
) -> StateOrder:
    """The order of what a step reads and writes that runs `roots`."""
    accesses = _Accesses(graph, access, frames, graph.ancestors(roots))
    if not accesses.has_open_pairs():
        return StateOrder()
    return _Ordering(accesses, job, frames, inputs).found()


class _Accesses:
    """The ops of a step that touch a variable that the step writes, and what waits for what.

    Attributes:
        touching: for each variable that several ops touch, one of them writing, these ops.
        order: all ops of the step, each after what it waits for, but for what closes loops.
        loops: for each op in a loop one that stands for the outermost one.
        bit: the bit of each op that touches such a variable.
        known: for each op the bits of those that it waits for, and its own.
    """

    def __init__(
        self, graph: OpGraph, access: StateAccess, frames: LoopFrames, step: set[str]
    ) -> None:
        self.graph, self.step = graph, step
        self.reads, self.writes = access.reads, access.writes
        self.touching = self._touching()
        accesses = dict.fromkeys(op for ops in self.touching.values() for op in ops)
        self.bit = {name: 1 << number for number, name in enumerate(accesses)}
        self.order = self._topological()
        self.loops = loops_of(graph, frames, step)
        self._in_turn = self._waits()  # within one turn of each loop
        self.known = self._around_loops() if self.loops else self._in_turn

    def waits(self, name: str, other: str) -> bool:
        """Whether one access waits for another one; in one loop, within the same turn."""
        loop = self.loops.get(name)
        is_inside = loop is not None and loop == self.loops.get(other)
        known = self._in_turn if is_inside else self.known
        return bool(known[name] & self.bit[other])

    def has_open_pairs(self) -> bool:
        """Whether of any two accesses to a variable, one of them writing, neither waits."""
        for variable, ops in self.touching.items():
            writers = [op for op in ops if variable in self.writes.get(op, _NOTHING)]
            for writer in writers:
                for other in ops:
                    if writer != other and not (
                        self.waits(writer, other) or self.waits(other, writer)
                    ):
                        return True
        return False

    def _touching(self) -> dict[str, tuple[str, ...]]:
        step = self.step
        written = {v for op, variables in self.writes.items() if op in step for v in variables}
        touching: dict[str, dict[str, None]] = {variable: {} for variable in sorted(written)}
        for ops in (self.reads, self.writes):
            for op, variables in ops.items():
                if op in step:
                    for variable in written.intersection(variables):
                        touching[variable][op] = None
        return {variable: tuple(ops) for variable, ops in touching.items() if len(ops) > 1}

    def _topological(self) -> list[str]:
        """The order of definition, if it is one in which the ops can run."""
        graph, seen = self.graph, set[str]()
        order = [name for name in graph.ops if name in self.step]
        for name in order:
            for source in graph.ops[name].sources:
                if source not in seen and graph.ops[source].kind != "NextIteration":
                    return [each for each in graph.topological_order() if each in self.step]
            seen.add(name)
        return order

    def _waits(self, around: Mapping[str, int] | None = None) -> dict[str, int]:
        """What each op waits for, one that opens a loop also for what is known to close it."""
        ops, bit = self.graph.ops, self.bit
        known: dict[str, int] = dict(around or {})
        for name in self.order:
            op, mask = ops[name], bit.get(name, 0)
            for tensor in op.inputs:
                mask |= known.get(tensor.op, 0)
            for source in op.control_inputs:
                mask |= known.get(source, 0)
            known[name] = mask
        return known

    def _around_loops(self) -> dict[str, int]:
        closing = [name for name in self.order if self.graph[name].kind == "NextIteration"]
        known = self._in_turn
        while True:
            around = {name: known[name] for name in closing}
            known = self._waits(around)
            if all(known[name] == mask for name, mask in around.items()):
                return known


class _Ordering:
    """Orders the accesses of a step that has open pairs."""

    def __init__(
        self, accesses: _Accesses, job: TrainingJob, frames: LoopFrames, inputs: WorkerInputs
    ) -> None:
        self._accesses, self._graph, self._frames = accesses, accesses.graph, frames
        self._handles = {variable.name: variable.handle for variable in job.variables}
        is_input = inputs.reasons.keys() | inputs.scalar_only | inputs.scalars
        trained = frozenset(v.name for v in job.variables if v.trainable)
        late = _waiting_for_computation(accesses, is_input, trained)
        # Where a pair is open, the earlier op of this walk is to run first: so edges never close a
        # cycle.
        self._order = _in_practice(accesses, late)
        self._position = {name: number for number, name in enumerate(self._order)}
        self._added: dict[str, list[str]] = {}  # by the op that is to wait
        self._follows = True  # whether all edges lead on in that order

    def found(self) -> StateOrder:
        """The pairs, in the order in which their second ops run."""
        graph, accesses = self._graph, self._accesses
        known: dict[str, int] = {}  # what each op waits for by the edges, too, but around loops
        pairs: list[UnorderedPair] = []
        rivals = self._rivals()
        for name in self._order:
            mask = 0
            for source in (*graph[name].sources, *self._added.get(name, ())):
                mask |= known.get(source, 0)
            for other, variable in rivals.get(name, ()):
                is_known = mask & accesses.bit[other] or accesses.waits(name, other)
                if is_known or self._exclude(name, other):
                    continue
                pairs.append(self._pair(variable, other, name))
                mask |= known[other]
            known[name] = mask | accesses.bit.get(name, 0)
        return StateOrder(tuple(pairs), self._draws_in_writes(pairs))

    def _rivals(self) -> dict[str, list[tuple[str, str]]]:
        """For each access those before it that touch the same variable, one of the two writing,
        the last one first."""
        accesses, found = self._accesses, dict[str, list[tuple[str, str]]]()
        for variable, touching in accesses.touching.items():
            ops = sorted(touching, key=self._position.__getitem__)
            writes = {op for op in ops if variable in accesses.writes.get(op, _NOTHING)}
            for number, op in enumerate(ops):
                for other in reversed(ops[:number]):
                    if op in writes or other in writes:
                        found.setdefault(op, []).append((other, variable))
        for others in found.values():
            others.sort(key=lambda each: -self._position[each[0]])
        return found

    def _draws_in_writes(self, pairs: Iterable[UnorderedPair]) -> bool:
        before = {source for pair in pairs for source, _ in pair.edges}
        ordered = self._graph.with_edges(edge for pair in pairs for edge in pair.edges)
        return not self._accesses.writes.keys().isdisjoint(ordered.ancestors(before))

    # Edges

    def _pair(self, variable: str, first: str, second: str) -> UnorderedPair:
        ends = list(self._ends(first, second))
        begin = second if self._is_beside(first, second) else self._begin(variable, second)
        if not ends or begin is None:
            what = f"nothing can wait for '{first}'" if not ends else f"'{second}' cannot be held"
            obstacle = f"{what}, which is part of a loop or calls a function"
            return UnorderedPair(variable, first, second, (), obstacle)
        # Where an end of the edge was moved out of a loop, it may run later than the op itself.
        follows = all(self._position[end] < self._position[begin] for end in ends)
        # Looked for only where it can be: the search goes through the whole step.
        if not (follows and self._follows) and self._waits(ends, begin):
            return UnorderedPair(variable, first, second, (), "the graph would have a cycle")
        self._follows = self._follows and follows
        self._added.setdefault(begin, []).extend(ends)
        return UnorderedPair(variable, first, second, tuple((end, begin) for end in ends))

    def _loop(self, name: str) -> str:
        return self._accesses.loops.get(name, ROOT)

    def _is_beside(self, name: str, other: str) -> bool:
        """Whether an op can wait for another one as far as loops are concerned."""
        frame = self._frames.frame
        return self._loop(name) == self._loop(other) and frame[name] == frame[other]

    @cached_property
    def _branches(self) -> Mapping[str, frozenset[tuple[str, int]]]:
        return branches_around(self._graph)

    def _exclude(self, name: str, other: str) -> bool:
        """Whether only one of two ops runs."""
        one = self._branches[name]
        return any((pivot, 1 - index) in one for pivot, index in self._branches[other])

    def _ends(self, name: str, second: str) -> Iterator[str]:
        """What an op that runs where `second` does can wait for so that `name` has run."""
        # TensorFlow inlines such calls, so nothing can wait for them by control: the edge begins at
        # ops that read their outputs.
        if self._graph[name].kind in _INLINED:
            starts: Iterable[str] = self._readers_of_outputs(name)
        # An edge must not lead out of a loop or a branch: it begins at what comes out of that.
        elif self._loop(name) not in (ROOT, self._loop(second)):
            starts = self._exits(name)
        else:
            starts = [name]
        for start in starts:
            end = self._first_beside(start, second)
            if end is not None:
                yield end

    def _readers_of_outputs(self, name: str) -> list[str]:
        """For each output of a call that the step reads, the first op that does."""
        found: dict[int, str] = {}
        for consumer in self._consumers(name):
            for tensor in self._graph[consumer].inputs:
                if tensor.op == name:
                    found.setdefault(tensor.index, consumer)
        return list(dict.fromkeys(found.values()))

    def _exits(self, name: str) -> list[str]:
        """What comes out of the loop around an op because of it."""
        reached, waiting, found = {name}, [name], dict[str, None]()
        while waiting:
            for consumer in self._consumers(waiting.pop()):
                if self._loop(consumer) == ROOT:
                    found[consumer] = None
                elif consumer not in reached:
                    reached.add(consumer)
                    waiting.append(consumer)
        return list(found)

    def _first_beside(self, start: str, second: str) -> str | None:
        """The first op behind `start` that runs whenever `second` does, and is no part of a loop
        that this is not part of, too."""
        seen, ready = {start}, [(self._position[start], start)]
        while ready:
            _, name = heapq.heappop(ready)
            outside = self._loop(name) == ROOT or self._is_beside(name, second)
            if outside and self._branches[name] <= self._branches[second]:
                return name
            for consumer in self._consumers(name):
                if consumer not in seen:
                    seen.add(consumer)
                    heapq.heappush(ready, (self._position[consumer], consumer))
        return None

    def _consumers(self, name: str) -> list[str]:
        return [c for c in self._graph.consumers[name] if c in self._position]

    def _begin(self, variable: str, name: str) -> str | None:
        """What is to wait so that `name` does: it, or what brings its variable into its loop."""
        graph, handle = self._graph, self._handles[variable]
        # The edge ends at what leads into the loop.
        while self._loop(name) != ROOT:
            inputs = graph[name].inputs
            sources = [tensor.op for tensor in inputs if handle_of(graph, tensor) == handle]
            if not sources:
                return None
            if graph[name].kind == "Enter" and self._loop(sources[0]) == ROOT:
                break
            name = sources[0]
        return name

    def _waits(self, names: Iterable[str], source: str) -> bool:
        """Whether any of the ops waits for `source`, also by the new edges."""
        edges = [(end, begin) for begin, ends in self._added.items() for end in ends]
        return source in self._graph.with_edges(edges).ancestors(names)


# What one device does ----------------------------------------------------------------------------


def _waiting_for_computation(
    accesses: _Accesses, inputs: Iterable[str], trained: frozenset[str]
) -> frozenset[str]:
    """The ops that wait for something that is computed from inputs and parameters."""
    graph, given = accesses.graph, frozenset(inputs)
    parameters = {op for op, variables in accesses.reads.items() if variables & trained}
    made_of: dict[str, int] = {}  # 1 of inputs, 2 of parameters
    computed: set[str] = set()
    late: set[str] = set()
    for name in accesses.order:
        op = graph.ops[name]
        if any(source in late or source in computed for source in op.sources):
            late.add(name)
        parts = (name in given) | 2 * (name in parameters)
        for tensor in op.inputs:
            parts |= made_of.get(tensor.op, 0)
        made_of[name] = parts
        if parts == 3:
            computed.add(name)
    return frozenset(late)


def _in_practice(accesses: _Accesses, late: frozenset[str]) -> list[str]:
    """The ops of a step in the order in which one device runs them.

    A loop comes as a whole, and so do ops that TensorFlow may compute as one.
    """
    loops = accesses.loops
    fusions = fusions_among(accesses.graph, accesses.step).groups
    fused = {
        name: group[0] for group in fusions if loops.keys().isdisjoint(group) for name in group
    }
    order = _in_order(accesses, late, {**loops, **fused})
    if len(order) < len(accesses.order):
        order = _in_order(accesses, late, loops)
    assert len(order) == len(accesses.order), "ops of the step wait for each other"
    return order


def _in_order(accesses: _Accesses, late: frozenset[str], joined: Mapping[str, str]) -> list[str]:
    """The same for given units; only a part if these wait for each other.

    Args:
        joined: for each op of a unit of several one that stands for the unit.
    """
    graph = accesses.graph
    members: dict[str, list[str]] = {}
    for name in accesses.order:
        members.setdefault(joined.get(name, name), []).append(name)
    waits: dict[str, int] = {}
    consumers: dict[str, list[str]] = {unit: [] for unit in members}
    for unit, names in members.items():
        sources = {joined.get(s, s) for name in names for s in graph[name].sources} - {unit}
        waits[unit] = len(sources)
        for source in sources:
            consumers[source].append(unit)
    ranks = {
        unit: (*_rank(accesses, unit, names, late), number, unit)
        for number, (unit, names) in enumerate(members.items())
    }
    ready = [ranks[unit] for unit, count in waits.items() if not count]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        unit = heapq.heappop(ready)[-1]
        order += members[unit]
        for consumer in consumers[unit]:
            waits[consumer] -= 1
            if not waits[consumer]:
                heapq.heappush(ready, ranks[consumer])
    return order


def _rank(
    accesses: _Accesses, unit: str, names: Sequence[str], late: frozenset[str]
) -> tuple[bool, int]:
    """What runs first of all that can: the smaller one does.

    Ops that wait for no computation run before those that do, and of either a read before a write.
    A write whose value is made of a read comes next behind it, and the rest in the order of
    definition.
    """
    is_late = not late.isdisjoint(names)
    written = {v for name in names if name in accesses.bit for v in accesses.writes.get(name, ())}
    if not written:
        return is_late, 0
    op = accesses.graph[unit]
    if op.kind in op_types.ONLY_WRITE_VARIABLES and _is_made_of_a_read(accesses, unit, written):
        return is_late, 1
    return is_late, 3 if op.kind in _INLINED else 2


def _is_made_of_a_read(accesses: _Accesses, name: str, variables: Iterable[str]) -> bool:
    return any(
        accesses.known[name] & accesses.bit.get(op, 0)
        for variable in variables
        for op in accesses.touching.get(variable, ())
        if op != name and variable in accesses.reads.get(op, _NOTHING)
    )
