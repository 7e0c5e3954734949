"""Which variables are seeds of stateless random ops, as that of a Keras dropout layer is?

Stateless ops draw the same from the same seed. Where a variable holds the seed and is counted up in
each step, it is what a generator's state is to a stateful op: each worker needs a seed of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from caramel.core import op_types
from caramel.core.dtypes import is_integer
from caramel.core.facts import StateAccess, TrainingJob, Variable
from caramel.core.graph import OpGraph


@dataclass(frozen=True, slots=True)
class SeedStates:
    """Variables that hold seeds, and the ops that draw from them.

    Attributes:
        variables: their names. The first element is a seed, the last one may be a counter.
        draws: ops that read a seed computed from one.
    """

    variables: frozenset[str] = frozenset()
    draws: frozenset[str] = frozenset()


def seed_states(graph: OpGraph, job: TrainingJob, access: StateAccess) -> SeedStates:
    """The variables from which nothing but seeds and their own next values are computed."""
    candidates = {v.name for v in job.variables if _may_hold_seed(v)}
    seeds = [
        (op.name, op.inputs[op_types.SEED_INPUTS[op.kind]])
        for op in graph
        if op.kind in op_types.SEED_INPUTS
    ]
    if not (candidates and seeds):
        return SeedStates()
    found: dict[str, set[str]] = {}
    for draw, seed in seeds:
        for name in graph.data_ancestors([seed.op]):
            for variable in access.reads.get(name, ()):
                if variable in candidates:
                    found.setdefault(variable, set()).add(draw)
    held = frozenset(name for name in found if _holds_only_seed(graph, job, access, name))
    return SeedStates(held, frozenset(draw for name in held for draw in found[name]))


def _may_hold_seed(variable: Variable) -> bool:
    spec = variable.spec
    # A step counter is one number.
    return is_integer(spec.dtype) and len(spec.shape or ()) == 1 and (spec.elements or 0) >= 2


def _holds_only_seed(graph: OpGraph, job: TrainingJob, access: StateAccess, name: str) -> bool:
    """Whether no other variable and not the loss depends on it, but by what is drawn."""
    waiting = [op for op, read in access.reads.items() if name in read]
    seen = set(waiting)
    while waiting:
        op = waiting.pop()
        if access.writes.get(op, frozenset()) - {name} or op == job.loss.op:
            return False
        for consumer in _readers(graph, op):
            if consumer not in seen:
                seen.add(consumer)
                waiting.append(consumer)
    return True


def _readers(graph: OpGraph, name: str) -> Iterator[str]:
    """What reads an op's values, but for draws that take them as their seed only."""
    for consumer in graph.consumers[name]:
        op = graph[consumer]
        read = [number for number, tensor in enumerate(op.inputs) if tensor.op == name]
        if read and read != [op_types.SEED_INPUTS.get(op.kind)]:
            yield consumer
