"""Which server has which variables?

A parameter and the slots that its update touches are together, since one op updates them. All steps
of a job find the same, since they work on the same variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from caramel.core.decision import Owner
from caramel.core.errors import PlanError
from caramel.core.facts import StateAccess, Variable
from caramel.core.planned_job import PlannedJob


def owners(
    job: PlannedJob, access: StateAccess, joined: Iterable[frozenset[str]] = ()
) -> tuple[Owner, ...]:
    """A server for each variable that is on one, balanced by the bytes of parameters, which travel.

    The longest first, each to the server that has the fewest bytes; ties go by name, and to the
    first server.

    Raises:
        PlanError: some servers would have nothing to do; names them.
    """
    served = [variable for variable in job.variables if variable.name in job.served]
    together = _together(served, [*_touched(access).values(), *joined])
    sizes = {names: _parameter_bytes(job, names) for names in together}
    homes = balanced(sizes, len(job.servers))
    found = {name: server for names, server in homes.items() for name in names}
    # What travels nowhere (a counter) is somewhere, but makes no load.
    busy = {server for names, server in homes.items() if sizes[names]}
    idle = [device for server, device in enumerate(job.servers) if server not in busy]
    if idle and served:
        raise PlanError(
            f"{len(job.servers)} parameter servers are too many: {', '.join(idle)} would have no "
            f"parameter to serve, since there are {sum(size > 0 for size in sizes.values())} that "
            "can be apart; leave them out"
        )
    return tuple(Owner(variable.name, found[variable.name]) for variable in served)


def taken_together(job: PlannedJob, access: StateAccess) -> dict[tuple[str, ...], str]:
    """Parameters that are together since an op takes them all, as a function or a loop does; by
    these the first such op."""
    parameters = {v.name for v in job.variables if v.trainable and v.name in job.served}
    found: dict[tuple[str, ...], str] = {}
    for op, names in _touched(access).items():
        if len(own := tuple(sorted(names & parameters))) > 1:
            found.setdefault(own, op)
    return found


def balanced(sizes: Mapping[Any, int], servers: int) -> dict[Any, int]:
    """A server for each of what has some size: the longest first, each to the server that has the
    fewest bytes. Ties go by name, and to the first server."""
    loads, found = [0] * servers, dict[Any, int]()
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        found[name] = loads.index(min(loads))
        loads[found[name]] += sizes[name]
    return found


def _parameter_bytes(job: PlannedJob, names: Iterable[str]) -> int:
    """Bytes of the parameters among variables, also of those that another step trains."""
    variables = (job.variable_of[name] for name in names)
    return sum(variable.spec.bytes or 0 for variable in variables if variable.trainable)


def _together(
    variables: Sequence[Variable], joined: Iterable[frozenset[str]]
) -> list[tuple[str, ...]]:
    """The variables in sets, sorted, so that what is joined is in one."""
    first: dict[str, str] = {variable.name: variable.name for variable in variables}

    def root(name: str) -> str:
        while first[name] != name:
            first[name] = name = first[first[name]]
        return name

    for names in joined:
        roots = sorted({root(name) for name in names if name in first})
        for other in roots[1:]:
            first[other] = roots[0]
    found: dict[str, list[str]] = {}
    for name in sorted(first):
        found.setdefault(root(name), []).append(name)
    return [tuple(each) for each in found.values()]


def _touched(access: StateAccess) -> Mapping[str, frozenset[str]]:
    """The variables that each op reads or writes."""
    nothing: frozenset[str] = frozenset()
    return {
        name: access.reads.get(name, nothing) | access.writes.get(name, nothing)
        for name in dict.fromkeys([*access.reads, *access.writes])
    }
