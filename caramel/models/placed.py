"""The front for users: a model that is spread over several devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, get_args

from caramel.analyzers.analysis import Analyzer
from caramel.capture.context import Context
from caramel.capture.open_sizes import sizes_with
from caramel.cluster.cluster import Cluster
from caramel.core.devices import replica_devices
from caramel.core.errors import PlanError
from caramel.core.names import colocated_op
from caramel.core.plan import Plan
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.arguments import SECONDS, at_least, checked
from caramel.core.util.sizes import parse_bytes
from caramel.models.model import Model
from caramel.models.options import GivenProfile, ModelOptions
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.planner import SEARCH, Kept, Order, PlacementPlanner
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.report.shown import ShownExplanation

_MOST_EXAMPLES = 2**31 - 1  # of a batch; TensorFlow counts many things in 32 bits


class PlacedModel(Model):
    """A training job whose only replica is spread over several devices.

    So a model can be trained that does not fit on one worker. Each op is executed on one device,
    and a variable lives on one; what others read of it is sent to them. A step computes what one
    device does. Where the model fits on one worker, that is mostly the fastest, and the answer of
    the search.

    Args:
        context: the single-device job.
        workers: how many workers to embed in this process, or a `Cluster`, a
            `tf.train.ClusterSpec`, a mapping, or a list of their addresses. What is fed goes to
            the first.
        memory: what variables and tensors of a step may take on each device: a number of bytes,
            text like "2GiB", or a list with one for each device; None for no limit. TensorFlow
            itself takes some hundred MB besides.
        partitioner: how ops get their devices: "search" takes the placement that is predicted to
            make steps the shortest; others are "hash", "batch_split", "critical_path", "mite",
            "dfs", "heft", "peft" and "cpop".
        scheduler: in which order a device is thought to execute ops: "pct", "msr" or "fifo".
        speeds: how fast each device is, next to the others or to where the profile was measured.
        constraints: devices on which ops may be, by regular expressions of their whole names: one
            name or a list of them, as `Cluster.devices` has them, or numbers of devices.
        batch_size: how many examples a step is taken to have where the graph takes any number: so
            large its tensors are counted that no profile knows.
        order: whether ops of a device are executed in the planned order, and tensors sent in it:
            "schedule", "none", or "auto" for both in turns, until the faster one is known. Without
            a profile, and on one device, "auto" orders nothing. Random ops that keep their state
            themselves draw other numbers by each of two plans, and so not those of one device.
        profile: measured facts, a `Profile` or the path of one. Without one an op is taken to cost
            the bytes that it puts out. If the job has several steps, a mapping by step.
        plan: a plan to carry out in place of a new one, as `PlacedModel.plan` or `Plan.from_json`
            gave it. If the job has several steps, a mapping by step.
        seed: of random choices.
        device_list: the devices, in place of one on each worker.
        analyzers: functions from facts to a fact that replace or add to the built-in ones.
        verbose: print each part of the build with its time.
        check: look at the rewritten graph, at some cost; should it be broken, the error names the
            modifier that did it.

    Attributes:
        memory_bytes: what each device is predicted to hold at most in a step, variables and
            tensors; nothing where the plan was given.
        predicted_step_s: how long a step is predicted to take; None where the plan was given, or
            nothing is known of times.
        steps, plan, windows, variants, traffic: see `ARModel`.

    Raises:
        GraphError: the job cannot be distributed.
        ClusterError: the workers or devices are described wrongly.
        PlanError: an argument cannot be, no placement was found that fits, or a plan does not fit
            the job.
    """

    @checked(
        PlanError,
        apart=("context", "plan", "memory", "speeds", "constraints"),
        batch_size=at_least(1, most=_MOST_EXAMPLES),
    )
    def __init__(
        self,
        context: Context,
        workers: Any,
        *,
        memory: float | str | Sequence[float | str] | None = None,
        partitioner: str = SEARCH,
        scheduler: str = "pct",
        speeds: Sequence[float] | None = None,
        constraints: Mapping[str, str | int | Sequence[str | int]] | None = None,
        batch_size: int = 32,
        order: Order = "auto",
        profile: GivenProfile | Mapping[StepName, GivenProfile] | None = None,
        plan: Plan | Mapping[StepName, Plan] | None = None,
        seed: int = 0,
        device_list: Sequence[str] | None = None,
        analyzers: Sequence[Analyzer] | None = None,
        verbose: bool = False,
        check: bool = False,
    ) -> None:
        cluster = Cluster.coerce(workers)
        devices = replica_devices(cluster.devices, device_list)
        _check_word("partitioner", partitioner, (SEARCH, *PARTITIONERS))
        _check_word("scheduler", scheduler, SCHEDULERS)
        _check_word("order", order, get_args(Order))
        if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or batch_size < 1:
            raise PlanError(f"batch_size must be a whole number, at least 1, not {batch_size!r}")
        if not isinstance(seed, int):
            raise PlanError(f"seed must be an int, not {seed!r}")
        is_job = isinstance(context, Context)  # else `Model` says so
        planner = PlacementPlanner(
            devices,
            _memory_of(devices, memory),
            _speeds_of(devices, speeds),
            partitioner,
            scheduler,
            _constraints_of(devices, {} if constraints is None else constraints),
            order,
            seed,
            together=_colocated(context.graph_def) if is_job else (),
            targets=_targets(context) if is_job else (),
            sizes=sizes_with(context, int(batch_size)) if is_job else {},
            kept=Kept(_given(plan)),
        )
        self._planner: PlacementPlanner = planner
        options = ModelOptions(
            planner,
            profile=profile,
            device_list=devices[:1],
            plan=plan,
            analyzers=tuple(analyzers or ()),
            verbose=verbose,
            check=check,
        )
        super().__init__(context, cluster, options)
        layout = planner.kept.layout
        self.memory_bytes: tuple[float, ...] = () if layout is None else layout.placed.peaks
        self.predicted_step_s: float | None = None
        if layout is not None and layout.knows_times:
            self.predicted_step_s = layout.placed.makespan_s

    def _chosen_on(self, cluster: Cluster) -> ModelOptions:
        planner = self._planner.on(cluster.devices)
        # What was measured of ops holds on any device, and so does what was given, if it fits.
        return replace(self._options, planner=planner, plan=None, device_list=planner.devices[:1])

    @checked(PlanError, measured_step_s=SECONDS)
    def explain(
        self, measured: Sequence[Timeline] | Timeline = (), *, measured_step_s: float | None = None
    ) -> ShownExplanation:
        """Where everything is and why, what bounds a step, and what each device needs for it.

        Printing what is returned shows tables, and its `save_page` writes a page with pictures of
        what each device does, and of the memory that it needs, over time.

        Args:
            measured: traced steps of a session: what `Session.trace` returned. They know the memory
                of tensors, too.
            measured_step_s: the usual step without a trace, as `Session.metrics` knows it.

        Raises:
            PlanError: they were done by different plans, or nothing is known of times or sizes.
        """
        return self._step.explain(measured, measured_step_s=measured_step_s)


def _check_word(what: str, given: object, known: Iterable[str]) -> None:
    if given not in (names := list(known)):
        raise PlanError(f"{what} must be one of {', '.join(map(repr, names))}, not {given!r}")


def _memory_of(devices: Sequence[str], given: Any) -> tuple[float, ...]:
    """The bytes of each device."""
    if given is None:
        return (math.inf,) * len(devices)
    if isinstance(given, str | Real):
        return (parse_bytes(given, "memory"),) * len(devices)
    _check_one_each("memory", given, devices)
    return tuple(
        parse_bytes(each, f"memory of '{device}'")
        for each, device in zip(given, devices, strict=True)
    )


def _speeds_of(devices: Sequence[str], given: Any) -> tuple[float, ...]:
    if given is None:
        return (1.0,) * len(devices)
    _check_one_each("speeds", given, devices)
    for device, speed in zip(devices, given, strict=True):
        is_number = isinstance(speed, Real) and not isinstance(speed, bool)
        if not (is_number and 0 < speed < math.inf):
            raise PlanError(f"the speed of '{device}' must be a number more than 0, not {speed!r}")
    return tuple(map(float, given))


def _check_one_each(what: str, given: Any, devices: Sequence[str]) -> None:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise PlanError(f"{what} must be a list with one entry for each device, not {given!r}")
    if len(list(given)) != len(devices):
        raise PlanError(
            f"{what} has {len(list(given))} entries, but there are {len(devices)} devices: "
            f"{', '.join(devices)}"
        )


def _constraints_of(devices: Sequence[str], given: Any) -> dict[str, tuple[str, ...]]:
    """Names of devices by regular expressions; numbers are those of devices."""
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for text in given):
        raise PlanError(
            "constraints must be a mapping from regular expressions of ops' names to devices, not "
            f"{given!r}"
        )
    found = {}
    for text, wanted in given.items():
        names = []
        listed = [wanted] if isinstance(wanted, str | int) else wanted
        if not isinstance(listed, Sequence) or not all(map(_names_a_device, listed)):
            raise PlanError(
                f"the constraint '{text}' must name devices by text or number, not {wanted!r}"
            )
        for each in listed:
            if isinstance(each, int):
                if not 0 <= each < len(devices):
                    raise PlanError(
                        f"the constraint '{text}' names device {each}; they are 0 to "
                        f"{len(devices) - 1}"
                    )
                each = devices[each]
            names.append(each)
        found[text] = tuple(names)
    return found


def _names_a_device(given: object) -> bool:
    return isinstance(given, str | int) and not isinstance(given, bool)


def _colocated(graph_def: Any) -> tuple[tuple[str, ...], ...]:
    """Ops that the graph wants to be in one place."""
    groups: dict[str, list[str]] = {}
    for node in graph_def.node:
        if "_class" in node.attr:
            for group in node.attr["_class"].list.s:
                op = colocated_op(group.decode())
                if op is not None:
                    groups.setdefault(op, [op]).append(node.name)
    return tuple(map(tuple, groups.values()))


def _targets(context: Context) -> tuple[str, ...]:
    """What the steps of a job run."""
    jobs = [step.job for step in context.steps.values()]
    return tuple(dict.fromkeys(name for job in jobs for name in (job.train_op, job.loss.op)))


def _given(plan: Plan | Mapping[StepName, Plan] | None) -> Any:
    """The placement of plans that are given."""
    plans = list(plan.values()) if isinstance(plan, Mapping) else [plan]
    return next((each.placement for each in plans if isinstance(each, Plan)), None)
