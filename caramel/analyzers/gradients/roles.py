"""What may the tensors before an update be of the gradient of a parameter?

All of it, or of a sparse one the values of rows or their numbers. A sparse gradient is applied by
an op that takes rows, or it is made dense before by adding up its rows. Tensors are told by their
dtypes and shapes, on ways along which the parameter's shape is kept. An update may also be inside
a function, such as a branch, that an op of the graph calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from caramel.analyzers.gradients.regions import updates
from caramel.core import op_types
from caramel.core.facts import StateAccess, TrainingJob, Variable
from caramel.core.graph import Function, OpGraph, TensorSpec
from caramel.core.names import TensorRef
from caramel.core.variable_access import argument_at, handle_of, state_access

DENSE, VALUES, ROWS = "dense", "values", "rows"
"""What a tensor may be of a gradient: all of it, or values and row numbers of a sparse one."""

UNCERTAIN = 1 << 60
"""Added to the cost of what is taken only if there is nothing else: more than any sum of sizes."""

Serves = Mapping[str, frozenset[str]]
"""The parameters whose updates read a variable; see `Regions`."""

Read = tuple[str, TensorRef, str]
"""A parameter, what its update reads, and what that may be of its gradient."""


def read_by(
    graph: OpGraph, job: TrainingJob, access: StateAccess, serves: Serves, sink: str
) -> Iterator[Read]:
    """What the inputs of an update may be, and of whose gradient."""
    op = graph[sink]
    functions = [graph.functions[name] for name in op.functions if name in graph.functions]
    if functions and len(functions) == len(op.functions):
        calls = [_Call(graph, job, sink, function) for function in functions]
        yield from _read_by_calls(calls, {name: serves.get(name) for name in access.writes[sink]})
        return
    for parameter in parameters_of(access, serves, sink):
        for tensor in op.inputs:
            for role in (VALUES, ROWS) if _takes_rows(op.kind) else (DENSE,):
                yield parameter, tensor, role


def parameters_of(access: StateAccess, serves: Serves, sink: str) -> list[str]:
    """The parameters that an update serves: what it writes itself, or else by way of slots."""
    written = sorted(access.writes[sink])
    own = [name for name in written if name in serves.get(name, ())]
    # An update that writes only slots, or a sum of gradients that another step applies.
    return own or sorted({p for name in written for p in serves.get(name, ())})


def before(
    graph: OpGraph,
    starts: Iterable[tuple[TensorRef, str]],
    variable: Variable,
    goes_on: Callable[[TensorRef], bool],
) -> Iterator[tuple[TensorRef, str, int]]:
    """The given tensors and those before them that may be of a parameter's gradient.

    Args:
        starts: tensors, and what they may be.
        goes_on: whether what a tensor is computed from is wanted, too.

    Yields:
        a tensor, what it may be, and what it costs to aggregate it.
    """
    waiting, seen = list(starts), set()
    while waiting:
        tensor, role = waiting.pop()
        if (tensor, role) in seen:
            continue
        seen.add((tensor, role))
        cost = cost_of(graph.spec(tensor), variable, role)
        if cost is not None:
            yield tensor, role, cost
            if goes_on(tensor):
                waiting += _behind(graph, tensor, role)


def cost_of(spec: TensorSpec, variable: Variable, role: str = DENSE) -> int | None:
    """Bytes that aggregating a tensor as the variable's gradient takes; None: it cannot be that.

    The variable's size stands for the tensor's, of whose shape not everything may be known. Such a
    tensor is taken only where there is no other way: a dimension that is open may be the batch's.
    """
    wanted = variable.spec
    if role == ROWS:
        is_rows = spec.dtype in ("int32", "int64") and (spec.shape is None or len(spec.shape) == 1)
        return _cost_of_all(variable, role) if is_rows and wanted.shape else None
    if spec.dtype != wanted.dtype or wanted.shape is None:
        return None
    cost = _cost_of_all(variable, role)
    if spec.shape is None:
        return cost + UNCERTAIN
    if len(spec.shape) != len(wanted.shape):
        return None
    # A sparse gradient has as many rows as were looked up.
    begin = 1 if role == VALUES else 0
    pairs = list(zip(spec.shape[begin:], wanted.shape[begin:], strict=True))
    if any(given not in (None, expected) for given, expected in pairs):
        return None
    return cost + UNCERTAIN if any(given is None for given, _ in pairs) else cost


def _cost_of_all(variable: Variable, role: str) -> int:
    size = variable.spec.bytes or 0
    # An empty tensor costs something, too: a cut without cost could lie anywhere. Values and
    # numbers of rows together cost less than the whole: few rows are looked up.
    return 2 + size if role == DENSE else 1 + size // 4


def _takes_rows(kind: str) -> bool:
    return kind in op_types.SPARSE_UPDATES or kind.startswith(op_types.SPARSE_UPDATE_PREFIX)


def _behind(graph: OpGraph, tensor: TensorRef, role: str) -> Iterator[tuple[TensorRef, str]]:
    """What a tensor is computed from, and what that may be."""
    op = graph[tensor.op]
    if role == DENSE and op.kind == op_types.SUM_OF_ROWS:
        # Rows that are added up to a dense tensor: before that it is a sparse gradient.
        yield op.inputs[0], VALUES
        yield op.inputs[1], ROWS
        return
    inputs = op.inputs
    if op.kind == "IdentityN":
        inputs = (op.inputs[tensor.index],)
    for each in inputs:
        yield each, role


# Inside functions ---------------------------------------------------------------------------------


class _Call:
    """A function that an update calls, as a graph with variables of its own.

    Args:
        graph: that of the update.
        sink: the update.
        function: one of those it calls.
    """

    def __init__(self, graph: OpGraph, job: TrainingJob, sink: str, function: Function) -> None:
        op = graph[sink]
        self.inputs: dict[str, TensorRef] = {}  # by the argument's name
        for position, tensor in enumerate(op.inputs):
            at = argument_at(op.kind, position)
            if 0 <= at < len(function.arguments):
                self.inputs[function.arguments[at]] = tensor
        handles = {handle_of(graph, tensor): name for name, tensor in self.inputs.items()}
        # No op of the function is called "".
        variables = [replace(v, handle=handles.get(v.handle, "")) for v in job.variables]
        self.graph = replace(function.body, functions=graph.functions)
        self.job = replace(job, variables=tuple(variables), serves={})
        self.access = state_access(self.graph, self.job)

    def updates(self, serves: Serves) -> tuple[Sequence[str], Serves]:
        """Ops that update parameters, or what serves them; and all that is known to serve."""
        job = replace(self.job, serves=serves)
        return updates(self.graph, job, self.access, set(self.graph.ops), frozenset())


def _read_by_calls(
    calls: Sequence[_Call], elsewhere: Mapping[str, frozenset[str] | None]
) -> Iterator[Read]:
    """What functions read that update parameters, as far as it is given to them.

    Args:
        calls: the branches of one op, say.
        elsewhere: variables that they write, and the parameters that these serve outside.
    """
    serves, before_all = dict[str, frozenset[str]](), None
    while serves != before_all:  # one branch may gather what another one applies
        before_all = dict(serves)
        for call in calls:
            serves |= call.updates(serves)[1]
    serves |= {n: found for n, found in elsewhere.items() if found and n not in serves}
    for call in calls:
        for sink in call.updates(serves)[0]:
            for parameter, read, role in read_by(call.graph, call.job, call.access, serves, sink):
                variable = call.job.variable(parameter)
                for tensor, own, _ in before(call.graph, [(read, role)], variable, lambda _: True):
                    if tensor.op in call.inputs:
                        yield parameter, call.inputs[tensor.op], own
