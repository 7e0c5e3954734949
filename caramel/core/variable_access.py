"""Which variables does each op read and write?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from caramel.core import op_types
from caramel.core.facts import StateAccess, TrainingJob
from caramel.core.graph import Function, Op, OpGraph
from caramel.core.names import TensorRef


def state_access(graph: OpGraph, job: TrainingJob) -> StateAccess:
    """The variables that each op of the graph reads and writes.

    An op of a kind that is not known to only read or only write is taken to do both; an op that
    calls functions does what their bodies do to the arguments it passes.
    """
    names = {variable.handle: variable.name for variable in job.variables}
    functions = _FunctionEffects(graph)
    reads: dict[str, frozenset[str]] = {}
    writes: dict[str, frozenset[str]] = {}
    for op in graph:
        if op.kind in op_types.PASS_THROUGH or op.kind in op_types.NO_VALUE_OF_VARIABLES:
            continue
        read, written = set(), set()
        for position, tensor in enumerate(op.inputs):
            # Handles go through loop frames and branches, and into the functions that an op calls.
            variable = names.get(handle_of(graph, tensor))
            if variable is None:
                continue
            does_read, does_write = _effect(op, position, functions)
            read |= {variable} if does_read else set()
            written |= {variable} if does_write else set()
        if read:
            reads[op.name] = frozenset(read)
        if written:
            writes[op.name] = frozenset(written)
    return StateAccess(reads, writes)


def fills_table(op: Op) -> bool:
    """Whether an op changes what is in a table."""
    return op.kind.startswith(op_types.TABLE_PREFIX) and op.kind not in op_types.TABLE_READS


def handle_of(graph: OpGraph, tensor: TensorRef) -> str:
    """The op that first put out what arrives as `tensor` through passing ops."""
    seen: set[str] = set()
    op = graph[tensor.op]
    while op.name not in seen:
        seen.add(op.name)
        if op.kind in op_types.PASS_THROUGH and op.inputs:
            tensor = op.inputs[0]
        elif op.kind in op_types.FUNCTIONAL_LOOPS and tensor.index < len(op.inputs):
            tensor = op.inputs[tensor.index]  # it puts out what comes in, in the same order
        else:
            break
        op = graph[tensor.op]
    return op.name


def argument_at(kind: str, position: int) -> int:
    """Which argument of the functions that an op calls its input at `position` is; or -1."""
    return position - _SELECTOR_INPUTS.get(kind, 0)


def uses_of(
    graph: OpGraph, kind: str, called: Iterable[str], position: int
) -> Iterator[tuple[Function, Op, int]]:
    """Where functions use what an op that calls them gets as its input at `position`.

    Yields:
        a function, an op of it that takes it and calls no other function, and as which of its
        inputs.
    """
    argument = argument_at(kind, position)
    for name in called:
        function = graph.functions.get(name)
        if function is None or not 0 <= argument < len(function.arguments):
            continue
        for op, at in _uses(function, function.arguments[argument]):
            if op.functions:
                yield from uses_of(graph, op.kind, op.functions, at)
            else:
                yield function, op, at


def _effect(op: Op, position: int, functions: _FunctionEffects) -> tuple[bool, bool]:
    """Whether `op` reads and writes the variable whose handle is its input at `position`."""
    if op.functions:
        return functions.of_call(op.kind, op.functions, position)
    return _effect_of_kind(op.kind)


def _effect_of_kind(kind: str) -> tuple[bool, bool]:
    if kind in op_types.NO_VALUE_OF_VARIABLES:
        return False, False
    # What is not known is taken to do both.
    return kind not in op_types.ONLY_WRITE_VARIABLES, kind not in op_types.ONLY_READ_VARIABLES


# `If` and `Case` pass their inputs from the second on; other calls pass all of them.
_SELECTOR_INPUTS = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}


class _FunctionEffects:
    """What library functions do to their arguments, each looked at once."""

    def __init__(self, graph: OpGraph) -> None:
        self._functions = graph.functions
        self._known: dict[tuple[str, int], tuple[bool, bool]] = {}

    def of_call(self, kind: str, called: Iterable[str], position: int) -> tuple[bool, bool]:
        """Whether any of the called functions reads and writes the call's input."""
        argument = argument_at(kind, position)
        effects = [self.of_argument(name, argument) for name in called]
        return any(read for read, _ in effects), any(write for _, write in effects)

    def of_argument(self, name: str, argument: int) -> tuple[bool, bool]:
        """Whether a function reads and writes the variable it gets as its n-th argument."""
        key = (name, argument)
        if key not in self._known:
            self._known[key] = (False, False)  # ends the search in recursive functions
            self._known[key] = self._look(name, argument)
        return self._known[key]

    def _look(self, name: str, argument: int) -> tuple[bool, bool]:
        function = self._functions.get(name)
        if function is None or not 0 <= argument < len(function.arguments):
            # An argument that the function does not have is not touched.
            return function is None, function is None
        reads = writes = False
        for op, position in _uses(function, function.arguments[argument]):
            read, write = _effect(op, position, self)
            reads, writes = reads or read, writes or write
        return reads, writes


def _uses(function: Function, argument: str) -> list[tuple[Op, int]]:
    """Ops that take an argument of their function, also through passing ops."""
    return [
        (op, position)
        for op in function.body
        if op.kind not in op_types.PASS_THROUGH
        for position, tensor in enumerate(op.inputs)
        if handle_of(function.body, tensor) == argument
    ]
