"""Which variables gather what the examples say, and how is one value made of all workers' own?

Each worker counts its own examples only. Anything in the graph can be fetched beside a step, so all
of it is looked at, not only the step.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cached_property

from caramel.analyzers.branches import predicates_around
from caramel.analyzers.dependence import cut_by, spread
from caramel.analyzers.examples.courses import Course, Kind, as_sum
from caramel.analyzers.examples.examples import Examples
from caramel.analyzers.gradients.regions import served_parameters
from caramel.core import op_types
from caramel.core.facts import GradientFrontier, Merging, StateAccess, TrainingJob, WorkerInputs
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef
from caramel.core.variable_access import handle_of, uses_of

_SUMS = frozenset({"Add", "AddV2", "AddN"})
_DIVISIONS = frozenset({"RealDiv", "Div", "DivNoNan", "TruncateDiv", "FloorDiv"})
_NUMBERS = ("float", "bfloat", "complex", "int", "uint")


def merging(
    graph: OpGraph,
    job: TrainingJob,
    access: StateAccess,
    inputs: WorkerInputs,
    frontier: GradientFrontier,
    examples: Examples,
) -> Merging:
    """How the workers' values of each variable that gathers something become one.

    Parameters, and what updates of parameters read (slots, accumulated gradients), are left out:
    these must stay equal.
    """
    gathering = _Gathering(graph, job, access, inputs, frontier, examples)
    adds = gathering.adds
    names = [variable.name for variable in job.variables if variable.name in adds]
    return Merging(
        summed=tuple(name for name in names if adds[name]),
        averaged=tuple(name for name in names if not adds[name]),
        conditions={
            name: gathering.conditions[name] for name in names if gathering.conditions[name]
        },
    )


class _Gathering:
    """Looks for variables that are computed from themselves and from examples.

    `adds` says of each whether its values are added up; else they are averaged. `conditions` has
    the ops that decide on each worker by itself whether something is written: there neither a sum
    nor a mean is what one device has.
    """

    def __init__(
        self,
        graph: OpGraph,
        job: TrainingJob,
        access: StateAccess,
        inputs: WorkerInputs,
        frontier: GradientFrontier,
        examples: Examples,
    ) -> None:
        self._graph, self._access, self._examples = graph, access, examples
        self._variables = {variable.name: variable for variable in job.variables}
        self._writers = _writers(graph, job, access)
        self._readers = _readers(access)
        self._computed_from: dict[str, set[str]] = {}
        gathering: dict[str, list[str]] = {}
        if self._writers:
            own = self._access_of_writers()
            # What is computed from aggregated gradients is the same on all workers, also where it
            # is counted up.
            reached = spread(graph, inputs.reasons, own, is_cut=cut_by(frontier)).came_from
            gathering = self._gathering(reached)
        if gathering:
            serving = served_parameters(graph, job, access)
            # Slots and accumulated gradients must stay equal: they are none of these.
            gathering = {name: ops for name, ops in gathering.items() if name not in serving}
        # A counter, a total, a confusion matrix has seen what all workers have seen together: its
        # values are added up. What moves towards something (a moving average), or to which a mean
        # over the examples is added in each step, is averaged.
        self.adds = {name: self._are_added(name, ops) for name, ops in gathering.items()}
        for name in [name for name, adds in self.adds.items() if adds]:
            adds_sums = self._adds_sums(name, gathering[name])
            # It cannot be told, or the batch size is fixed, so that means look like sums: then it
            # is a mean if it is divided by a count that is the same on all workers.
            if adds_sums is None:
                adds_sums = not self._is_counted_by_steps(name)
            self.adds[name] = adds_sums
        self.conditions = (
            {name: self._conditions(ops, reached) for name, ops in gathering.items()}
            if gathering
            else {}
        )

    def _gathering(self, reached: Container[str]) -> dict[str, list[str]]:
        """For each variable the ops that write into it what comes from examples, if some keep what
        was there."""
        gathering = {}
        for name, ops in self._writers.items():
            differing = [op for op in ops if op in reached]
            if any(self._keeps(name, op) for op in differing):
                gathering[name] = differing
        return gathering

    def _access_of_writers(self) -> StateAccess:
        """Who touches the variables in question, but for their initial values."""
        writing: dict[str, set[str]] = {}
        for name, ops in self._writers.items():
            for op in ops:
                writing.setdefault(op, set()).add(name)
        reads = self._access.reads.items()
        return StateAccess(
            {op: names & self._writers.keys() for op, names in reads},
            {op: frozenset(names) for op, names in writing.items()},
        )

    def _conditions(self, ops: Iterable[str], reached: Container[str]) -> tuple[str, ...]:
        """The predicates that differ between workers, of conditionals around ops."""
        predicates = {
            predicate
            for name in ops
            for predicate in (
                [self._graph[name].inputs[0].op]
                if self._graph[name].kind in op_types.CONDITIONALS
                else self._around[name]
            )
        }
        return tuple(sorted(name for name in predicates if name in reached))

    @cached_property
    def _around(self) -> Mapping[str, frozenset[str]]:
        return predicates_around(self._graph)

    def _keeps(self, name: str, op_name: str) -> bool:
        """Whether what an op leaves in a variable depends on what was there."""
        op = self._graph[op_name]
        if op.functions:
            return name in self._access.reads.get(op_name, ())
        # Ops other than assignments add to what is there.
        return op.kind not in op_types.ONLY_WRITE_VARIABLES or self._depend_on(name, op.inputs[1:])

    def _are_added(self, name: str, ops: Iterable[str]) -> bool:
        """Whether all that is written is added to what was there, and does not depend on it."""
        is_number = self._variables[name].spec.dtype.startswith(_NUMBERS)
        return is_number and all(
            self._bodies_add(name, op)
            if self._graph[op].functions
            else self._added(name, op) is not None
            for op in ops
        )

    def _added(self, name: str, op_name: str) -> Sequence[TensorRef] | None:
        """What an op adds to a variable, if it does that and nothing else."""
        op, graph = self._graph[op_name], self._graph
        if op.kind in op_types.ADDING_TO_VARIABLES:
            return None if self._depend_on(name, op.inputs[1:]) else op.inputs[1:]
        if op.kind != "AssignVariableOp":
            return None
        total = graph[self._behind_identities(op.inputs[1]).op]
        own = [position for position, t in enumerate(total.inputs) if self._is_value(name, t)]
        added = [t for position, t in enumerate(total.inputs) if position not in own]
        # A difference has to take something from the variable, not the variable from something.
        is_sum = total.kind in _SUMS or (total.kind == "Sub" and own == [0])
        return added if is_sum and len(own) == 1 and not self._depend_on(name, added) else None

    def _adds_sums(self, name: str, ops: Iterable[str]) -> bool | None:
        """Whether what is added to a variable is a sum over examples; None if that is not known."""
        found: set[bool | None] = set()
        for op in ops:
            if self._graph[op].functions or self._examples.batch is not None:
                return None
            courses = [self._examples.of(tensor) for tensor in self._added(name, op) or ()]
            if self._graph[op].kind in op_types.SCATTERING:  # by which row each is added, then what
                courses = [courses[1] if courses[1].kind is not Kind.SHARED else courses[0]]
            found |= {_is_sum(course) for course in courses}
        return found.pop() if len(found) == 1 else None

    def _bodies_add(self, name: str, op_name: str) -> bool:
        """The same of an op that calls functions with the variable as an argument."""
        op, handle = self._graph[op_name], self._variables[name].handle
        uses = [
            (function, inner)
            for position, tensor in enumerate(op.inputs)
            if handle_of(self._graph, tensor) == handle
            for function, inner, argument in uses_of(self._graph, op.kind, op.functions, position)
            if argument == 0 and inner.kind not in op_types.ONLY_READ_VARIABLES
        ]
        # What is added must not be made of variables: it may be the old value, scaled.
        return bool(uses) and all(
            inner.kind in op_types.ADDING_TO_VARIABLES
            and not _reads_variables(function.body, inner.inputs[1:])
            for function, inner in uses
        )

    def _depend_on(self, name: str, tensors: Iterable[TensorRef]) -> bool:
        """Whether tensors are computed from a variable."""
        if name not in self._computed_from:  # few ops are, but averages are computed from many
            self._computed_from[name] = self._graph.data_descendants(self._readers.get(name, ()))
        return any(tensor.op in self._computed_from[name] for tensor in tensors)

    def _is_value(self, name: str, tensor: TensorRef) -> bool:
        op = self._behind_identities(tensor).op
        is_read = self._graph[op].kind == "ReadVariableOp"
        return is_read and name in self._access.reads.get(op, ())

    def _behind_identities(self, tensor: TensorRef) -> TensorRef:
        while self._graph[tensor.op].kind == "Identity":
            tensor = self._graph[tensor.op].inputs[0]
        return tensor

    def _is_counted_by_steps(self, name: str) -> bool:
        """Whether it is divided by something that was counted up alike on all workers."""
        counted = {
            other
            for other, ops in self._writers.items()
            if other not in self.adds
            and any(self._graph[op].kind in op_types.ADDING_TO_VARIABLES for op in ops)
        }
        graph = self._graph
        return any(
            self._depend_on(name, graph[op].inputs[:1])
            and self._depend_on(other, graph[op].inputs[1:])
            for op in graph.ops
            if graph[op].kind in _DIVISIONS
            for other in counted
        )


def _is_sum(course: Course) -> bool | None:
    """Whether something that is added is a sum over examples, not a mean; None if not known."""
    course = as_sum(course)
    if course.kind not in (Kind.SUM, Kind.ROWS):
        return None
    exponents = [exponent for _, exponent in course.powers]
    if not exponents:
        return True
    return False if all(exponent < 0 for exponent in exponents) else None


def _writers(graph: OpGraph, job: TrainingJob, access: StateAccess) -> dict[str, list[str]]:
    """For each variable that is no parameter the ops that write it after its initial value.

    Slots are left out: what writes them writes a parameter, too.
    """
    initializers = {variable.initializer for variable in job.variables}
    parameters = {variable.name for variable in job.variables if variable.trainable}
    writers: dict[str, list[str]] = {}
    slots: set[str] = set()
    for op, names in access.writes.items():
        if op in initializers:
            continue
        for name in names - parameters:
            writers.setdefault(name, []).append(op)
        if names & parameters:
            slots |= names
    return {name: ops for name, ops in writers.items() if name not in slots}


def _readers(access: StateAccess) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for op, names in access.reads.items():
        for name in names:
            readers.setdefault(name, []).append(op)
    return readers


def _reads_variables(body: OpGraph, tensors: Iterable[TensorRef]) -> bool:
    """Whether something in a body is computed from a variable that it reads there."""
    behind = body.data_ancestors(tensor.op for tensor in tensors)
    return any(
        body[name].kind in op_types.ONLY_READ_VARIABLES or body[name].functions for name in behind
    )
