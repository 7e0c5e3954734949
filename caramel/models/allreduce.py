"""The front for users: a model whose gradients are aggregated inside the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caramel.analyzers.analysis import Analyzer
from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.errors import PlanError
from caramel.core.plan import Plan
from caramel.core.planned_job import SparseMethod
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.arguments import SECONDS, at_least, checked
from caramel.models.model import Model
from caramel.models.options import GivenProfile, ModelOptions
from caramel.planning.all_reduce_planner import AllReducePlanner
from caramel.planning.options import Options, Planner
from caramel.planning.pattern_choice import AUTO
from caramel.report.shown import ShownExplanation
from caramel.runtime.control.drift import Replan


class ARModel(Model):
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

    @checked(PlanError, apart=("context", "plan"), in_flight_bytes=at_least(0, "bytes"))
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
        planning = Options(
            serialization,
            batching,
            scheduling,
            adaptive_depth,
            pattern,
            in_flight_bytes,
            planner,
            factors=factors,
        )
        options = ModelOptions(
            AllReducePlanner(planning),
            profile=profile,
            replan=replan,
            sparse=sparse,
            device_list=device_list,
            plan=plan,
            marks=marks,
            analyzers=tuple(analyzers or ()),
            verbose=verbose,
            check=check,
        )
        super().__init__(context, Cluster.coerce(workers), options)

    @checked(PlanError, measured_step_s=SECONDS)
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
