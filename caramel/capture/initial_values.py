"""What do the initial values of variables need: feeds, and other variables before them?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.core import op_types
from caramel.core.errors import FeedError
from caramel.core.facts import TrainingJob, Variable
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef


def in_order(graph: OpGraph, variables: Sequence[Variable]) -> list[list[Variable]]:
    """Variables in portions: the initial values of each read only variables of those before.

    A read in a conditional does not count: TensorFlow makes such ones, with the initial value
    where the variable has none yet.
    """
    reading = _unconditional_reads(graph, variables)
    if not reading:
        return [list(variables)]
    needed = {
        v.name: {reading[op] for op in graph.ancestors([v.initializer]) if op in reading}
        for v in variables
    }
    portions, left = [], {variable.name: variable for variable in variables}
    while left:
        ready = [v for v in left.values() if left.keys().isdisjoint(needed[v.name] - {v.name})]
        ready = ready or list(left.values())  # a cycle; TensorFlow says what is missing
        portions.append(ready)
        for variable in ready:
            del left[variable.name]
    return portions


def _unconditional_reads(graph: OpGraph, variables: Sequence[Variable]) -> dict[str, str]:
    """Ops among what computes initial values that read a variable, and which."""
    names = {variable.handle: variable.name for variable in variables}
    return {
        name: names[graph[name].inputs[0].op]
        for name in graph.ancestors([v.initializer for v in variables])
        if graph[name].kind == "ReadVariableOp"
        # In a branch of a conditional a read waits for the branch.
        and not graph[name].control_inputs
        and graph[name].inputs[0].op in names
    }


def check_initial_feeds(graph: OpGraph, job: TrainingJob, fed: Iterable[TensorRef]) -> None:
    """Raise unless all placeholders that initial values need are fed, and nothing else is.

    Raises:
        FeedError: names the variable, the placeholder and the argument.
    """
    given = frozenset(tensor.op for tensor in fed)
    behind = graph.ancestors(_initializers(job).values(), stop=given)
    for op in sorted(given - behind):
        raise FeedError(
            f"initial_feeds: no initial value of a variable depends on '{op}'; feed it to each "
            "step that needs it"
        )
    missing = first_missing_feed(graph, job, given)
    if missing is not None:
        what, op = missing
        raise FeedError(
            f"{what} depends on placeholder '{op}'; pass "
            f"model.session(initial_feeds={{'{op}:0': ...}})"
        )


def first_missing_feed(
    graph: OpGraph, job: TrainingJob, given: frozenset[str]
) -> tuple[str, str] | None:
    """What is initialised from a placeholder that is not given, and from which; None if nothing."""
    initializers = _initializers(job)
    behind = graph.ancestors(initializers.values(), stop=given)
    missing = {op for op in behind - given if graph[op].kind in op_types.WITHOUT_DEFAULT}
    if not missing:
        return None
    return next(
        (what, op)
        for what, initializer in initializers.items()
        for op in sorted(missing & graph.ancestors([initializer], stop=given))
    )


def _initializers(job: TrainingJob) -> dict[str, str]:
    """The op that initialises each variable and table, by what it is called in messages."""
    initializers = {
        f"the initial value of variable '{v.name}'": v.initializer for v in job.variables
    }
    return initializers | {f"lookup table op '{op}'": op for op in job.table_initializers}
