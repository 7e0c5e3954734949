"""What a planner decides: groups of gradients, parts, control edges and gates.

Whatever else planners come to decide has its place here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from caramel.core.errors import PlanError
from caramel.core.names import part_name
from caramel.core.patterns import CHUNK_ALIGNMENT_BYTES, SERVER, check_pattern
from caramel.core.placement import Placement

ALL_GATHER = "all_gather"
FACTORS = "factors"


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of a dense gradient that are aggregated apart from its others.

    Attributes:
        parameter: whose gradient it is.
        begin: its first element, counted in the flattened gradient.
        end: the element behind its last one.
    """

    parameter: str
    begin: int
    end: int

    @property
    def name(self) -> str:
        """What it is called among the members of groups."""
        return part_name(self.parameter, self.begin, self.end)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Group:
    """Gradients that are aggregated together.

    Attributes:
        name: unique; stands in the names of the nodes.
        members: parameters, or names of parts of their gradients, in the order in which they lie in
            the group's memory. They have one dtype, and are all dense unless the group is one
            sparse gradient alone.
        pattern: one of `patterns.PATTERNS`, `server` where all is sent to the parameter server of
            its members, `all_gather` for one sparse gradient, or `factors` for one gradient that
            every worker computes from the factors of all workers
            (`modifiers.aggregation.factors`).
        depth: into how many parts the group is split that are aggregated side by side.
        shift: added to the workers' numbers in the pattern, to spread small groups over them.
        smallest_chunk_bytes: a group that is small is split into fewer chunks, none smaller.
        deferred: whether it is aggregated at the start of the next step.
        reason: why it is as it is, for people.
    """

    name: str
    members: tuple[str, ...]
    pattern: str
    depth: int = 1
    shift: int = 0
    smallest_chunk_bytes: int = CHUNK_ALIGNMENT_BYTES
    deferred: bool = False
    reason: str = ""

    @property
    def is_summed(self) -> bool:
        """Whether its gradients travel themselves, to be added up."""
        return self.pattern not in (ALL_GATHER, FACTORS)


@dataclass(frozen=True, slots=True)
class Gate:
    """A worker's transfers of `group` start when `after` has arrived there, aggregated; with
    parameter servers, when what the worker has sent of `after` has arrived at its server.

    Both are names of groups. A deferred group may wait for deferred ones only; one that is not may
    wait for deferred ones too, which are those of the step before.
    """

    group: str
    after: str


@dataclass(frozen=True, slots=True)
class Edge:
    """A control edge between two ops of the single-device graph: `after` waits for `before`."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Owner:
    """A variable lives on a parameter server."""

    variable: str
    server: int


@dataclass(frozen=True, slots=True)
class Pull:
    """Workers receive a variable from its server, each for itself.

    Attributes:
        variable: its name.
        after: variables that have arrived at a worker before this one is sent to it.
        ahead: whether it is sent for the next step, as soon as it was updated in this one, and not
            when that begins. It waits for no other variable then.
        reason: why it is as it is, for people.
    """

    variable: str
    after: tuple[str, ...] = ()
    ahead: bool = False
    reason: str = ""


@dataclass(frozen=True)
class Decided:
    """What a planner decides, and a user who edits a plan may change.

    Attributes:
        groups: how gradients are aggregated; every gradient is in exactly one group, or if it is
            split every part of it. With parameter servers they are in the order in which they are
            sent, where gates see to that.
        parts: into what some of them are split, those of one gradient in order. Each begins at a
            multiple of 64 bytes, so that cutting the gradient copies at most the last one.
        edges: control edges that are added to every replica.
        gates: in which order transfers go, and how many at a time.
        owners: where each variable lives that is on a parameter server.
        pulls: what workers receive of them, in the planned order.
        placement: where the ops of the replica are, if it is spread over several devices.
    """

    groups: tuple[Group, ...]
    parts: tuple[Part, ...] = ()
    edges: tuple[Edge, ...] = ()
    gates: tuple[Gate, ...] = ()
    owners: tuple[Owner, ...] = ()
    pulls: tuple[Pull, ...] = ()
    placement: Placement | None = None

    def __post_init__(self) -> None:
        self._check_parts()
        if len(self.group_of) < len(self.groups):
            raise PlanError("two groups of the plan have the same name")
        for group in self.groups:
            _check_group(group)
        self._check_gates()
        self._check_pulls()

    @cached_property
    def server_of(self) -> Mapping[str, int]:
        """The server of each variable that is on one."""
        return {owner.variable: owner.server for owner in self.owners}

    @cached_property
    def pull_of(self) -> Mapping[str, Pull]:
        """What workers receive, by the variable's name."""
        return {pull.variable: pull for pull in self.pulls}

    @cached_property
    def group_of(self) -> Mapping[str, Group]:
        """All groups by name."""
        return {group.name: group for group in self.groups}

    @cached_property
    def part_of(self) -> Mapping[str, Part]:
        """All parts by name."""
        return {part.name: part for part in self.parts}

    @cached_property
    def parts_of(self) -> Mapping[str, Sequence[Part]]:
        """The parts of each parameter whose gradient is split, in order."""
        found: dict[str, list[Part]] = {}
        for part in self.parts:
            found.setdefault(part.parameter, []).append(part)
        return found

    def _check_parts(self) -> None:
        for name, parts in self.parts_of.items():
            end = 0
            for part in parts:
                if part.begin < end:
                    raise PlanError(f"part '{part.name}' begins before the part before it ends")
                if part.begin > end:
                    raise PlanError(f"no part has elements {end} to {part.begin} of '{name}'")
                if part.elements < 1:
                    raise PlanError(f"part '{part.name}' has no elements")
                end = part.end

    def _check_pulls(self) -> None:
        if len(self.server_of) < len(self.owners):
            raise PlanError("the plan gives a variable two servers")
        count = Counter(pull.variable for pull in self.pulls)
        if twice := [name for name in count if count[name] > 1]:
            raise PlanError(f"the plan pulls '{twice[0]}' twice")
        arrived: set[str] = set()
        for pull in self.pulls:
            # So they cannot wait for each other either.
            for name in pull.after:
                if pull.ahead:
                    raise PlanError(
                        f"'{pull.variable}' is pulled ahead, and so cannot wait for '{name}'"
                    )
                if name not in arrived:
                    raise PlanError(
                        f"the pull of '{pull.variable}' waits for '{name}', which is not pulled "
                        "before it in the same step"
                    )
            if not pull.ahead:
                arrived.add(pull.variable)

    def _check_gates(self) -> None:
        after: dict[str, list[str]] = {}
        for gate in self.gates:
            for name in (gate.group, gate.after):
                if name not in self.group_of:
                    raise PlanError(f"a gate of the plan names group '{name}', which is not in it")
            if self.group_of[gate.group].deferred and not self.group_of[gate.after].deferred:
                raise PlanError(
                    f"group '{gate.group}' is deferred and cannot wait for '{gate.after}', which "
                    "is not"
                )
            after.setdefault(gate.group, []).append(gate.after)
        try:
            tuple(TopologicalSorter(after).static_order())
        except CycleError as error:
            raise PlanError(f"gates of the plan wait for each other: {error.args[1]}") from None


def _check_group(group: Group) -> None:
    if not group.members:
        raise PlanError(f"group '{group.name}' has no members")
    if group.pattern == FACTORS:
        if len(group.members) > 1:
            raise PlanError(f"group '{group.name}' joins factors of several gradients")
        if group.deferred:
            raise PlanError(f"group '{group.name}' sends factors, so it cannot be deferred")
    elif group.pattern not in (ALL_GATHER, SERVER):
        check_pattern(group.pattern)
    if group.depth < 1 or group.smallest_chunk_bytes < 1:
        raise PlanError(
            f"group '{group.name}' has depth {group.depth} and chunks of at least "
            f"{group.smallest_chunk_bytes} bytes; both must be at least 1"
        )
