"""The front for users: a model whose variables live on parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from caramel.analyzers.analysis import Analyzer
from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.errors import PlanError
from caramel.core.orders import Orders
from caramel.core.plan import Plan
from caramel.core.planned_job import SparseMethod
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.arguments import SECONDS, at_least, checked
from caramel.models.model import Model
from caramel.models.options import GivenProfile, ModelOptions
from caramel.planning.serving.observed_orders import observed_orders
from caramel.planning.serving.planner import Ordering, ServingPlanner
from caramel.report.shown_order import ShownOrder
from caramel.runtime.control.drift import Replan

Mode = Literal["training", "inference"]


class PSModel(Model):
    """A training job over many workers whose variables live on parameter servers.

    Workers receive the parameters, compute, and send raw gradients. Servers add these up in the
    order of the workers, and update once. So a step gives the bits of `ARModel` with the pattern
    "shuffle". What workers gather from their own examples (moving averages) stays with them.
    Parameters that are larger than a server's share are split by rows where their updates allow it.

    Args:
        context: the single-device job.
        workers: how many workers to embed in this process, or a `Cluster`, a
            `tf.train.ClusterSpec` or a mapping of both jobs, or a list of the workers' addresses.
        parameter_servers: how many servers to embed, or a list of their addresses; None where
            `workers` has them.
        ordering: in which order workers receive parameters. "search" takes the one that is
            predicted to make steps the shortest, "tac" and "tic" follow TicTac with and without
            measured times, "execution_ordering" the paper of that name, "random" a random one; with
            None they come in any order, another in each step. What needs times is made by TIC until
            the job has measured some of its first steps, unless there is a profile. With trials,
            no order at all takes its turn, too, and the fastest stays.
        in_flight_bytes: how many bytes may be on their way from a server to a worker at a time, and
            from a worker to a server where gradients are ordered; by default as many as usually are
            best. With 0 each transfer waits for the one before, so that there is exactly one order,
            at some cost.
        overlap: whether variables may be sent to workers as soon as they were updated, for the next
            step, while other gradients are still on their way; as many as are predicted to make
            steps the shortest.
        order_gradients: whether workers may also send gradients in a planned order, where that is
            predicted to make steps shorter by more than 5 %. It needs times, as the search does.
        mode: "training", or "inference" for agents that receive the parameters and compute the
            loss, and what else is fetched, and update nothing.
        profile: measured facts, a `Profile` or the path of one that ``caramel profile`` wrote. If
            the job has several steps, a mapping by step.
        replan: "auto" plans again from fresh measurements when steps take much longer than
            expected; "never" only says so.
        sparse: how sparse gradients are: "gather" sends their rows, "dense" whole matrices.
        device_list: a device for each replica, in place of one replica on each worker.
        marks: let workers and servers mark in each step how far each transfer has come, so that a
            session can say what a late step waits for (`Session.metrics`).
        plan: a plan to carry out in place of a new one, as `PSModel.plan` or `Plan.from_json` gave
            it, perhaps with other pulls. If the job has several steps, a mapping by step.
        analyzers: functions from facts to a fact that replace or add to the built-in ones.
        verbose: print each part of the build with its time.
        check: look at the rewritten graph, at some cost; should it be broken, the error names the
            modifier that did it.

    Attributes:
        steps, plan, windows, variants, traffic: see `ARModel`.

    Raises:
        GraphError: the job cannot be distributed.
        ClusterError: the workers or servers are described wrongly, or there are no servers.
        PlanError: there are more servers than parameters, or a plan that does not fit the job.
    """

    @checked(PlanError, apart=("context", "plan"), in_flight_bytes=at_least(0, "bytes"))
    def __init__(
        self,
        context: Context,
        workers: Any,
        parameter_servers: Any = None,
        *,
        ordering: Ordering | None = "search",
        in_flight_bytes: int | None = None,
        overlap: bool = True,
        order_gradients: bool = True,
        mode: Mode = "training",
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
        if mode not in get_args(Mode):
            raise PlanError(f"mode must be 'training' or 'inference', not {mode!r}")
        cluster = Cluster.coerce_with_servers(workers, parameter_servers)
        planner = self._planner = ServingPlanner(
            cluster.server_devices,
            ordering,
            in_flight_bytes,
            trains=mode == "training",
            overlap=overlap,
            order_gradients=order_gradients,
        )
        options = ModelOptions(
            planner,
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
        super().__init__(context, cluster, options)

    def _chosen_on(self, cluster: Cluster) -> ModelOptions:
        planner = self._planner.on(cluster.server_devices)
        return replace(super()._chosen_on(cluster), planner=planner)

    @checked(PlanError, measured_step_s=SECONDS)
    def explain(
        self, measured: Sequence[Timeline] | Timeline = (), *, measured_step_s: float | None = None
    ) -> ShownOrder:
        """Why each variable has its place in the order, and what that makes of a step.

        Printing what is returned shows it as a table, and its `save_page` writes a page with
        pictures of what workers do and of what the links of servers carry.

        Args:
            measured: traced steps of a session, whose plan is explained then.
            measured_step_s: the usual step without a trace, as `Session.metrics` knows it.

        Raises:
            PlanError: they were done by different plans.
            ProfileError: no parameter was seen on its way in them.
        """
        return self._step.explain_order(measured, measured_step_s=measured_step_s)

    @checked(PlanError)
    def orders(self, measured: Sequence[Timeline] | Timeline) -> Orders:
        """What traced steps tell of the order in which workers received parameters.

        Args:
            measured: what `Session.trace` returned, all by one plan.

        Raises:
            PlanError: they were done by different plans.
            ProfileError: no parameter was seen on its way in them.
        """
        measured = (measured,) if isinstance(measured, Timeline) else measured
        return observed_orders(self._step.plan_of(measured), measured)
