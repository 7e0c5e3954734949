"""Does a plan that was made elsewhere fit the job it is used for?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import pairwise

from caramel.analyzers.fusions import find_cycle, opened
from caramel.core.decision import Decided, Edge
from caramel.core.dtypes import STAYS
from caramel.core.errors import PlanError
from caramel.core.facts import Fusions, LoopFrames, Variable
from caramel.core.graph import OpGraph
from caramel.core.placement import Placement
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob


def decides_alike(plan: Plan, other: Plan) -> bool:
    """Whether two plans for the same job do the same, whatever reasons they give."""
    return _without_reasons(plan.decision) == _without_reasons(other.decision)


def _without_reasons(decision: Decided) -> tuple[Decided, dict[str, tuple[frozenset[str], bool]]]:
    """A decision without pulls, and what each of these waits for."""
    groups = tuple(dataclasses.replace(group, reason="") for group in decision.groups)
    # In which order pulls stand does nothing, but for what they wait for.
    waits = {p.variable: (frozenset(p.after), p.ahead) for p in decision.pulls}
    return dataclasses.replace(decision, groups=groups, pulls=()), waits


def check_fit(plan: Plan, expected: Plan) -> None:
    """Raise unless `plan` is a plan for the same job on the same workers as `expected`.

    Args:
        expected: any plan that was made from the facts of the job.

    Raises:
        PlanError: says what differs.
    """
    given, wanted = _told(plan.job), _told(expected.job)
    for field in dataclasses.fields(PlannedJob):
        its, jobs = getattr(given, field.name), getattr(wanted, field.name)
        if its != jobs:
            raise PlanError(
                f"the plan does not fit the job: its {field.name} are {_difference(its, jobs)}"
            )


def check_servers(plan: Plan, expected: Plan) -> None:
    """Raise unless `plan` has variables on the servers where `expected` has them, and sends what
    that sends.

    Where they live is the same for all plans of a job, which stand side by side.

    Args:
        plan: one for perhaps another kind of model.
        expected: any plan that was made from the facts of the job.

    Raises:
        PlanError: says what differs.
    """
    if bool(plan.job.servers) != bool(expected.job.servers):
        own, model = ("with", "PSModel") if plan.job.servers else ("without", "ARModel")
        raise PlanError(
            f"the plan is for training {own} parameter servers; it fits a caramel.{model} alone"
        )
    if len(plan.job.servers) != len(expected.job.servers):
        return  # as `check_fit` says
    its, jobs = plan.decision.server_of, expected.decision.server_of
    for name in sorted(its.keys() & jobs.keys()):
        if its[name] != jobs[name]:
            raise PlanError(
                f"the plan has '{name}' on server {its[name]}, the model on server {jobs[name]}: "
                "where variables live is the same for all plans of a job"
            )
    sent, read = plan.decision.pull_of.keys(), expected.decision.pull_of.keys()
    if lacking := sorted(read - sent):
        raise PlanError(f"the plan does not pull '{lacking[0]}', which workers read in a step")
    if unread := sorted(sent - read):
        raise PlanError(f"the plan pulls '{unread[0]}', which workers do not read in a step")


def check_placement(plan: Plan, expected: Plan, graph: OpGraph) -> None:
    """Raise unless `plan` has the ops where `expected` has them.

    Where they are is the same for all plans of a job, which stand side by side.

    Args:
        plan: one for perhaps another kind of model.
        expected: the plain plan of the job. Where its placement was given, so that nobody made it
            from the graph, it is that of `plan`.
        graph: the single-device graph.

    Raises:
        PlanError: says what differs, or what of the placement cannot be.
    """
    given, own = plan.placement, expected.placement
    if given is None or own is None:
        if given is not own:
            raise PlanError(
                "the plan is for one replica over several devices; it fits a caramel.PlacedModel "
                "alone"
                if given
                else "the plan says nothing of where ops are, as a caramel.PlacedModel needs it: "
                "give it one that another PlacedModel has made"
            )
        return
    check_devices(given, own.devices)
    for what, names in (
        ("lacks", graph.ops.keys() - given.number_of.keys()),
        ("has an unknown", given.number_of.keys() - graph.ops.keys()),
    ):
        if names:
            raise PlanError(
                f"the plan is for another job: its placement {what} op '{min(names)}' "
                f"({len(names)} in all); make a new plan for this one"
            )
    for name, number in given.number_of.items():
        if own.number_of[name] != number:
            raise PlanError(
                f"the plan has '{name}' on device {number}, the model on device "
                f"{own.number_of[name]}: where ops are is the same for all plans of a job"
            )
    _check_together(given, graph)


def check_devices(placement: Placement, devices: Sequence[str]) -> None:
    """Raise unless a placement is for the devices of a model.

    Raises:
        PlanError: says which there are.
    """
    if placement.devices != tuple(devices):
        raise PlanError(
            f"the plan is for the devices {', '.join(placement.devices)}; the model has "
            f"{', '.join(devices)}: give it these by device_list, or make a new plan"
        )


def _check_together(placement: Placement, graph: OpGraph) -> None:
    """Raise if something reads a resource or a variant on another device."""
    for op in graph:
        for tensor in op.inputs:
            dtype = graph.spec(tensor).dtype
            if dtype in STAYS and placement.number_of[op.name] != placement.number_of[tensor.op]:
                raise PlanError(
                    f"'{op.name}' reads the {dtype} '{tensor}', but the placement has it on "
                    f"'{placement.device_of(op.name)}' and that on "
                    f"'{placement.device_of(tensor.op)}': both must be on one device"
                )


def _told(job: PlannedJob) -> PlannedJob:
    """What has to be the same: factors follow from the job, and marks are as the user says now."""
    gradients = tuple(dataclasses.replace(gradient, factors=None) for gradient in job.gradients)
    return dataclasses.replace(job, gradients=gradients, marks=False)


def check_edges(plan: Plan, graph: OpGraph, frames: LoopFrames) -> None:
    """Raise if a control edge crosses the border of a loop; TensorFlow would not run such a graph.

    Args:
        graph: the single-device graph. Edges between ops that it does not have are left alone.
        frames: in which loop each of its ops is.

    Raises:
        PlanError: says which edge.
    """
    for edge in plan.decision.edges:
        if edge.before not in graph or edge.after not in graph:
            continue
        # An op waits in the loop of what it reads, which for `Enter` and `Exit` is not their own.
        around = [frames.frame.get(source, "") for source in graph[edge.after].sources]
        waits_in, begins_in = max(around, key=len, default=""), frames.frame.get(edge.before, "")
        if waits_in != begins_in:
            raise PlanError(
                f"an edge of the plan, '{edge.before}' -> '{edge.after}', crosses the border of a "
                f"loop: it begins {_in_loop(begins_in)} and ends {_in_loop(waits_in)}"
            )


def check_fused(plan: Plan, graph: OpGraph, fusions: Fusions) -> None:
    """Raise if no step with the plan's control edges ends where TensorFlow computes ops as one.

    Args:
        graph: the single-device graph.
        fusions: its ops that may be computed as one.

    Raises:
        PlanError: says which ops, and which edge.
    """
    edges = [*plan.decision.edges, *plan.consequences.orders]
    cycle = find_cycle(graph, fusions, edges)
    if cycle is not None:
        open_groups = opened(graph, fusions, edges).groups
        groups = [own for own in open_groups if own[0] in cycle]
        edge = _edge_on(cycle, edges, groups)
        raise PlanError(
            f"with an edge of the plan, '{edge.before}' -> '{edge.after}', a step would never end: "
            f"where TensorFlow uses oneDNN it may compute {_as_one(graph, groups)} as one op, "
            f"which would wait for itself: {' -> '.join(cycle)}; leave that edge out"
        )
    for group, waits in _added(plan, fusions):
        for name in group:
            read = next((t.op for t in graph[name].inputs if t.op in group), None)
            if graph[name].kind == "BiasAdd" and waits[name] and read is not None:
                own, its = set(graph[name].control_inputs), set(graph[read].control_inputs)
                if own | waits[name] == its | waits[read]:
                    raise PlanError(
                        f"by edges of the plan '{name}' waits for the same ops as '{read}', which "
                        "it reads; where TensorFlow uses oneDNN, that ends the workers' processes: "
                        f"leave out the edges to '{name}', which wait for nothing else"
                    )


def kept_apart(plan: Plan, graph: OpGraph, fusions: Fusions) -> Iterator[str]:
    """What the plan's edges keep TensorFlow from computing as one, each in a sentence."""
    for group, waits in _added(plan, fusions):
        # TensorFlow merges ops only if both wait for the same.
        if len({frozenset(own) for own in waits.values()}) > 1:
            edge = next(edge for edge in plan.decision.edges if edge.after in group)
            yield (
                f"an edge of the plan, '{edge.before}' -> '{edge.after}', keeps TensorFlow from "
                f"computing {_as_one(graph, [group])} as one op where it uses oneDNN, which may "
                "make steps longer"
            )


def _added(plan: Plan, fusions: Fusions) -> Iterator[tuple[tuple[str, ...], dict[str, set[str]]]]:
    """The groups to which edges of the plan lead, and what each of their ops waits for by them."""
    before: dict[str, set[str]] = {}
    for edge in plan.decision.edges:
        before.setdefault(edge.after, set()).add(edge.before)
    for group in fusions.groups if before else ():
        if any(name in before for name in group):
            yield group, {name: before.get(name, set()) for name in group}


def _edge_on(
    cycle: Sequence[str], edges: Sequence[Edge], groups: Sequence[tuple[str, ...]]
) -> Edge:
    """An edge that closes a cycle of ops in which each group goes by its first op."""
    one = {name: group[0] for group in groups for name in group}
    steps = set(pairwise(cycle))
    return next(
        edge
        for edge in edges
        if (one.get(edge.before, edge.before), one.get(edge.after, edge.after)) in steps
    )


def _as_one(graph: OpGraph, groups: Sequence[tuple[str, ...]]) -> str:
    """Groups of ops, for people."""
    return ", and ".join(
        " with ".join(f"'{name}' ({graph[name].kind})" for name in group) for group in groups
    )


def _in_loop(frame: str) -> str:
    return f"inside that of '{frame}'" if frame else "outside"


def _in_short(value: object) -> str:
    """What a user knows of a variable or a gradient: its name, and of which kind it is."""
    if isinstance(value, Variable | AggregatedGradient):
        name = value.full_name if isinstance(value, Variable) else value.parameter
        shape = "unknown" if value.spec.shape is None else list(value.spec.shape)
        return f"'{name}' ({value.spec.dtype}, shape {shape})"
    return str(value)


def _difference(given: object, wanted: object) -> str:
    """Where two values differ, in few words."""
    if isinstance(given, frozenset) and isinstance(wanted, frozenset):
        given, wanted = tuple(sorted(given)), tuple(sorted(wanted))
    if isinstance(given, tuple) and isinstance(wanted, tuple) and not hasattr(given, "_fields"):
        missing = [value for value in wanted if value not in given]
        unknown = [value for value in given if value not in wanted]
        if missing or unknown:
            told = [_in_short(values[0]) for values in (missing, unknown) if values]
            if len(set(told)) < len(told):  # they differ in something else
                told = [str(missing[0]), str(unknown[0])]
            begins = ("lacking",) * bool(missing) + ("with an unknown",) * bool(unknown)
            return ", ".join(map(" ".join, zip(begins, told, strict=True)))
        return "in another order"
    return f"{given!r}, but the job's {wanted!r}"
