"""The plan: everything that will happen in the distributed job, as pure data.

Modifiers carry a plan out and know nothing of how it was made; planners make it and know nothing of
TensorFlow. It is saved and loaded as JSON.

A plan is three records in one: the job that it is for (`planned_job`), what was decided
(`decision`), and what follows from both (`consequences`).
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from caramel.core.consequences import Consequences
from caramel.core.decision import ALL_GATHER, FACTORS, Decided, Gate, Group, Part
from caramel.core.dtypes import dtype_bytes
from caramel.core.errors import PlanError
from caramel.core.facts import Weight
from caramel.core.graph import TensorSpec
from caramel.core.names import Mark, server_place
from caramel.core.patterns import (
    CHUNK_ALIGNMENT_BYTES,
    SERVER,
    Schedule,
    chunk_sizes,
    schedule,
    server_schedule,
)
from caramel.core.placement import Placement
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.core.util.arguments import check_changes, checked
from caramel.core.util.json_records import from_json_value, read_json, to_json_value
from caramel.core.util.rows import Row, html_table
from caramel.core.util.sizes import bytes_text, counted

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Marked:
    """What leaves marks on a worker or a server.

    Attributes:
        ready: groups, when their raw gradients are complete there.
        arrived: groups, when they are there, aggregated; with parameter servers, on a worker
            variables that it has received.
    """

    ready: tuple[str, ...]
    arrived: tuple[str, ...]

    def of(self, kind: Mark) -> tuple[str, ...]:
        """Those of a kind."""
        return self.ready if kind == "ready" else self.arrived


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
    consequences: Consequences = field(default_factory=Consequences)

    def __post_init__(self) -> None:
        self._check_parts()
        self._check_members()
        for group in self.decision.groups:
            self._check_group(group)
        self._check_servers()
        self._check_placement()
        for gate in self.decision.gates:
            if not self._travels(self.group(gate.after)):
                raise PlanError(f"group '{gate.after}' is empty: nothing can wait for it")

    def _check_servers(self) -> None:
        servers, served = len(self.job.servers), self.job.served
        for owner in self.decision.owners:
            if owner.variable not in served:
                raise PlanError(f"'{owner.variable}' is no variable that lives on a server")
            if not 0 <= owner.server < servers:
                raise PlanError(
                    f"'{owner.variable}' is to be on server {owner.server}; there are {servers}"
                )
        if homeless := sorted(served - self.decision.server_of.keys()):
            raise PlanError(f"the plan names no server for variable '{homeless[0]}'")
        for pull in self.decision.pulls:
            if pull.variable not in served:
                raise PlanError(f"the plan pulls '{pull.variable}', which is on no server")
        if servers and (self.decision.parts or self.deferred):
            raise PlanError(
                "with parameter servers gradients are neither split nor deferred: a plan has no "
                "parts or deferred groups, but pulls and groups that wait for each other"
            )
        for name in {n for g in self.decision.gates for n in (g.group, g.after) if servers}:
            if self.gradient(self.group(name).members[0]).indices is not None:
                raise PlanError(
                    f"group '{name}' has a sparse gradient: with parameter servers it is sent when "
                    "it is ready, and nothing waits for it"
                )
        for group in self.decision.groups:
            if (group.pattern == SERVER) != bool(servers) and group.pattern != ALL_GATHER:
                raise PlanError(
                    f"group '{group.name}' is aggregated by '{group.pattern}', with {servers} "
                    "parameter servers"
                )
            homes = {self.decision.server_of.get(self.parameter(name)) for name in group.members}
            if servers and len(homes) > 1:
                raise PlanError(f"group '{group.name}' joins gradients of several servers")

    def _check_placement(self) -> None:
        if self.placement is None:
            return
        if self.workers > 1 or self.job.servers:
            raise PlanError(
                "a replica that is spread over several devices is the only one, without parameter "
                "servers"
            )
        if self.placement.devices[0] != self.job.devices[0]:
            raise PlanError(
                f"the first device of the placement is '{self.placement.devices[0]}', but the "
                f"client feeds '{self.job.devices[0]}'"
            )

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
            if gradients[name] != 1 or (self.is_distributed and grouped[name] != 1):
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
            changes: new values for fields of the decision: `groups`, `parts`, `edges`, `gates`,
                `owners`, `pulls`.

        Raises:
            PlanError: the plan makes no sense with them.
        """
        check_changes(Decided, changes, PlanError)
        return Plan(self.job, dataclasses.replace(self.decision, **changes))

    def weight(self, gradient: AggregatedGradient) -> Weight:
        """How much each worker's gradient counts.

        Raises:
            PlanError: the plan does not have the weight that the gradient names.
        """
        name = gradient.weight or self.job.reduction
        if name not in self.job.weight_of:
            raise PlanError(f"the plan has no weight '{name:.200}', by which a gradient counts")
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

    @property
    def placement(self) -> Placement | None:
        """Where the ops of the replica are, if it is spread over several devices."""
        return self.decision.placement

    @property
    def is_distributed(self) -> bool:
        """Whether gradients travel: with one worker and no servers none do."""
        return self.workers > 1 or bool(self.job.servers)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The devices of everything but parameter servers: those of replicas, or those over which
        the only one is spread."""
        return self.job.devices if self.placement is None else self.placement.devices

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
        if not self.job.marks or (self.workers == 1 and not self.job.servers):
            return ()
        return tuple(group for group in self.decision.groups if self._travels(group))

    @property
    def marked(self) -> Mapping[int, Marked]:
        """What leaves marks, by the place of the worker or server on which it does."""
        groups = self.marked_groups
        names = tuple(group.name for group in groups)
        pulls = names
        if self.job.servers and self.job.marks:
            # What is sent ahead arrives when the step ends, or in no step.
            pulls = tuple(pull.variable for pull in self.decision.pulls if not pull.ahead)
        found = {worker: Marked(names, pulls) for worker in range(self.workers)}
        for place in map(server_place, range(len(self.job.servers))):
            own = tuple(group.name for group in groups if self.place(group) == place)
            found[place] = Marked((), own)
        return {place: each for place, each in found.items() if each.ready or each.arrived}

    @property
    def gates_between_steps(self) -> tuple[Gate, ...]:
        """Those by which a group of the step waits for a deferred one of the step before."""
        deferred = {group.name for group in self.decision.groups if group.deferred}
        return tuple(
            g for g in self.decision.gates if g.after in deferred and g.group not in deferred
        )

    def __repr__(self) -> str:
        who = counted(self.workers, "worker")
        if self.job.servers:
            who += f" and {counted(len(self.job.servers), 'parameter server')}"
        if self.placement is not None:
            return f"<Plan: one replica over {counted(len(self.placement.devices), 'device')}>"
        size = sum(gradient.bytes for gradient in self.job.gradients)
        what = f"{counted(len(self.decision.groups), 'group')} of gradients, {bytes_text(size)}"
        deferred = f", {len(self.deferred)} deferred" if self.deferred else ""
        return f"<Plan: {who}, {what}{deferred}>"

    def rows(self) -> Iterator[Row]:
        """What is decided, in words: names and values."""
        own, gates = self.decision, len(self.decision.gates)
        if self.placement is not None:
            yield "replica", f"one over {counted(len(self.placement.devices), 'device')}"
            gates = len(self.placement.gates)
        else:
            yield "workers", f"{self.workers:,}"
            if self.job.servers:
                yield "parameter servers", f"{len(self.job.servers):,}"
            size = bytes_text(sum(gradient.bytes for gradient in self.job.gradients))
            gradients = counted(len(self.job.gradients), "gradient")
            yield "aggregated", f"{gradients} in {counted(len(own.groups), 'group')}, {size}"
            patterns = Counter(group.pattern for group in own.groups).items()
            yield "patterns", ", ".join(f"{name}: {number:,}" for name, number in patterns)
            yield "deferred", counted(len(self.deferred), "gradient")
        yield "order", f"{counted(gates, 'gate')}, {counted(len(own.edges), 'control edge')}"

    def _repr_html_(self) -> str:
        return html_table(self.rows())

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

    def place(self, group: Group) -> int | None:
        """The place of the parameter server that aggregates a group; None if workers do."""
        if not self.job.servers:
            return None
        return server_place(self.decision.server_of[self.parameter(group.members[0])])

    def aggregated_at(self, group: Group) -> Sequence[int]:
        """The places where a group is there, aggregated."""
        place = self.place(group)
        return range(self.workers) if place is None else (place,)

    def schedule(self, group: Group) -> Schedule:
        """By which steps a dense group is aggregated."""
        place = self.place(group)
        if place is None:
            return schedule(group.pattern, self.workers, depth=group.depth, shift=group.shift)
        return server_schedule(self.workers, place)

    def chunks(self, group: Group) -> tuple[int, ...]:
        """Number of elements in each chunk of a dense group; empty ones are left out."""
        count = self.schedule(group).chunks
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
    @checked(PlanError)
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote.

        Raises:
            PlanError: the text is no plan; says where.
        """
        try:
            value: Any = read_json(text)
        except ValueError as error:
            raise PlanError(f"a plan must be JSON: {error}") from error
        given = value.pop("format", None) if isinstance(value, dict) else None
        if given != FORMAT:
            is_older = isinstance(given, int) and given < FORMAT
            again = f", but one of format {given}: make it again" if is_older else ""
            raise PlanError(f"not a Caramel plan of format {FORMAT}{again}")
        return from_json_value(cls, value)
