"""The plan: everything that will happen in the distributed job, as pure data.

Modifiers carry a plan out and know nothing of how it was made; planners make it and know nothing of
TensorFlow. It is saved and loaded as JSON.

A plan is three records in one: the job it is for (`PlannedJob`), what was decided (`Decided`), and
what follows from both (`Consequences`). Whatever a planner comes to decide has its place in the
second.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal

from caramel.core.errors import PlanError
from caramel.core.facts import MEAN, SUM, Factors, Pipeline, Reduction, Variable, Weight
from caramel.core.graph import TensorSpec, dtype_bytes
from caramel.core.names import TensorRef, part_name
from caramel.core.patterns import CHUNK_ALIGNMENT_BYTES, check_pattern, chunk_sizes, schedule
from caramel.core.util.json_records import from_json_value, to_json_value

FORMAT = 2
ALL_GATHER = "all_gather"
FACTORS = "factors"

SparseMethod = Literal["gather", "dense"]


@dataclass(frozen=True, slots=True)
class SharedInput:
    """An op reads a tensor that is the same on every worker, and adds it to what is not."""

    op: str
    tensor: TensorRef


@dataclass(frozen=True, slots=True)
class AggregatedGradient:
    """One raw gradient that is aggregated.

    Attributes:
        parameter: the parameter it belongs to; no two gradients have the same.
        values: the tensor of the single-device graph.
        indices: its row numbers if it is sparse, else None.
        index_dtype: their dtype.
        spec: dtype and shape of the parameter.
        consumers: ops of the single-device graph that read the aggregated value instead.
        merge_duplicates: add up rows of equal index before sending (sparse only).
        factors: what it can be computed from on other workers, too; None if it cannot.
        weight: how much each worker's counts: "mean", "sum", or the name of one of the job's
            weights; as the job's reduction says if it is empty.
        shared: what has been added to it although it is the same on every worker, and is to count
            once.
    """

    parameter: str
    values: TensorRef
    spec: TensorSpec
    consumers: tuple[str, ...]
    indices: TensorRef | None = None
    index_dtype: str = "int32"
    merge_duplicates: bool = False
    factors: Factors | None = None
    weight: str = ""
    shared: tuple[SharedInput, ...] = ()

    @property
    def elements(self) -> int:
        """Number of elements of the parameter."""
        return math.prod(d for d in self.spec.shape or () if d is not None)

    @property
    def bytes(self) -> int:
        """Size of the parameter in bytes; 0 if its elements have no fixed size."""
        return self.elements * (dtype_bytes(self.spec.dtype) or 0)


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
        pattern: one of `patterns.PATTERNS`, `all_gather` for one sparse gradient, or
            `factors` for one gradient that every worker computes from the factors of all workers
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
    """A worker's transfers of `group` start when `after` has arrived there, aggregated.

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
class Detour:
    """An op stays in its step although it waited for ops that move into the next one.

    Attributes:
        op: the op.
        moved: the control inputs that it loses.
        before: what those waited for in the step; it waits for these ops instead.
    """

    op: str
    moved: tuple[str, ...]
    before: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that a moved op reads from the step before, kept in a variable of its worker.

    Attributes:
        tensor: the tensor of the single-device graph.
        spec: its dtype and shape.
        aggregated: whether what is read is not this raw gradient but its aggregated value.
    """

    tensor: TensorRef
    spec: TensorSpec
    aggregated: bool = False


@dataclass(frozen=True, slots=True)
class Barrier:
    """Ops touch a variable that moved ops touch too, and wait for those in the next step.

    Attributes:
        variable: its name.
        moved: the ops that move.
        waiting: the ops that stay and wait, unless a loop is around them; then the op that brings
            the variable into the loop.
    """

    variable: str
    moved: tuple[str, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deferral:
    """What moves into the next step with the deferred groups; ops of the single-device graph.

    It follows from the job and from which gradients are deferred (`analyzers.deferral`).

    Attributes:
        moved: ops that run at the start of the next step, in topological order.
        kept: what they read from the step before, but for the deferred gradients themselves.
        results: moved ops that no other moved op waits for: running them runs all.
        stays: ops that a step still runs: the train op, or what is left of it.
        detours: ops that stay although they waited for moved ones.
        orders: control edges between moved ops, in place of those that led over ops that stay.
        barriers: which ops of the next step wait for which moved ones.
    """

    moved: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()
    results: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    detours: tuple[Detour, ...] = ()
    orders: tuple[Edge, ...] = ()
    barriers: tuple[Barrier, ...] = ()


@dataclass(frozen=True)
class PlannedJob:
    """What is planned: a training step, the workers that do it, and what a plan must know of it.

    Attributes:
        devices: where the replica of each worker is.
        reduction: whether gradients are averaged or added up, but for those with a weight.
        variables: all variables of the graph.
        gradients: what is aggregated.
        weights: how much what a worker computed may count, besides "mean" and "sum".
        local: names of variables that may differ between workers.
        summed: those of them whose values are added up where one is asked for; others are averaged.
        generators: names of variables that hold a random generator's state.
        constant: names of variables whose initial value each worker makes itself, from constants;
            the others' are made once and broadcast.
        pipelines: where input pipelines are sharded.
        examples: the tensor whose first dimension is a worker's number of examples, or None if the
            client decides how many examples each worker gets.
        train_op: the op that a step runs.
        loss: the op that puts out the loss.
        marks: whether a step leaves marks on each worker when a group is ready and when it has
            arrived, so that the client can tell what a step waits for. The user says so.
    """

    devices: tuple[str, ...]
    reduction: Reduction
    variables: tuple[Variable, ...]
    gradients: tuple[AggregatedGradient, ...]
    weights: tuple[Weight, ...] = ()
    local: frozenset[str] = frozenset()
    summed: frozenset[str] = frozenset()
    generators: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    pipelines: tuple[Pipeline, ...] = ()
    examples: TensorRef | None = None
    train_op: str = ""
    loss: str = ""
    marks: bool = False

    def __post_init__(self) -> None:
        if not self.devices:
            raise PlanError("a plan needs at least one worker")

    @cached_property
    def variable_of_handle(self) -> Mapping[str, Variable]:
        """Each variable by the op of its handle."""
        return {variable.handle: variable for variable in self.variables}

    @cached_property
    def gradient_of(self) -> Mapping[str, AggregatedGradient]:
        """The gradient of each parameter that has one."""
        return {gradient.parameter: gradient for gradient in self.gradients}

    @cached_property
    def weight_of(self) -> Mapping[str, Weight]:
        """All weights by name."""
        return {weight.name: weight for weight in (*self.weights, MEAN, SUM)}


@dataclass(frozen=True)
class Decided:
    """What a planner decides, and a user who edits a plan may change.

    Attributes:
        groups: how gradients are aggregated; every gradient is in exactly one group, or if it is
            split every part of it.
        parts: into what some of them are split, those of one gradient in order. Each begins at a
            multiple of 64 bytes, so that cutting the gradient copies at most the last one.
        edges: control edges that are added to every replica.
        gates: in which order transfers go, and how many at a time.
    """

    groups: tuple[Group, ...]
    parts: tuple[Part, ...] = ()
    edges: tuple[Edge, ...] = ()
    gates: tuple[Gate, ...] = ()

    def __post_init__(self) -> None:
        self._check_parts()
        if len(self.group_of) < len(self.groups):
            raise PlanError("two groups of the plan have the same name")
        for group in self.groups:
            _check_group(group)
        self._check_gates()

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
    elif group.pattern != ALL_GATHER:
        check_pattern(group.pattern)
    if group.depth < 1 or group.smallest_chunk_bytes < 1:
        raise PlanError(
            f"group '{group.name}' has depth {group.depth} and chunks of at least "
            f"{group.smallest_chunk_bytes} bytes; both must be at least 1"
        )


@dataclass(frozen=True, slots=True)
class Consequences:
    """What follows from the job and from what was decided (`planning.complete`).

    Nobody needs to give it: it is made anew for every plan that is carried out.

    Attributes:
        orders: further control edges, which order what a step reads and writes of variables where
            the user's graph does not. They follow from the job (`analyzers.state_order`).
        deferral: what moves into the next step with the deferred groups.
        input_reads: ops that read the input pipelines of a step.
        held: updates that must wait until all workers have read their inputs: nothing else keeps
            them from running in a step that another worker's ended pipeline stops.
        evaluation: whether an unsharded copy of the graph stands on worker 0, whose local
            variables hold what those of all workers are together. It goes without what only
            training needs.
    """

    orders: tuple[Edge, ...] = ()
    deferral: Deferral = Deferral()
    input_reads: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    evaluation: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that will happen.

    Attributes:
        job: what is planned.
        decision: what was decided.
        consequences: what follows from both; nothing yet in a plan that is not completed
            (`planning.complete`).

    Raises:
        PlanError: the decision is not one for the job.
    """

    job: PlannedJob
    decision: Decided
    consequences: Consequences = Consequences()

    def __post_init__(self) -> None:
        self._check_parts()
        self._check_members()
        for group in self.decision.groups:
            self._check_group(group)
        for gate in self.decision.gates:
            if not self._travels(self.group(gate.after)):
                raise PlanError(f"group '{gate.after}' is empty: nothing can wait for it")

    def _check_parts(self) -> None:
        for name, parts in self.decision.parts_of.items():
            gradient = self.gradient(name)
            if gradient.indices is not None:
                raise PlanError(f"the gradient of '{name}' is sparse; it cannot be split")
            for part in parts:
                first_byte = part.begin * (dtype_bytes(gradient.spec.dtype) or 1)
                if first_byte % CHUNK_ALIGNMENT_BYTES:
                    raise PlanError(
                        f"part '{part.name}' begins at byte {first_byte}, which is no multiple of "
                        f"{CHUNK_ALIGNMENT_BYTES}"
                    )
            if parts[-1].end != gradient.elements:
                raise PlanError(
                    f"the parts of '{name}' end at element {parts[-1].end}, but its gradient at "
                    f"{gradient.elements}"
                )

    def _check_members(self) -> None:
        split = self.decision.parts_of.keys()
        gradients = Counter(gradient.parameter for gradient in self.job.gradients)
        gradients.subtract(split)
        gradients = +gradients + Counter(part.name for part in self.decision.parts)
        grouped = Counter(member for group in self.decision.groups for member in group.members)
        if whole := sorted(split & grouped.keys()):
            raise PlanError(f"the gradient of '{whole[0]}' is split, but in a group as a whole")
        for name, count in (gradients | grouped).items():
            if gradients[name] != 1 or (self.workers > 1 and grouped[name] != 1):
                raise PlanError(
                    f"parameter '{name}' has {gradients[name]} gradients and stands in "
                    f"{grouped[name]} groups of the plan; it must be one each ({count})"
                )

    def _check_group(self, group: Group) -> None:
        members = [self.gradient(name) for name in group.members]
        if len({member.spec.dtype for member in members}) > 1:
            raise PlanError(f"group '{group.name}' joins gradients of different dtypes")
        if len({self.weight(member) for member in members}) > 1:
            raise PlanError(f"group '{group.name}' joins gradients that count differently")
        sparse = [member.parameter for member in members if member.indices is not None]
        if sparse and len(members) > 1:
            raise PlanError(f"group '{group.name}' joins sparse gradient '{sparse[0]}' with others")
        if group.pattern == ALL_GATHER and not sparse:
            raise PlanError(f"group '{group.name}' gathers a dense gradient")
        if group.pattern == FACTORS and (members[0].factors is None or self.part(group.members[0])):
            raise PlanError(
                f"group '{group.name}' sends factors, but '{group.members[0]}' has none; only a "
                "whole gradient that is a product of smaller tensors has"
            )

    def _travels(self, group: Group) -> bool:
        """Whether anything is sent of a group."""
        return self.gradient(group.members[0]).indices is not None or self.elements(group) > 0

    def deciding(self, **changes: Any) -> Plan:
        """The plan with another decision; what followed from the old one is left out.

        Args:
            changes: new values for fields of the decision: `groups`, `parts`, `edges`, `gates`.

        Raises:
            PlanError: the plan makes no sense with them.
        """
        return Plan(self.job, dataclasses.replace(self.decision, **changes))

    def weight(self, gradient: AggregatedGradient) -> Weight:
        """How much each worker's gradient counts.

        Raises:
            PlanError: the plan does not have the weight that the gradient names.
        """
        name = gradient.weight or self.job.reduction
        if name not in self.job.weight_of:
            raise PlanError(f"the plan has no weight '{name}', by which a gradient counts")
        return self.job.weight_of[name]

    @property
    def counts_examples(self) -> bool:
        """Whether a step depends on the workers' numbers of examples."""
        if not self.job.gradients:
            return self.job.reduction == "mean"
        return any(self.weight(gradient).needs_examples for gradient in self.job.gradients)

    @property
    def used_weights(self) -> tuple[Weight, ...]:
        """The weights, besides "mean" and "sum", by which gradients count."""
        used = {gradient.weight for gradient in self.job.gradients}
        return tuple(weight for weight in self.job.weights if weight.name in used)

    @property
    def balanced_weights(self) -> tuple[Weight, ...]:
        """Those of them by which gradients count that have parts which are to count once."""
        balanced = {gradient.weight for gradient in self.job.gradients if gradient.shared}
        return tuple(weight for weight in self.used_weights if weight.name in balanced)

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.job.devices)

    @cached_property
    def deferred(self) -> frozenset[str]:
        """The parameters whose gradients, or parts of them, are aggregated in the next step."""
        deferred = [group for group in self.decision.groups if group.deferred]
        return frozenset(self.parameter(name) for group in deferred for name in group.members)

    @property
    def factored(self) -> tuple[Group, ...]:
        """The groups whose gradients are computed from factors."""
        return tuple(group for group in self.decision.groups if group.pattern == FACTORS)

    @property
    def marked_groups(self) -> tuple[Group, ...]:
        """The groups that leave marks: all that travel, if any do."""
        if not self.job.marks or self.workers == 1:
            return ()
        return tuple(group for group in self.decision.groups if self._travels(group))

    @property
    def gates_between_steps(self) -> tuple[Gate, ...]:
        """Those by which a group of the step waits for a deferred one of the step before."""
        deferred = {group.name for group in self.decision.groups if group.deferred}
        return tuple(
            g for g in self.decision.gates if g.after in deferred and g.group not in deferred
        )

    def group(self, name: str) -> Group:
        """The group of that name; a KeyError if there is none."""
        return self.decision.group_of[name]

    def part(self, member: str) -> Part | None:
        """The part of a gradient that a member of a group is, or None if it is a whole one."""
        return self.decision.part_of.get(member)

    def parameter(self, member: str) -> str:
        """The parameter to which a member of a group belongs."""
        part = self.part(member)
        return member if part is None else part.parameter

    def gradient(self, member: str) -> AggregatedGradient:
        """The gradient that a member of a group is, or is a part of.

        Raises:
            PlanError: the plan has none.
        """
        parameter = self.parameter(member)
        if parameter not in self.job.gradient_of:
            raise PlanError(f"the plan has no gradient of parameter '{parameter}'")
        return self.job.gradient_of[parameter]

    def spec(self, member: str) -> TensorSpec:
        """dtype and shape of what is aggregated for a member of a group; a part is a vector."""
        spec, part = self.gradient(member).spec, self.part(member)
        return spec if part is None else TensorSpec(spec.dtype, (part.elements,))

    def elements(self, group: Group) -> int:
        """Number of elements that a dense group aggregates."""
        return sum(self.spec(member).elements or 0 for member in group.members)

    def chunks(self, group: Group) -> tuple[int, ...]:
        """Number of elements in each chunk of a dense group; empty ones are left out."""
        count = schedule(group.pattern, self.workers, depth=group.depth).chunks
        sizes = chunk_sizes(
            self.elements(group),
            count,
            dtype_bytes(self.spec(group.members[0]).dtype) or 1,
            smallest_bytes=group.smallest_chunk_bytes,
        )
        return tuple(size for size in sizes if size)

    def bytes(self, group: Group) -> int:
        """Bytes that a dense group aggregates."""
        size = dtype_bytes(self.spec(group.members[0]).dtype) or 0
        return self.elements(group) * size

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps({"format": FORMAT, **to_json_value(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote.

        Raises:
            PlanError: the text is no plan; says where.
        """
        try:
            value: Any = json.loads(text)
        except json.JSONDecodeError as error:
            raise PlanError(f"a plan must be JSON: {error}") from error
        given = value.pop("format", None) if isinstance(value, dict) else None
        if given != FORMAT:
            is_older = isinstance(given, int) and given < FORMAT
            again = f", but one of format {given}: make it again" if is_older else ""
            raise PlanError(f"not a Caramel plan of format {FORMAT}{again}")
        return from_json_value(cls, value)
