"""From a single-device job to a distributed one: facts, plan, graph, session."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Literal

import tensorflow as tf

from caramel.analysis import Analyzer
from caramel.analyzers import ANALYZERS
from caramel.assembly import Assembly
from caramel.cluster import Cluster
from caramel.collector import held_back
from caramel.context import Context
from caramel.devices import replica_devices
from caramel.errors import PlanError, UnsupportedOpError
from caramel.fingerprint import digest, graph_hash
from caramel.graph import OpGraph
from caramel.kinds import PYTHON_CALLS
from caramel.plan import Plan, SparseMethod
from caramel.planning.choose import Decision
from caramel.planning.options import Options, Planner
from caramel.planning.pattern import AUTO
from caramel.profile import Profile
from caramel.replanning import Replan, ReplanSettings
from caramel.report.shown import ShownExplanation
from caramel.session import Session
from caramel.stalls import DEFAULT as DEFAULT_STALLS
from caramel.stalls import StallSettings
from caramel.step_model import Common, StepModel
from caramel.stopwatch import Stopwatch
from caramel.timeline import Timeline
from caramel.trials import TrialSettings
from caramel.version import __version__


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
            "search" then lets the job trace a few of its first steps, and plans from these.
        replan: "auto" plans again from fresh measurements when steps take much longer than
            expected; "never" only says so.
        sparse: how sparse gradients are: "gather" brings the rows of all workers to each, "dense"
            adds up whole matrices.
        device_list: a device for each replica, in place of one replica on each worker; several
            may be on one task.
        plan: a plan to carry out in place of a new one, as `ARModel.plan` or `Plan.from_json` gave
            it, perhaps with other groups, edges or gates; nothing is decided by the options above
            then, and facts serve only to explain it.
        marks: let workers mark in each step how far each group has come, so that a session can say
            what a late step waits for (`Session.metrics`); it costs well below 1 % of usual steps.
        analyzers: functions from facts to a fact that replace or add to the built-in ones.
        verbose: print each part of the build with its time.
        check: look at the rewritten graph, at some cost; should it be broken, the error names the
            modifier that did it.

    Attributes:
        plan: everything that will happen, as pure data.
        windows: when each parameter can be aggregated; None if nothing is known of times.
        variants: by name, the plans that a session can change between: `plan`, called "own", and
            what `add_variant` has added.
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
        profile: Profile | str | os.PathLike[str] | None = None,
        replan: Replan = "never",
        sparse: SparseMethod = "gather",
        device_list: Sequence[str] | None = None,
        plan: Plan | None = None,
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
        self.context = context
        self.cluster = Cluster.coerce(workers)
        self._watch = Stopwatch(verbose)
        devices = replica_devices(self.cluster.devices, device_list)
        _refuse_remote_python(context.op_graph, self.cluster)
        measured = _measured(profile, context, len(devices))
        cache_key: str | None = None  # of the plan that proves the fastest
        if measured and plan is None and not analyzers:
            job = context.job
            known = (*measured, devices, options, sparse, __version__, job.train_op, job.loss)
            known += (job.reduction, sorted(job.replicated_feeds), self.cluster.where)
            cache_key = digest(graph_hash(context.graph_def), *map(repr, known))
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
        step = StepModel(context, common, measured=measured, plan=plan, cache_key=cache_key)
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
            WorkerStartError: a worker cannot be reached; names its address.
            PlanError: an argument cannot be.
        """
        _check_seconds(start_timeout_s=start_timeout_s, step_timeout_s=step_timeout_s)
        if trials != "auto":
            _check_settings("trials", trials, TrialSettings, "'auto' or None")
        _check_settings("replanning", replanning, ReplanSettings)
        _check_settings("stalls", stalls, StallSettings)
        return Session(
            self._step.start(trials, replanning, stalls),
            self.cluster,
            start_timeout_s=start_timeout_s,
            step_timeout_s=step_timeout_s,
            config=config,
            report=self._watch.note,
            initial_feeds=initial_feeds,
        )


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
