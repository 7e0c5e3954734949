"""Runs a distributed job: training steps, evaluation, variables, checkpoints."""

from __future__ import annotations

import dataclasses
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from numbers import Integral, Real
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.capture.initial_values import check_initial_feeds
from caramel.capture.structures import (
    Fetched,
    fed_pairs,
    kind_of,
    parts_of,
    tensors_of,
    value_of,
    value_of_workers,
)
from caramel.cluster.cluster import Cluster
from caramel.core import names, op_types
from caramel.core.errors import CheckpointError, FeedError, PlanError, SessionError
from caramel.core.facts import Variable
from caramel.core.names import TensorRef
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.stopwatch import Stopwatch
from caramel.core.variable_access import handle_of
from caramel.modifiers import variable_ops
from caramel.runtime.checkpoint import (
    Restored,
    SavedTensor,
    read_checkpoint,
    some_of,
    write_checkpoint,
)
from caramel.runtime.control.controller import Controller
from caramel.runtime.control.controllers import Controllers
from caramel.runtime.control.metrics import Metrics
from caramel.runtime.control.settings import ControlSettings
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.device_check import check_devices
from caramel.runtime.execution.runner import Runner
from caramel.runtime.job import Job
from caramel.runtime.steps.entries import check_entries
from caramel.runtime.steps.exchangeable import (
    check_fed,
    check_fetched,
    check_object,
    check_one_example,
)
from caramel.runtime.steps.feeds import (
    Feed,
    Rows,
    SplitFeeds,
    check_whole,
    single_feeds,
    split_feeds,
    to_array,
    to_parts,
)
from caramel.runtime.steps.step_result import Fetch, StepResult
from caramel.runtime.traces.step_timeline import timeline_of
from caramel.runtime.turns import Turns, in_turn, last_turn
from caramel.runtime.variables import SharedState

_log = logging.getLogger(__name__)


class Session:
    """A running job. Made by `ARModel.session()`; a context manager.

    Variables are initialised when it is opened. They live on the workers, and are gone when it is
    closed: save a checkpoint before. A session that nobody closes is closed when it is
    collected as garbage, and when the interpreter ends.

    Several threads may use it: its methods take turns, in the order in which they were called, but
    for `metrics`, which never waits. A method that is called within another one of the same thread,
    by a signal handler or a callback, is refused (`close` is not). In a forked child nothing but
    `metrics` and `close` can be called, and `close` does nothing there.

    Args:
        jobs: the steps of the job by name.
        settings: how plans are chosen, and when a step counts as stalled.
        cluster: the workers.
        start_timeout_s: how long to wait for the workers, in seconds.
        step_timeout_s: how long one step, or any other call, may take, in seconds; to place the
            graph of a plan may take longer.
        config: options of the TensorFlow session, such as thread counts.
        stopwatch: told how long each part of the opening takes.
        initial_feeds: values by tensor or name, of placeholders that initial values depend on.

    Raises:
        FeedError: an initial value depends on a placeholder that is not fed.
        WorkerStartError: a worker cannot be reached, or is none of this cluster.
        ClusterError: a device that is asked for does not exist.
    """

    def __init__(
        self,
        jobs: Mapping[StepName, Job],
        settings: ControlSettings,
        cluster: Cluster,
        *,
        start_timeout_s: float = 60.0,
        step_timeout_s: float = 1800.0,
        config: Any = None,
        stopwatch: Stopwatch | None = None,
        initial_feeds: Mapping[Any, Any] | None = None,
    ) -> None:
        job = self._job = next(iter(jobs.values()))
        self._turns = Turns()
        self._parts = ExitStack()  # closed in reverse: what reads marks before what it reads by
        # Also if nobody closes the session, when it is collected or the interpreter ends.
        self._end = weakref.finalize(self, _end, self._turns, self._parts)
        self._checked: set[Any] = set()  # fetches and feeds that were found complete
        self._by_handle = {variable.handle: variable for variable in job.plan.job.variables}
        stopwatch = stopwatch or Stopwatch(False)
        initial = self._whole_feeds(initial_feeds)
        check_initial_feeds(job.context.op_graph, job.context.job, initial)
        self._runner = Runner(
            job.graph,
            job.plan.job.devices,
            cluster,
            start_timeout_s=start_timeout_s,
            call_timeout_s=step_timeout_s,
            config=config,
        )
        self._parts.callback(self._runner.close)
        try:
            available = self._runner.available_devices(start_timeout_s)
            is_soft = config is not None and config.allow_soft_placement
            check_devices(job.context, job.plan.job.devices, available, is_soft=is_soft)
            self._controllers = Controllers(jobs, settings, self._runner, cluster)
            self._parts.callback(self._controllers.close)
            stopwatch.note("connect")
            self._state = SharedState(job, self._runner)
            self._runner.extend()
            stopwatch.note("place")
            self._state.initialise(initial, besides=self._controllers.preparation)
        except BaseException:
            self.close()
            raise
        stopwatch.note("initialise")

    @property
    def _controller(self) -> Controller:
        """What did the last step."""
        return self._controllers.active

    # Training

    @in_turn
    def step(
        self,
        feed_dict: Mapping[Any, Any] | None = None,
        fetches: Any = None,
        *,
        step: StepName | None = None,
    ) -> Any:
        """One synchronous training step.

        What fetches write belongs to the step: the same is proved of it as of the train op, so
        replicas cannot drift apart. Local state (the totals of a metric) each worker has for
        itself. All else that a fetch writes (another train op, an assignment) is done by a *joint*
        step, which has a plan of its own and is made in the first call with such fetches: gradients
        are aggregated, and what workers would not write alike is refused.

        Args:
            feed_dict: values by tensor or name. Batches are split over the workers on their first
                dimension, as evenly as possible; scalars and `replicated_feeds` go to every one.
                Sparse and ragged values are split by their rows.
            fetches: tensors, operations or names, or a structure of them; the loss by default. If
                one is computed from gradients or variables, or waits for the update, the step is
                done by a plan that defers nothing.
            step: which of the job's steps, where it has several.

        Returns:
            What `fetches` asks for, in the same structure: floating scalars averaged over the
            examples, results with one entry for each example concatenated in worker order, anything
            else a list with one value for each worker.

        Raises:
            FeedError: something fed does not fit, or the job has several steps and `step` is none
                of them; nothing has run.
            GraphError: workers would not write alike what is fetched; nothing has run.
            WorkerLostError: a worker was lost.
            tf.errors.OutOfRangeError: an input pipeline has ended on a worker; nothing has been
                updated.
            tf.errors.OpError: an op has failed.
        """
        return self._step(Controller.step, feed_dict, fetches, step)

    def _step(
        self,
        run: Callable[[Controller, Sequence[Fetch], SplitFeeds], StepResult],
        feed_dict: Mapping[Any, Any] | None,
        fetches: Any = None,
        step: StepName | None = None,
    ) -> Any:
        """One step: what the user gave is checked, `run` lets a controller run it."""
        self._check_open()
        wanted = self._controllers.own(step).job.context.job.loss if fetches is None else fetches
        structure = str(wanted) if isinstance(wanted, TensorRef) else wanted
        fetched, flat = self._fetches(structure)
        controller = self._controllers.serving(step, [fetch.op for fetch in flat])
        job = controller.job
        given = self._feeds(job, feed_dict)
        feeds = split_feeds(given, job.plan.workers)
        if feeds.examples is None and job.state.taken_for_batches:
            check_one_example(job, feeds)
        if composites := [each for each in given if isinstance(each, Rows)]:
            check_entries(job.context.op_graph, job.context.job, composites, feeds)
        self._check_fed(job, flat, feeds.values[0])
        if self._state.is_torn:
            self._settle()
        self._state.may_change()
        with self._state.torn_by_failures():
            self._controllers.take_over(controller)
            result = run(controller, flat, feeds)
            if result.unlike is not None:
                controller.leave_factors(result.unlike)
                self._state.tear()
        return self._packed(fetched, result.values, result.examples, job)

    @in_turn
    def trace(
        self,
        steps: int = 3,
        feed_dict: Mapping[Any, Any] | None = None,
        *,
        step: StepName | None = None,
    ) -> tuple[Timeline, ...]:
        """What every worker does when, in each of some training steps.

        They are ordinary steps of the plan that did the last one, but tracing makes them slower; so
        they count in no trial of plans. In each, the deferred part of the step before is seen.

        All times are by the clock of worker 0. The others' clocks are compared with it beforehand,
        to about half of a round trip.

        Args:
            steps: how many, at least 1.
            feed_dict: as for `step`, for each of them.
            step: which of the job's steps, where it has several.

        Raises:
            FeedError: as `step`, or `steps` is no such number.
            InstallationError: TensorFlow does not name what it traces as Caramel reads it.
            WorkerLostError, tf.errors.OpError: as `step`.
        """
        self._check_open()
        if not isinstance(steps, Integral) or steps < 1:
            given = steps if isinstance(steps, Real) else f"a {type(steps).__name__}"
            raise FeedError(
                f"session.trace takes a number of steps, at least 1, not {given}; what is fed goes "
                "into feed_dict"
            )
        timelines = []
        plan = ""
        traces: list[Any] = []

        def run(controller: Controller, fetches: Sequence[Fetch], feeds: SplitFeeds) -> StepResult:
            nonlocal plan
            result = controller.step_as_before(fetches, feeds, traces)
            plan = controller.executor.name
            return result

        clock_offsets_s = self._runner.clock_offsets_s()
        for _ in range(steps):
            traces.clear()
            self._step(run, feed_dict, step=step)
            stats = [metadata.step_stats for metadata in traces]
            timeline = timeline_of(stats, self._job.plan.job.devices, clock_offsets_s)
            timelines.append(dataclasses.replace(timeline, plan=plan))
        return tuple(timelines)

    # Plans

    @in_turn
    def use(self, plan: str, *, step: StepName | None = None) -> None:
        """Let another plan of the model do all following steps. Trials and planning end.

        Plans differ in when they transfer what. With the patterns "shuffle" and "exchange", and by
        factors, they compute the same bits, so the parameters never show which plan did which step.
        (Should processors differ, so that they compute other bits from the same factors, the
        session goes on with a plan that sends none.)

        Args:
            plan: its name, one of `ARModel.variants`, also one that was added since.
            step: whose plan it is, where the job has several steps.

        Raises:
            PlanError: there is no such plan.
            FeedError: the job has several steps, and `step` is none of them.
            WorkerLostError, tf.errors.OpError: what was left to do of the last step has failed.
        """
        self._check_open()
        with self._state.torn_by_failures():
            self._controllers.own(step).use(plan)

    @in_turn
    def try_plans(
        self,
        settings: TrialSettings | None = None,
        *,
        plans: Sequence[str] | None = None,
        step: StepName | None = None,
    ) -> None:
        """Let plans of the model take turns in the next steps, and keep the fastest.

        Args:
            settings: how they are tried.
            plans: their names; by default all. The first one stays unless another is faster.
            step: whose plans they are, where the job has several steps.

        Raises:
            PlanError: there is no such plan, or `settings` are none.
            FeedError: the job has several steps, and `step` is none of them.
        """
        self._check_open()
        if settings is not None and not isinstance(settings, TrialSettings):
            raise PlanError(f"settings must be caramel.TrialSettings or None, not {settings!r}")
        if isinstance(plans, str) or not isinstance(plans, Iterable | None):
            raise PlanError(f"plans must be a list of names, not {plans!r}")
        controller = self._controllers.own(step)
        tried = list(controller.job.plans.names) if plans is None else list(plans)
        controller.try_plans(tried, settings or TrialSettings())

    def metrics(self, *, step: StepName | None = None) -> Metrics:
        """How training goes: steps, the plan in use, step times, trials, stalls.

        Also after the end, and from another thread while a step runs.

        Args:
            step: of which step, where the job has several.

        Raises:
            FeedError: the job has several steps, and `step` is none of them.
        """
        return self._controllers.metrics(step)

    # Anything but training

    @in_turn
    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run part of the graph once, without training, as `tf.Session.run` would.

        It runs on worker 0, on variables that are equal on all workers and on the mean of those
        that are not (moving averages). What it assigns to variables is sent to all workers; what
        it does to input pipelines and tables of the training step is done on all of them.

        Args:
            fetches: tensors, operations or names, or a structure of them.
            feed_dict: values by tensor or name, none of them split.

        Raises:
            FeedError: the train op is among what would run, or something fed does not fit.
        """
        self._check_open()
        fetched, flat = self._fetches(fetches)
        feeds = self._whole_feeds(feed_dict)
        if not flat:
            return fetches
        self._check_fed(self._job, flat, feeds, training=False)
        closure = self._job.context.op_graph.ancestors(
            [fetch.op for fetch in flat], stop=frozenset(tensor.op for tensor in feeds)
        )
        self._refuse_training(flat, closure)
        self._settle()
        self._state.refresh()
        prefix = variable_ops.source_prefix(self._job.plan)
        tensors = [self._readable(prefix, f.tensor) for f in flat if f.tensor is not None]
        targets = [names.in_copy(prefix, fetch.op) for fetch in flat if fetch.tensor is None]
        fed = {names.tensor_in_copy(prefix, t): value for t, value in feeds.items()}
        written = self._written(closure)
        with self._state.torn_by_failures() if written else nullcontext():
            results = iter(self._runner.run(tensors, targets, fed, "session.run"))
            self._repeat_on_workers(flat, feeds)
            self._state.broadcast(written)
        values = [None if fetch.tensor is None else next(results) for fetch in flat]
        return fetched.pack(
            [
                value_of(kind, own) if (kind := kind_of(leaf)) else own[0]
                for leaf, own in fetched.by_leaf(values)
            ]
        )

    def _refuse_training(self, flat: Sequence[Fetch], closure: set[str]) -> None:
        """Raise if a fetch belongs to training: it would be that of one worker, or of none."""
        for train_op in self._controllers.train_ops:
            if train_op in closure:
                raise FeedError(
                    f"session.run would run the train op '{train_op}' on one worker only; use "
                    "session.step"
                )
        consumers = {name for g in self._job.plan.job.gradients for name in g.consumers}
        for fetch in flat:
            name = names.in_copy(variable_ops.source_prefix(self._job.plan), fetch.op)
            of_training = name not in self._job.graph or (
                self._job.plan.workers > 1 and closure.intersection(consumers)
            )
            if of_training:
                raise FeedError(
                    f"'{fetch.op}' is computed from gradients, which only a training step has; "
                    "fetch it with session.step"
                )

    def _repeat_on_workers(
        self, flat: Sequence[Fetch], feeds: Mapping[TensorRef, np.ndarray]
    ) -> None:
        """Do to every worker's pipelines and tables what was done to the source's."""
        prefix = variable_ops.source_prefix(self._job.plan)
        prefixes = [names.replica_prefix(worker) for worker in range(self._job.plan.workers)]
        ops = [fetch.op for fetch in flat if self._prepares_workers(fetch.op)]
        targets = [names.in_copy(p, op) for op in ops for p in prefixes if p != prefix]
        if targets:
            fed = {
                names.tensor_in_copy(p, tensor): value
                for p in prefixes
                for tensor, value in feeds.items()
                if p != prefix
            }
            self._runner.run([], targets, fed, "session.run on all workers")

    def _prepares_workers(self, op: str) -> bool:
        """Whether an op starts an input pipeline of the step, or fills a table."""
        graph = self._job.context.op_graph
        tables = set(self._job.context.job.table_initializers)
        iterators = set(self._job.pipelines.iterators)
        for name in graph.ancestors([op]):
            if name in tables:
                return True
            if graph[name].kind == "MakeIterator":
                return handle_of(graph, graph[name].inputs[1]) in iterators
        return False

    def _written(self, closure: Iterable[str]) -> list[Variable]:
        writes = self._job.access.writes
        written = {name for op in closure for name in writes.get(op, ())}
        return [variable for variable in self._job.plan.job.variables if variable.name in written]

    # Variables

    @in_turn
    def variables(self, worker: int | None = None) -> dict[str, np.ndarray]:
        """The values of all variables, by the names the user gave them.

        Args:
            worker: whose replica's; by default those that are equal on all workers, and the mean
                of those that are not.
        """
        self._check_open()
        plan = self._job.plan
        if worker is not None and not (isinstance(worker, Integral) and 0 <= worker < plan.workers):
            raise FeedError(f"there is no worker {worker!r}; they are 0 to {plan.workers - 1}")
        self._settle()
        return dict(self._state.values(plan.job.variables, worker))

    @in_turn
    def save(self, path: str | os.PathLike[str], *, global_step: int | None = None) -> str:
        """Write a checkpoint that `tf.compat.v1.train.Saver` of the user's graph can restore.

        It holds the user's global variables and nothing else, is written by this process, and
        replaces an earlier one of that path only when it is whole.

        Args:
            path: its path, without the endings that TensorFlow adds.
            global_step: a number to append to the path, as ``-100``.

        Returns:
            The path that restores it.

        Raises:
            CheckpointError: it cannot be written.
        """
        self._check_open()
        _check_path(path)
        if global_step is not None and not isinstance(global_step, Integral):
            raise CheckpointError(
                f"global_step must be a whole number, not {global_step!r}; "
                "session.run(global_step) returns that of a tensor"
            )
        self._settle()
        saved = [variable for variable in self._job.plan.job.variables if variable.saved]
        if not saved:
            raise CheckpointError("the graph has no global variables to save")
        values = dict(self._state.values(saved))
        prefix = os.fspath(path) if global_step is None else f"{os.fspath(path)}-{global_step}"
        return write_checkpoint(
            prefix, [SavedTensor(v.full_name, v.slice_spec, values[v.name]) for v in saved]
        )

    @in_turn
    def restore(self, path: str | os.PathLike[str], *, partial: bool = False) -> tuple[str, ...]:
        """Give all global variables the values of a checkpoint, also of the single-device graph's.

        What it holds besides is left alone, and a warning in the log names it.

        Args:
            path: what `save` returned, or a directory, whose latest checkpoint is taken.
            partial: whether it may lack some of the variables (an optimizer's slots, say), which
                keep their values; a warning names them. One of the wrong shape is an error still.

        Returns:
            The names of the variables that it lacks.

        Raises:
            CheckpointError: it does not exist or does not fit; the variables are untouched.
        """
        self._check_open()
        _check_path(path)
        saved = [variable for variable in self._job.plan.job.variables if variable.saved]
        if not saved:
            raise CheckpointError("the graph has no global variables to restore")
        found = read_checkpoint(path, saved, partial=partial)
        try:
            self._settle()
        except tf.errors.OpError as error:  # nothing of what was to be done counts any more
            _log.info("what was left to do of the last step failed before a restore: %s", error)
            self._settle()
        with self._state.torn_by_failures():
            self._state.assign([v for v in saved if v.name in found.values], found.values)
        _tell_of_difference(path, found)
        return found.missing

    def _settle(self) -> None:
        """Do what is pending of the last step; then all replicas are equal."""
        with self._state.torn_by_failures():
            self._controller.flush()
        self._state.mend()

    # Names

    def _fetches(self, structure: Any) -> tuple[Fetched, list[Fetch]]:
        """What the user fetches: as a structure, and each tensor of it in order."""
        fetched = Fetched.of(structure)
        flat = []
        for leaf in fetched.leaves:
            apart = kind_of(leaf) is not None
            own = [self._fetch(tensor) for tensor in tensors_of(leaf)]
            flat += [dataclasses.replace(fetch, apart=apart) for fetch in own]
        return fetched, flat

    def _packed(
        self, fetched: Fetched, values: Sequence[Any], examples: Sequence[int] | None, job: Job
    ) -> Any:
        """What a step returns: of composites the rows of all workers, if each is an example."""
        results = []
        for leaf, own in fetched.by_leaf(values):
            kind = kind_of(leaf)
            if kind is None:
                results.append(own[0])
                continue
            ops = [job.context.tensor(tensor, "fetches").op for tensor in tensors_of(leaf)]
            has_rows = not job.state.worker_dependent.isdisjoint(ops)
            results.append(value_of_workers(kind, own, examples if has_rows else None))
        return fetched.pack(results)

    def _fetch(self, given: Any) -> Fetch:
        check_object(given)
        op, index = self._job.context.tensor_or_operation(given, "fetches")
        is_operation = isinstance(given, tf.Operation) or (
            index is None and not self._job.context.op_graph[op].outputs
        )
        is_run = is_operation or (index is None and isinstance(given, str))
        tensor = None if is_run else TensorRef(op, index or 0)
        check_fetched(self._job, op, None if op in self._by_handle else tensor)
        return Fetch(op, tensor)

    def _feeds(self, job: Job, feed_dict: Mapping[Any, Any] | None) -> list[Feed | Rows]:
        """What the user feeds, with what is known of each tensor."""
        if feed_dict is not None and not isinstance(feed_dict, Mapping):
            raise FeedError(
                f"feed_dict maps tensors or names to values; it is a {type(feed_dict).__name__}"
            )
        feeds = [
            self._composite(job, given, value)
            if kind_of(given) is not None
            else [self._one_feed(job, given, value)]
            for given, value in fed_pairs(feed_dict or {})
        ]
        flat = [feed for each in feeds for feed in each]
        tensors = [feed.tensor for each in flat for feed in single_feeds(each)]
        if len(set(tensors)) < len(tensors):
            twice = next(tensor for tensor in tensors if tensors.count(tensor) > 1)
            raise FeedError(f"feed_dict has two values for '{twice}'")
        return flat

    def _composite(self, job: Job, given: Any, value: Any) -> list[Feed | Rows]:
        """What is fed for a sparse or ragged tensor, or for slices, whose rows are no examples."""
        tensors, parts = tensors_of(given), parts_of(given, value)
        feeds = [self._one_feed(job, *pair) for pair in zip(tensors, parts, strict=True)]
        kind = kind_of(given)
        if kind == "sparse" or kind == "ragged":
            return [Rows(kind, tuple(feeds))]
        return [dataclasses.replace(feed, whole=True) for feed in feeds]

    def _one_feed(self, job: Job, given: Any, value: Any) -> Feed:
        """A tensor that is fed."""
        context, state = job.context, job.state
        tensor = context.tensor(given, "feed_dict")
        check_fed(job, tensor, value)
        spec = context.op_graph.spec(tensor)
        is_input = context.op_graph[tensor.op].kind.startswith("Placeholder")
        differs = tensor.op in state.worker_dependent
        return Feed(
            tensor,
            spec,
            tf.as_dtype(spec.dtype).as_numpy_dtype,
            value,
            whole=tensor.op in context.job.replicated_feeds,
            undeclared=tensor.op in state.undeclared,
            must_be_scalar=tensor.op in state.scalar_only or not (is_input or differs),
        )

    def _whole_feeds(self, feed_dict: Mapping[Any, Any] | None) -> dict[TensorRef, np.ndarray]:
        """What the user feeds, none of it split."""
        arrays = {}
        for given in self._feeds(self._job, feed_dict):
            parts = to_parts(given) if isinstance(given, Rows) else (to_array(given),)
            for feed, part in zip(single_feeds(given), parts, strict=True):
                check_whole(feed, part)
                arrays[feed.tensor] = part
        return arrays

    def _check_fed(
        self,
        job: Job,
        flat: Sequence[Fetch],
        fed: Mapping[TensorRef, Any],
        *,
        training: bool = True,
    ) -> None:
        """Raise unless every placeholder that is needed is fed."""
        context = job.context
        roots = [fetch.op for fetch in flat]
        if training:
            roots += [context.job.train_op, context.job.loss.op]
        given = frozenset(tensor.op for tensor in fed)
        key = (id(context), tuple(roots), given)
        if key not in self._checked:
            needed = context.op_graph.ancestors(roots, stop=given) - given
            missing = [
                name
                for name in context.op_graph.ops
                if name in needed and context.op_graph[name].kind in op_types.WITHOUT_DEFAULT
            ]
            if missing:
                raise FeedError(
                    "nothing is fed for " + ", ".join(f"'{name}:0'" for name in missing)
                )
            self._checked.add(key)

    def _readable(self, prefix: str, tensor: TensorRef) -> TensorRef:
        """A tensor in a copy; in place of a variable's handle its value."""
        variable = self._by_handle.get(tensor.op)
        if variable is None:
            return names.tensor_in_copy(prefix, tensor)
        return variable_ops.source_value(variable)

    # Life

    def _check_open(self) -> None:
        if not self._end.alive:
            raise SessionError("the session is closed; open another with model.session()")

    @last_turn
    def close(self) -> None:
        """End the session; the variables are gone. Closing it again does nothing.

        It waits for what another thread is doing in the session, a step for no longer than
        `step_timeout_s`. Other threads that wait for their turn then get a `SessionError`. In a
        forked child it returns at once, and the parent goes on.
        """
        self._end()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _end(turns: Turns, parts: ExitStack) -> None:
    """Close the parts of a session.

    Not in a forked child, and not when the interpreter ends while a thread is in the middle of
    something, which may take long.
    """
    if not turns.are_of_others:
        parts.close()


def _check_path(path: Any) -> None:
    """Raise unless a path of a checkpoint was given."""
    if not isinstance(path, str | os.PathLike):
        raise CheckpointError(f"the path of a checkpoint must be a string or a path, not {path!r}")


def _tell_of_difference(path: str | os.PathLike[str], found: Restored) -> None:
    """Log where a checkpoint that was restored and the graph differ."""
    if found.missing:
        _log.warning(
            "checkpoint '%s' lacks %d variables, which are as they were: %s",
            os.fspath(path),
            len(found.missing),
            some_of(found.missing),
        )
    if found.left_over:
        _log.warning(
            "checkpoint '%s' holds %d values of which the graph has no variable: %s",
            os.fspath(path),
            len(found.left_over),
            some_of(found.left_over),
        )
