"""How does each tensor go with the examples of a batch?

One pass over what a tensor is computed from finds its course (`courses`) by the rule for each kind
of op (`rules`). Bodies of functions, branches and loops that are functions are followed, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from caramel.analyzers.examples.arithmetic import joined
from caramel.analyzers.examples.at import At
from caramel.analyzers.examples.batch import batch_of
from caramel.analyzers.examples.courses import (
    NOTHING,
    OF_ARRAY,
    PARAMETER,
    SHARED,
    ZERO,
    Course,
    Kind,
    local,
    unknown,
)
from caramel.analyzers.examples.outside import Outside
from caramel.analyzers.examples.row_rules import of_kind
from caramel.core import op_types
from caramel.core.facts import TrainingJob, WorkerInputs
from caramel.core.graph import Function, Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.variable_access import handle_of

Shape = tuple[int | None, ...] | None

_PASSES = 8  # after which what still changes in a loop is given up
_LOOPS = frozenset({"While", "StatelessWhile"})
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


class Examples:
    """The course of every tensor of a graph, found when it is asked for.

    Args:
        scalars: placeholders of unknown rank that are taken to be fed scalars; the others of them
            are taken to be fed a batch.
    """

    def __init__(
        self,
        graph: OpGraph,
        job: TrainingJob,
        inputs: WorkerInputs,
        scalars: frozenset[str] = frozenset(),
    ) -> None:
        self._graph, self._job, self._sources = graph, job, inputs
        rows = {name for name in inputs.reasons if graph[name].kind in op_types.PLACEHOLDERS}
        # Placeholders of unknown rank may be fed either; here they count as batches, in
        # `with_scalars` as scalars.
        rows |= inputs.scalar_only - scalars
        self.batch = batch_of(graph, job, inputs)
        trained = {v.handle: PARAMETER for v in job.variables if v.trainable}
        # Examples lie along the first axis, if there is one.
        fed = {name: Course(Kind.ROWS, axis=_first_axis(graph, name)) for name in rows}
        self._evaluation = _Evaluation(graph, graph.functions, {**trained, **fed}, {}, self.batch)

    def of(self, tensor: TensorRef) -> Course:
        """The course of a tensor."""
        return self._evaluation.of(tensor)

    def with_scalars(self) -> Examples:
        """The same where placeholders of unknown rank are fed scalars."""
        return Examples(self._graph, self._job, self._sources, self._sources.scalar_only)


def examples(graph: OpGraph, job: TrainingJob, inputs: WorkerInputs) -> Examples:
    """How each tensor goes with the examples."""
    return Examples(graph, job, inputs)


def _first_axis(graph: OpGraph, name: str) -> int | None:
    outputs = graph[name].outputs
    return None if not outputs or outputs[0].shape is None else 0


# Evaluation -------------------------------------------------------------------------------------


class _Evaluation:
    """Courses in one graph, or in one call of a function.

    Args:
        given: the courses of ops that are not computed: inputs, variables, arguments.
        specs: shapes of arguments, which the body does not tell.
    """

    def __init__(
        self,
        graph: OpGraph,
        functions: Mapping[str, Function],
        given: Mapping[str, Course],
        shapes: Mapping[str, Shape],
        batch: int | None,
        calls: tuple[str, ...] = (),
    ) -> None:
        self._graph, self._functions, self._batch, self._around = graph, functions, batch, calls
        self._given, self._shapes = given, shapes
        self._pushed = _pushed(graph)
        self._known: dict[str, Sequence[Course]] = {}

    def of(self, tensor: TensorRef) -> Course:
        """The course of a tensor."""
        if tensor.op not in self._known:
            self._evaluate(tensor.op)
        found = self._known[tensor.op]
        return found[tensor.index] if tensor.index < len(found) else found[-1] if found else SHARED

    def _evaluate(self, name: str) -> None:
        order = list(_order(self._graph, name, self._known, self._pushed))
        loops = any(self._graph[each].kind == "NextIteration" for each in order)
        changed: list[str] = []
        # In a loop values depend on those of the round before: repeat until nothing changes.
        for _ in range(_PASSES if loops else 1):
            changed = []
            for each in order:
                courses = self._courses(self._graph[each])
                if self._known.get(each) != courses:
                    self._known[each] = courses
                    changed.append(each)
            if not changed:
                return
        if loops:
            for each in changed:
                # It still changes after so many rounds: give up.
                where = f"'{each}' ({self._graph[each].kind})"
                self._known[each] = [
                    unknown(f"{where} changes from one round of a loop to the next")
                ]

    def _read(self, tensor: TensorRef) -> Course:
        """An input; what a loop has not put out yet is nothing."""
        found = self._known.get(tensor.op)
        if found is None:
            return NOTHING
        return found[tensor.index] if tensor.index < len(found) else found[-1] if found else SHARED

    def shape(self, tensor: TensorRef) -> Shape:
        """The static shape of a tensor."""
        if tensor.op in self._shapes:
            return self._shapes[tensor.op]
        return self._graph.spec(tensor).shape

    def _courses(self, op: Op) -> Sequence[Course]:
        if op.name in self._given:
            given = self._given[op.name]
            default = self._read(op.inputs[0]) if op.inputs else SHARED
            # A placeholder whose default value is no batch is taken for an option, such as a rate.
            if given.axis is None and default.kind is not Kind.ROWS and op.inputs:
                return [default]  # a placeholder of unknown rank with a default value
            return [given]
        inputs = tuple(self._read(tensor) for tensor in op.inputs)
        if op.kind == "Const":
            numbers = self._graph.numbers.get(op.name)
            # Zeros are noted, since adding them changes nothing.
            return [ZERO if numbers and not any(numbers) else SHARED]
        at = At(self._graph, op, inputs, self._batch, self.shape)
        if _begins_gradient_array(self._graph, op):
            return [NOTHING]
        # v1 loops keep forward values on stacks; no edge connects a push with its pop.
        if op.name in self._pushed:
            return [joined([self._read(each) for each in self._pushed[op.name]], at.where)]
        if op.kind == "Merge" and (bad := self._passed_on(op, inputs, at.where)) is not None:
            return [bad, SHARED]
        called = self._called(op)
        if called:
            return self._call(at, called)
        if op.kind in op_types.INPUTS and not any(c.kind is Kind.ROWS for c in inputs):
            return [_input(spec, at.where) for spec in op.outputs] or [SHARED]
        return of_kind(at)

    def _passed_on(self, op: Op, inputs: Sequence[Course], where: str) -> Course | None:
        """What is wrong with a loop that passes a value on from one example to the next."""
        for tensor, course in zip(op.inputs, inputs, strict=True):
            source = self._graph[tensor.op]
            # A loop over the examples may carry arrays from one round to the next, but no value
            # that is computed from single examples.
            is_carried = source.kind == "NextIteration" and course.axis == OF_ARRAY
            written = self._graph[source.inputs[0].op].kind if is_carried else ""
            if is_carried and not written.startswith("TensorArray"):
                return local(f"{where} goes from one example to the next")
        return None

    # Functions

    def _called(self, op: Op) -> list[str]:
        names = [op.kind] if op.kind in self._functions else list(op.functions)
        if op.kind in _LOOPS | op_types.CONDITIONALS | _CALLS or op.kind in self._functions:
            return [name for name in names if name in self._functions]
        return []

    def _call(self, at: At, called: Sequence[str]) -> Sequence[Course]:
        op = at.op
        # A recursion would be followed without end.
        if any(name in self._around for name in called):
            return [unknown(f"{at.where} calls itself")] * max(1, len(op.outputs))
        shapes = [self.shape(tensor) for tensor in op.inputs]
        if op.kind in _LOOPS:
            return self._loop(at, called[0], shapes)
        if op.kind in op_types.CONDITIONALS:
            results = [self._body(at, name, at.inputs[1:], shapes[1:]) for name in called]
            # The condition is not looked at: all workers are taken to choose alike.
            return [joined(each, at.where) for each in zip(*results, strict=False)]
        return self._body(at, called[0], at.inputs, shapes)

    def _loop(self, at: At, body: str, shapes: Sequence[Shape]) -> Sequence[Course]:
        """What a loop puts out: its state, gone through until nothing changes."""
        state = list(at.inputs)
        for _ in range(_PASSES):
            after = [
                local(f"{at.where} goes from one example to the next")
                # A recurrence over the batch. Variants are lists, into which the loop may go on
                # writing.
                if course.axis == OF_ARRAY and spec.dtype != "variant"
                else course
                for course, spec in zip(
                    self._body(at, body, state, shapes), op_outputs(at.op, len(state)), strict=False
                )
            ]
            new = [joined(pair, at.where) for pair in zip(state, after, strict=False)]
            if new == state:
                return state
            state = new
        return [
            now if now == then else unknown(f"{at.where} changes it from one round to the next")
            for now, then in zip(state, after, strict=False)
        ]

    def _body(
        self, at: At, name: str, inputs: Sequence[Course], shapes: Sequence[Shape]
    ) -> list[Course]:
        """What one call of a function returns."""
        tensors = at.op.inputs[len(at.op.inputs) - len(inputs) :]
        function = self._functions[name]
        arguments = function.arguments
        given = dict(zip(arguments, inputs, strict=False))
        inner = _Evaluation(
            function.body,
            self._functions,
            given,
            dict(zip(arguments, shapes, strict=False)),
            self._batch,
            (*self._around, name),
        )
        # In a loop an argument is another value in each round, and not what was passed.
        outer = {} if at.op.kind in _LOOPS else dict(zip(arguments, tensors, strict=False))
        seen = Outside(inputs, outer)
        return [seen.course(inner.of(result)) for result in function.results]


def op_outputs(op: Op, number: int) -> Sequence[TensorSpec]:
    """What is known of an op's outputs."""
    return op.outputs or (TensorSpec("unknown", None),) * number


def _input(spec: TensorSpec, where: str) -> Course:
    """What comes from outside: a batch unless it is a scalar."""
    # A scalar from outside is taken for an option that is the same everywhere.
    if spec.shape == () or spec.dtype in ("resource", "variant"):
        return SHARED
    return Course(Kind.ROWS, axis=0)


def _pushed(graph: OpGraph) -> Mapping[str, tuple[TensorRef, ...]]:
    """What ops take from the stacks on which v1 loops keep forward values."""
    values: dict[str, list[TensorRef]] = {}
    for op in graph:
        if op.kind == op_types.STACK_PUSH:
            values.setdefault(handle_of(graph, op.inputs[0]), []).append(op.inputs[1])
    return {
        op.name: tuple(values.get(handle_of(graph, op.inputs[0]), ()))
        for op in graph
        if values and op.kind == op_types.STACK_POP
    }


def _begins_gradient_array(graph: OpGraph, op: Op) -> bool:
    """Whether an op hands the flow of a v1 array to that of its gradients, which is still empty."""
    if op.kind != "Identity" or not any(
        graph[source].kind == "TensorArrayGradV3" for source in op.control_inputs
    ):
        return False
    waiting, seen = [op.inputs[0].op], {op.name}
    while waiting:
        before = graph[waiting.pop()]
        # The array of gradients takes over the flow tensor of the forward array, but none of its
        # values.
        if before.kind in ("TensorArrayWriteV3", "TensorArrayScatterV3"):
            return graph[handle_of(graph, before.inputs[0])].kind == "TensorArrayV3"
        if before.kind in op_types.PASS_THROUGH and before.name not in seen:
            seen.add(before.name)
            waiting += [tensor.op for tensor in before.inputs]
    return False


def _order(
    graph: OpGraph,
    name: str,
    known: Mapping[str, object],
    pushed: Mapping[str, tuple[TensorRef, ...]],
) -> Iterator[str]:
    """What an op is computed from, and the op: every op after its inputs, but for loops."""

    def inputs_of(name: str) -> Iterator[TensorRef]:
        return iter((*graph[name].inputs, *pushed.get(name, ())))

    roots, done, seen = [name], set(known), set(known)
    while roots:
        waiting: list[tuple[str, Iterator[TensorRef]]] = []
        root = roots.pop()
        if root in seen:
            continue
        seen.add(root)
        waiting.append((root, inputs_of(root)))
        while waiting:
            current, inputs = waiting[-1]
            for tensor in inputs:
                if tensor.op in seen:
                    continue
                # This edge closes a loop: what is behind it comes later, as a root of its own.
                if graph[current].kind == "Merge" and graph[tensor.op].kind == "NextIteration":
                    roots.append(tensor.op)
                    continue
                seen.add(tensor.op)
                waiting.append((tensor.op, inputs_of(tensor.op)))
                break
            else:
                waiting.pop()
                if current not in done:
                    done.add(current)
                    yield current
