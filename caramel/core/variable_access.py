"""Which variables does each op read and write?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from caramel.core import op_types
from caramel.core.errors import UnsupportedOpError
from caramel.core.facts import StateAccess, TrainingJob
from caramel.core.graph import Function, Op, OpGraph
from caramel.core.names import TensorRef


def state_access(graph: OpGraph, job: TrainingJob) -> StateAccess:
    """The variables that each op of the graph reads and writes.

    An op of a kind that is not known to only read or only write is taken to do both; an op that
    calls functions does what their bodies do to the arguments it passes.

    Raises:
        UnsupportedOpError: which variable an op uses is known only when it runs.
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
            # Handles go through loop frames and branches, and through the functions that ops call.
            found = origins(graph, tensor, graph.functions)
            variables = {names[origin] for origin in found if origin in names}
            if not variables:
                continue
            does_read, does_write = _effect(op, position, functions)
            if len(found) > 1 and (does_read or does_write):
                raise UnsupportedOpError(_doubtful(op, tensor, variables))
            read |= variables if does_read else set()
            written |= variables if does_write else set()
        if read:
            reads[op.name] = frozenset(read)
        if written:
            writes[op.name] = frozenset(written)
    return StateAccess(reads, writes)


def _doubtful(op: Op, tensor: TensorRef, variables: Iterable[str]) -> str:
    """Why an op is refused that uses one of several variables."""
    told = " or ".join(f"'{name}'" for name in sorted(variables))
    return (
        f"'{op.name}' ({op.kind}) uses variable {told}, as a conditional, a loop or a function "
        f"decides that puts out the handle '{tensor}' when the step runs; read or write each "
        "variable by its own handle, inside the branches"
    )


def fills_table(op: Op) -> bool:
    """Whether an op changes what is in a table."""
    return op.kind.startswith(op_types.TABLE_PREFIX) and op.kind not in op_types.TABLE_READS


def handle_of(graph: OpGraph, tensor: TensorRef) -> str:
    """The op that first put out what arrives as `tensor` through passing ops, loops and functions;
    where it may be one of several, the op that puts out `tensor`."""
    found = origins(graph, tensor, graph.functions)
    return found.pop() if len(found) == 1 else tensor.op


def origins(
    graph: OpGraph,
    tensor: TensorRef,
    functions: Mapping[str, Function],
    around: frozenset[str] = frozenset(),
) -> set[str]:
    """The ops that may have put out first what arrives as `tensor`.

    Args:
        functions: those of the graph, or of the one in which it is a function's body.
        around: the functions within which it is.
    """
    if not _hands_on(graph[tensor.op]):
        return {tensor.op}
    found, seen, waiting = set[str](), set[TensorRef](), [tensor]
    while waiting:
        tensor = waiting.pop()
        if tensor in seen:
            continue
        seen.add(tensor)
        op = graph[tensor.op]
        if op.kind == "Merge":
            waiting += op.inputs
        elif op.kind in op_types.PASS_THROUGH and op.inputs:
            waiting.append(op.inputs[0])
        elif op.kind in op_types.FUNCTIONAL_LOOPS and tensor.index < len(op.inputs):
            # In the first round it is what comes in, and then what its body has made of that.
            waiting.append(op.inputs[tensor.index])
            body = [name for name in op.functions[:1] if name in functions]
            for argument in _returned(body, tensor.index, functions, around):
                own = -1 if argument is None else argument
                if 0 <= own < len(op.inputs):
                    waiting.append(TensorRef(op.name, own))
                else:
                    found.add(op.name)
        elif op.functions:
            for argument in _returned(op.functions, tensor.index, functions, around):
                own = -1 if argument is None else argument + _SELECTOR_INPUTS.get(op.kind, 0)
                if 0 <= own < len(op.inputs):
                    waiting.append(op.inputs[own])
                else:
                    found.add(op.name)
        else:
            found.add(op.name)
    return found


def _hands_on(op: Op) -> bool:
    """Whether an op may put out what it gets."""
    return bool(op.functions) or op.kind in _HANDING_ON


def _returned(
    called: Sequence[str], index: int, functions: Mapping[str, Function], around: frozenset[str]
) -> Iterator[int | None]:
    """Which arguments functions may return as their result of an index; None for something else."""
    for name in called:
        function = functions.get(name)
        if function is None or name in around or index >= len(function.results):
            yield None
            continue
        result = function.results[index]
        for origin in sorted(origins(function.body, result, functions, around | {name})):
            is_argument = origin in function.arguments
            yield function.arguments.index(origin) if is_argument else None


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
        for op, at in _uses(function, graph.functions)[function.arguments[argument]]:
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


_HANDING_ON = op_types.PASS_THROUGH | op_types.FUNCTIONAL_LOOPS

# `If` and `Case` pass their inputs from the second on; other calls pass all of them.
_SELECTOR_INPUTS = {"If": 1, "StatelessIf": 1, "Case": 1, "StatelessCase": 1}


class _FunctionEffects:
    """What library functions do to their arguments, each looked at once."""

    def __init__(self, graph: OpGraph) -> None:
        self._functions = graph.functions
        self._known: dict[tuple[str, int], tuple[bool, bool]] = {}
        self._uses: dict[str, Mapping[str, Sequence[tuple[Op, int]]]] = {}

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

    def _uses_in(self, function: Function) -> Mapping[str, Sequence[tuple[Op, int]]]:
        if function.name not in self._uses:
            self._uses[function.name] = _uses(function, self._functions)
        return self._uses[function.name]

    def _look(self, name: str, argument: int) -> tuple[bool, bool]:
        function = self._functions.get(name)
        if function is None or not 0 <= argument < len(function.arguments):
            # An argument that the function does not have is not touched.
            return function is None, function is None
        reads = writes = False
        for op, position in self._uses_in(function)[function.arguments[argument]]:
            read, write = _effect(op, position, self)
            reads, writes = reads or read, writes or write
        return reads, writes


def _uses(
    function: Function, functions: Mapping[str, Function]
) -> Mapping[str, Sequence[tuple[Op, int]]]:
    """Ops that may take each argument of a function, also through passing ops and calls."""
    found: dict[str, list[tuple[Op, int]]] = {name: [] for name in function.arguments}
    for op in function.body:
        if op.kind in op_types.PASS_THROUGH:
            continue
        for position, tensor in enumerate(op.inputs):
            for name in origins(function.body, tensor, functions, frozenset((function.name,))):
                if name in found:
                    found[name].append((op, position))
    return found
