"""From a single-device job to a distributed one: facts, plan, graph, session."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal

import tensorflow as tf

from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analyzer
from caramel.analyzers.over_steps import over_steps
from caramel.analyzers.whole_feeds import whole_feeds
from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.devices import replica_devices
from caramel.core.errors import PlanError, UnsupportedOpError
from caramel.core.graph import OpGraph
from caramel.core.op_types import PYTHON_CALLS
from caramel.core.plan import Plan, SparseMethod
from caramel.core.profile import Profile
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName, told
from caramel.core.util.fingerprint import digest, graph_hash
from caramel.core.util.gc_pause import held_back
from caramel.core.util.stopwatch import Stopwatch
from caramel.core.version import __version__
from caramel.models.assembly import Assembly
from caramel.models.joint_steps import JointSteps
from caramel.models.step_model import Common, StepModel
from caramel.planning.choose import Decision
from caramel.planning.options import Options, Planner
from caramel.planning.pattern_choice import AUTO
from caramel.report.shown import ShownExplanation
from caramel.runtime.control.drift import Replan, ReplanSettings
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.session import Session
from caramel.runtime.stalls.diagnosis import DEFAULT as DEFAULT_STALLS
from caramel.runtime.stalls.diagnosis import StallSettings

GivenProfile = Profile | str | os.PathLike[str]

_log = logging.getLogger(__name__)


class ARModel:
    """A training job over many workers whose gradients are aggregated inside the graph.

    Args:
        context: the single-device job.
        workers: how many workers to embed in this process, or a `Cluster`, a
            `tf.train.ClusterSpec` or a list of addresses.
        serialization: let gradients get ready in one order, by control edges.
        batching: aggregate small gradients together.
        scheduling: plan when what is transferred, some of it beside the next forward pass.
        adaptive_depth: split large groups, so that transfers and additions overlap.
        pattern: how gradients are aggregated: "shuffle", "ring", "halving_doubling" or "exchange";
            "auto" takes the fastest for each group by what was measured, or else "exchange" between
            two workers, and a ring for large gradients of three workers and more.
        factors: let workers send what a gradient is the product of (the input of a layer and the
            gradient of its output), and each compute the gradients of all from that, where this is
            predicted to make steps shorter. The sums have the bits of "shuffle" as long as the
            processors of all workers compute alike, which sessions check. It is done only where
            processors compute, by the planner "search", with the pattern "auto".
        planner: who decides: "search" simulates steps and takes the plan that is predicted to be
            the fastest, the plain one included; "paper" follows the rules of the Caramel paper;
            "plain" plans nothing.
        in_flight_bytes: with `scheduling`, how many bytes of groups may be on their way at a time;
            by default as many as are predicted to be the best. With 0 each waits for the one
            before, so that all workers send in one order in every step; where a processor computes
            and sends, that costs time.
        profile: measured facts, a `Profile` or the path of one that ``caramel profile`` wrote. What
            is planned needs times of ops and a model of the network, from it or from `analyzers`.
            Without them every gradient is aggregated by itself when it appears; the planner
            "search" then lets the job trace a few of its first steps, and plans from these. If the
            job has several steps, a mapping by step.
        replan: "auto" plans again from fresh measurements when steps take much longer than
            expected; "never" only says so.
        sparse: how sparse gradients are: "gather" brings the rows of all workers to each, "dense"
            adds up whole matrices.
        device_list: a device for each replica, in place of one replica on each worker; several
            may be on one task. Opening a session fails if the workers do not have them. Ops without
            a kernel for such a device run on the CPU of its worker; how many, the log tells.
        plan: a plan to carry out in place of a new one, as `ARModel.plan` or `Plan.from_json` gave
            it, perhaps with other groups, edges or gates; nothing is decided by the options above
            then, and facts serve only to explain it. If the job has several steps, a mapping by
            step; those that are left out are planned.
        marks: let workers mark in each step how far each group has come, so that a session can say
            what a late step waits for (`Session.metrics`); it costs well below 1 % of usual steps.
        analyzers: functions from facts to a fact that replace or add to the built-in ones.
        verbose: print each part of the build with its time.
        check: look at the rewritten graph, at some cost; should it be broken, the error names the
            modifier that did it.

    Attributes:
        steps: by name, the steps of the job, each with a `plan`, `windows`, `variants`, `traffic`,
            a `decision`, and its own `explain` and `add_variant`. Those of the model itself are of
            the first step: usually there is only one.
        plan: everything that will happen, as pure data.
        windows: when each parameter can be aggregated; None if nothing is known of times.
        variants: by name, the plans that a session can change between: `plan`, called "own", what
            `add_variant` has added, and what sessions try. Looking one up makes no graph:
            `variants.plan(name)` tells what any of them decides, `variants[name]` also where it is
            in the graph and what it sends, once a session has tried it or `variants.ensure(name)`
            has made its graph.
        traffic: bytes that a step sends between each pair of tasks, from the graph's edges.

    Raises:
        GraphError: the job cannot be distributed.
        ClusterError: the workers are described wrongly.
        PlanError: an unknown pattern or method, or a plan that does not fit the job.
    """

    @held_back()
    def __init__(
        self,
        context: Context,
        workers: Any,
        *,
        serialization: bool = True,
        batching: bool = True,
        scheduling: bool = True,
        adaptive_depth: bool = True,
        pattern: str = AUTO,
        factors: bool = True,
        planner: Planner = "search",
        in_flight_bytes: int | None = None,
        profile: GivenProfile | Mapping[StepName, GivenProfile] | None = None,
        replan: Replan = "never",
        sparse: SparseMethod = "gather",
        device_list: Sequence[str] | None = None,
        plan: Plan | Mapping[StepName, Plan] | None = None,
        marks: bool = True,
        analyzers: Sequence[Analyzer] | None = None,
        verbose: bool = False,
        check: bool = False,
    ) -> None:
        if not isinstance(context, Context):
            raise PlanError(
                f"ARModel takes a caramel.Context, not {type(context).__name__}; make one with "
                "caramel.Context(graph, train_op=train_op, loss=loss)"
            )
        options = Options(
            serialization,
            batching,
            scheduling,
            adaptive_depth,
            pattern,
            in_flight_bytes,
            planner,
            factors=factors,
        )
        if sparse not in ("gather", "dense"):
            raise PlanError(f"sparse must be 'gather' or 'dense', not {sparse!r}")
        if replan not in ("never", "auto"):
            raise PlanError(f"replan must be 'never' or 'auto', not {replan!r}")
        if replan == "auto" and (plan is not None or not options.plans):
            why = "a plan is given" if plan is not None else "nothing is planned"
            raise PlanError(f"replan='auto' cannot plan again where {why}: leave it out")
        context = context.feeding_whole(_told_whole_feeds(context))
        self.context = context
        self.cluster = Cluster.coerce(workers)
        self._watch = Stopwatch(verbose)
        devices = replica_devices(self.cluster.devices, device_list)
        _refuse_remote_python(context.op_graph, self.cluster)
        profiles = _by_step(profile, context, "profile")
        plans = _by_step(plan, context, "plan")
        measured = {
            name: _measured(profiles.get(name), context, len(devices)) for name in context.steps
        }
        assembly = Assembly(self._watch, check=check)
        self._graph = assembly.graph
        common = Common(
            self.cluster,
            devices,
            options,
            (*ANALYZERS, *(analyzers or ())),
            sparse,
            marks,
            again=replan == "auto",
            assembly=assembly,
            watch=self._watch,
        )
        facts = over_steps(
            {name: step.job for name, step in context.steps.items()},
            lambda name, job, known: common.analysis(
                context.op_graph, job, [*measured[name], *known]
            ),
        )
        self.steps: dict[StepName, StepModel] = {}
        self._joint = JointSteps(self.steps, common)
        for name, own in context.steps.items():
            keeps = measured[name] and plan is None and not analyzers
            self.steps[name] = StepModel(
                name,
                own,
                facts[name],
                common,
                self._joint,
                plan=plans.get(name),
                cache_key=_cache_key(own, measured[name], common) if keeps else None,
            )
        step = next(iter(self.steps.values()))
        self._step, self._plans = step, step.plans
        self.plan, self.windows, self.variants = step.plan, step.windows, step.variants
        self.traffic = step.traffic

    @property
    def decision(self) -> Decision:
        """Why the plan is what it is, and what else was looked at; if several, the last one."""
        return self._step.decision

    @property
    def graph(self) -> tf.Graph:
        """The distributed graph, with all plans that it has so far.

        It is made when it is asked for, which takes about as long as all of the rewriting; a
        session does without it.
        """
        return self._graph.as_graph()

    @property
    def graph_size(self) -> tuple[int, int]:
        """How many nodes the distributed graph has, and how many bytes it takes to send it."""
        return self._graph.size

    def explain(
        self, measured: Sequence[Timeline] | Timeline = (), *, measured_step_s: float | None = None
    ) -> ShownExplanation:
        """What bounds a step of the plan, why each group goes when it goes, what would help.

        Printing what is returned shows it as tables, `save_page` writes it as an HTML page.

        Args:
            measured: traced steps of a session (what `Session.trace` returns), to be compared with
                what is predicted; the plan that did them is explained then.
            measured_step_s: the usual step without a trace, as `Session.metrics` knows it.

        Raises:
            PlanError: nothing is known of times (there was no profile, and no step was traced yet),
                there is one worker only, or the traced steps were done by different plans.
        """
        return self._step.explain(measured, measured_step_s=measured_step_s)

    def add_variant(self, plan: Plan, name: str) -> Plan:
        """Add another plan for the same job, for sessions to change to.

        It works on the same variables, input pipelines and tables as the model's own plan, so each
        step may be done by another one. Sessions that are open can use it, too.

        Args:
            plan: as the model's `plan`: what it decides is taken from it, the rest from the job.
            name: what `Session.use` and `Session.metrics` call it.

        Returns:
            The plan as it is carried out, with all that follows from what it decides.

        Raises:
            PlanError: it does not fit the job, or the name is taken.
        """
        return self._step.add_variant(plan, name)

    def session(
        self,
        *,
        start_timeout_s: float = 60.0,
        step_timeout_s: float = 1800.0,
        config: Any = None,
        trials: TrialSettings | Literal["auto"] | None = "auto",
        replanning: ReplanSettings | None = None,
        stalls: StallSettings | None = DEFAULT_STALLS,
        initial_feeds: Mapping[Any, Any] | None = None,
    ) -> Session:
        """Connect to the workers and initialise all variables.

        No plan can stop a job: where one whose steps have not ended yet takes a hundred times as
        long as predicted or usual (at least half a minute; two where nothing is known), its step is
        done by the plain plan instead, and a warning in the log says so
        (`caramel.runtime.control.probation`).

        Args:
            start_timeout_s: how long to wait for the workers, in seconds.
            step_timeout_s: how long one step may take, in seconds, before it counts as failed. To
                place the graph of a plan, before its first step, may take longer.
            config: a `tf.compat.v1.ConfigProto` with options of the session.
            trials: let plans take turns during the first steps, each an ordinary exact step, and
                keep the fastest. With "auto" those that a search has found are tried, the plain one
                among them; with settings of your own also those that you have added to the model,
                and all of them again in every session. None lets the model's own plan do all steps,
                and nothing is planned while the job runs.
            replanning: when a job measures itself and plans while it runs; by default as usual.
            stalls: when a step counts as stalled, so that what it waits for is logged and told by
                `Session.metrics`; None for never.
            initial_feeds: values by tensor or name, of placeholders on which the initial values of
                variables depend.

        Raises:
            FeedError: such a placeholder is not fed; names the variable.
            ClusterError: a device that `device_list` or the graph (by `tf.device`) asks for is not
                there; lists those that the workers have. For ops of the graph, a config with
                `allow_soft_placement` lets the CPU take its place.
            WorkerStartError: a worker cannot be reached; names its address.
            PlanError: an argument cannot be.
        """
        _check_seconds(start_timeout_s=start_timeout_s, step_timeout_s=step_timeout_s)
        if trials != "auto":
            _check_settings("trials", trials, TrialSettings, "'auto' or None")
        if config is not None and not isinstance(config, tf.compat.v1.ConfigProto):
            raise PlanError(f"config must be a tf.compat.v1.ConfigProto, or None, not {config!r}")
        _check_settings("replanning", replanning, ReplanSettings)
        _check_settings("stalls", stalls, StallSettings)

        settings = ControlSettings(
            trials=TrialSettings() if trials == "auto" else trials,
            tries_all=trials != "auto",
            replanning=replanning or ReplanSettings(),
            stalls=stalls,
        )
        return Session(
            {name: step.job for name, step in self.steps.items()},
            settings,
            self.cluster,
            start_timeout_s=start_timeout_s,
            step_timeout_s=step_timeout_s,
            config=config,
            report=self._watch.note,
            initial_feeds=initial_feeds,
        )


def _cache_key(context: Context, measured: Sequence[Any], common: Common) -> str:
    """Under what the plan of a step is kept that proves the fastest."""
    job = context.job
    known = (*measured, common.devices, common.options, common.sparse, __version__)
    known += (job.train_op, job.loss, job.reduction, job.loss_weight, sorted(job.replicated_feeds))
    return digest(graph_hash(context.graph_def), *map(repr, (*known, common.cluster.where)))


def _by_step(given: Any, context: Context, what: str) -> Mapping[StepName, Any]:
    """What is given for each step, by its name.

    Raises:
        PlanError: one thing is given for several steps, or something for a step that there is not.
    """
    if given is None:
        return {}
    steps = context.steps
    if not isinstance(given, Mapping):
        if len(steps) > 1:
            raise PlanError(
                f"{what} must be a mapping by step, since the job has several: {told(steps)}"
            )
        return dict.fromkeys(steps, given)
    if unknown := [name for name in given if name not in steps]:
        raise PlanError(f"{what}: there is no step {unknown[0]!r}; the steps are {told(steps)}")
    return given


def _measured(
    profile: Profile | str | os.PathLike[str] | None, context: Context, workers: int
) -> list[Any]:
    """The facts of a profile that are about this job.

    Raises:
        ProfileError: it cannot be read, or is about another job or another number of workers.
    """
    if profile is None or workers == 1:
        return []
    known = profile if isinstance(profile, Profile) else Profile.load(profile)
    return [known.timing_of(graph_hash(context.graph_def)), known.network(workers)]


def _check_seconds(**given: Any) -> None:
    """Raise unless each is a time that ends."""
    for name, value in given.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not (is_number and 0 < value < math.inf):
            raise PlanError(f"{name} must be a number of seconds, more than 0, not {value!r}")


def _check_settings(name: str, value: Any, kind: type[Any], others: str = "None") -> None:
    """Raise unless an argument is of a kind of settings, or None."""
    if value is not None and not isinstance(value, kind):
        raise PlanError(f"{name} must be a caramel.{kind.__name__}, or {others}, not {value!r}")


def _told_whole_feeds(context: Context) -> frozenset[str]:
    """The placeholders that do not go with the examples, which are logged with the reason."""
    jobs = [step.job for step in context.steps.values()]
    found = whole_feeds(context.op_graph, jobs)
    for name, reason in found.items():
        _log.warning("'%s' is fed whole to every worker: %s", name, reason)
    return frozenset(found)


def _refuse_remote_python(graph: OpGraph, cluster: Cluster) -> None:
    """Python functions run only in the process that defined them."""
    if cluster.kind == "embedded":
        return
    for op in graph:
        if op.kind in PYTHON_CALLS:
            raise UnsupportedOpError(
                f"'{op.name}' ({op.kind}) calls a Python function, which exists in this process "
                "only; workers in other processes cannot run it"
            )
