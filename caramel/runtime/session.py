"""What a running job can be asked to do: training steps, evaluation, variables, checkpoints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from caramel.core.errors import CheckpointError, FeedError, PlanError
from caramel.core.profile import Profile
from caramel.core.timeline import Timeline
from caramel.core.train_steps import StepName
from caramel.core.util.arguments import at_least, checked
from caramel.runtime.batch_evaluation import evaluate_batches
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.recovery.kept_calls import StepCall
from caramel.runtime.rotation import Rotation
from caramel.runtime.running_job import RunningJob
from caramel.runtime.saving import assign_variables, restore_variables
from caramel.runtime.session_life import SessionLife
from caramel.runtime.summaries import Summaries
from caramel.runtime.training import profiled_steps, traced_steps
from caramel.runtime.turns import in_turn

_MOST_TRACED = 10_000  # steps at a time: all that is known of them is kept


class Session(SessionLife):
    """A running job. Made by `ARModel.session()`; a context manager.

    Variables are initialised when it is opened. They live on the workers, and are gone when it is
    closed: save a checkpoint before. A session that nobody closes is closed when it is
    collected as garbage, and when the interpreter ends.

    Several threads may use it: its methods take turns, in the order in which they were called, but
    for `metrics`, which never waits. A method that is called within another one of the same thread,
    by a signal handler or a callback, is refused (`close` is not). In a forked child nothing but
    `metrics` and `close` can be called, and `close` does nothing there.
    """

    # Training

    @checked(FeedError, apart=("feed_dict", "fetches"))
    @in_turn
    def step(
        self,
        feed_dict: Mapping[Any, Any] | None = None,
        fetches: Any = None,
        *,
        step: StepName | None = None,
        repeat: bool = False,
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
            repeat: whether a batch may have fewer examples than there are workers. Workers without
                any then get the first one: it counts nothing in the loss and in gradients, but in
                what they keep for themselves (moving averages, totals).

        Returns:
            What `fetches` asks for, in the same structure: floating scalars as the graph shows how
            they count (sums added up, others averaged over the examples), results with one entry
            for each example concatenated in worker order, anything else a list with one value for
            each worker.

        Raises:
            FeedError: something fed does not fit, or the job has several steps and `step` is none
                of them; nothing has run.
            GraphError: workers would not write alike what is fetched; nothing has run.
            WorkerLostError: a worker was lost.
            tf.errors.OutOfRangeError: an input pipeline has ended on a worker; nothing has been
                updated.
            tf.errors.OpError: an op has failed.
        """
        work, call = self._open(), StepCall(feed_dict, fetches, step, repeat)
        with self._course.counted():
            if self._summaries is None:
                return work.steps(call, call.do)
            return self._summaries.step(work, call, self._course.steps + 1)

    @checked(FeedError, apart=("steps", "feed_dict"))
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
        work = self._open()
        _check_number("trace", steps)
        count, call = int(steps), StepCall(feed_dict, step=step, times=int(steps))
        with self._course.counted(count):
            return work.steps(call, lambda running: traced_steps(running, count, feed_dict, step))

    @checked(FeedError, apart=("steps", "feed_dict"))
    @in_turn
    def profile(
        self,
        steps: int = 5,
        feed_dict: Mapping[Any, Any] | None = None,
        *,
        step: StepName | None = None,
    ) -> Profile:
        """What the job tells of itself while it trains, for a new plan.

        It is for jobs that `caramel profile` cannot measure, as no worker can run them alone. A new
        model plans from it (`PlacedModel(context, workers, profile=session.profile(...))`), and
        takes over the variables by `save` and `restore`.

        It has the least time of each op on the device that computes it now. Where devices differ,
        that is not its time on another one: `speeds` of a new model make all ops of a device faster
        or slower alike. Sizes of tensors are those of one worker's examples. The rate of the
        network is that of tensors of more than 65.5 kB; where only smaller ones cross between the
        devices of a replica, the profile has no network. Steps are traced as by `trace`.

        Args:
            steps: how many, at least 1.
            feed_dict: as for `step`, for each of them.
            step: which of the job's steps, where it has several.

        Raises:
            FeedError: as `step`, or `steps` is no such number.
            ProfileError: gradients travel between workers, but no transfer was seen.
            InstallationError, WorkerLostError, tf.errors.OpError: as `trace`.
        """
        work = self._open()
        _check_number("profile", steps)
        count, call = int(steps), StepCall(feed_dict, step=step, times=int(steps))
        with self._course.counted(count):
            return work.steps(call, lambda running: profiled_steps(running, count, feed_dict, step))

    @checked(FeedError, every=at_least(1, "steps"))
    @in_turn
    def summaries(self, logdir: str | os.PathLike[str] | None, *, every: int = 100) -> None:
        """Write numbers of the following steps into a directory, for TensorBoard.

        They are the loss (of the whole batch, in the last of `every` steps), what a step took in
        the mean of these, what was predicted of the plan in use, if anything was, and how many
        bytes the step sent between all workers, as far as the graph tells (not rows of tables).
        Where the job has several steps, each writes its own. Should writing fail later on, a
        warning in the log says so, and training goes on.

        Args:
            logdir: the directory; None to write no more.
            every: after how many steps numbers are written.

        Raises:
            FeedError: an argument cannot be.
            FileError: nothing can be written there.
        """
        self._open()
        if self._summaries is not None:
            self._summaries.close()
        self._summaries = None if logdir is None else Summaries(logdir, every)
        if self._summaries is not None:
            self._parts.callback(self._summaries.close)

    # Plans

    @checked(PlanError)
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

        def use(running: RunningJob) -> None:
            with running.state.torn_by_failures():
                running.controllers.own(step).use(plan)

        self._open().read(use)

    @checked(PlanError, apart=("settings", "plans"))
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
        running = self._open().running
        if settings is not None and not isinstance(settings, TrialSettings):
            raise PlanError(f"settings must be caramel.TrialSettings or None, not {settings!r}")
        if isinstance(plans, str) or not isinstance(plans, Iterable | None):
            raise PlanError(f"plans must be a list of names, not {plans!r}")
        controller = running.controllers.own(step)
        tried = list(controller.job.plans.names) if plans is None else list(plans)
        controller.try_plans(tried, settings or TrialSettings())

    # Anything but training

    @in_turn
    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Run part of the graph once, without training, as `tf.Session.run` would.

        It runs on worker 0, on variables that are equal on all workers and on the mean of those
        that are not (moving averages). What it assigns to variables is sent to all workers; what
        it does to input pipelines and tables of the training step is done on all of them. What is
        fetched as `caramel.per_worker(...)` runs on each worker, on the worker's own variables.

        Args:
            fetches: tensors, operations or names, or a structure of them.
            feed_dict: values by tensor or name, none of them split.

        Raises:
            FeedError: the train op is among what would run, or something fed does not fit, or
                workers have no values of their own of what is fetched.
        """
        return self._open().run(fetches, feed_dict)

    @checked(FeedError, apart=("batches", "fetches"))
    @in_turn
    def evaluate(self, batches: Any = None, fetches: Any = None) -> Any:
        """Evaluate batches on all workers, without training: returns what all examples come to.

        Each batch that is fed is split over the workers, as by `step`; it may be of any size.
        Variables have the values that `run` sees, and keep them.

        Where what is fetched reads input pipelines of the graph, they are evaluated from where they
        are for `run` to the end of the first one. Each worker gets the next batch in turn.

        Args:
            batches: an iterable of what is fed for each batch, or what is fed for the only one. If
                pipelines are read, what is fed besides (whole, as by `run`), or None.
            fetches: tensors or names, or a structure of them; the loss by default.

        Returns:
            What `fetches` asks for, in the same structure: floating scalars averaged over all
            examples, or added up if they are sums; results with one entry for each example
            concatenated in the order of the batches; anything else a list with the values of all
            workers, batch by batch.

        Raises:
            FeedError: something fed does not fit, what is fetched writes a variable or reads an
                input pipeline inside a function or a branch, a pipeline is at its end, or results
                cannot be put together over batches.
            tf.errors.FailedPreconditionError: the iterator of a pipeline is not initialised.
        """
        return evaluate_batches(self._open(), batches, fetches)

    # Variables

    @checked(FeedError, apart=("worker",))
    @in_turn
    def variables(self, worker: int | None = None) -> dict[str, np.ndarray]:
        """The values of all variables, by the names the user gave them.

        Args:
            worker: whose replica's; by default those that are equal on all workers, and the mean
                of those that are not.
        """
        work = self._open()
        plan = work.running.job.plan
        is_number = isinstance(worker, Integral) and not isinstance(worker, bool)
        if worker is not None and not (is_number and 0 <= worker < plan.workers):
            raise FeedError(f"there is no worker {worker!r}; they are 0 to {plan.workers - 1}")

        def values(running: RunningJob) -> dict[str, np.ndarray]:
            running.settle()
            return dict(running.state.values(running.job.context.variables, worker))

        return work.read(values)

    @in_turn
    def assign(self, values: Mapping[str, Any]) -> None:
        """Give variables new values, on all workers.

        One that is added up over the workers (the total of a metric) is whole on worker 0.

        Args:
            values: arrays by the variables' names, as `variables` has them.

        Raises:
            FeedError: there is no such variable, or a value does not fit it; nothing is assigned.
        """
        self._open().change(lambda running: assign_variables(running, values))

    @checked(CheckpointError, apart=("path", "global_step", "keep", "keep_every_hours"))
    @in_turn
    def save(
        self,
        path: str | os.PathLike[str],
        *,
        global_step: int | None = None,
        keep: int | None = None,
        keep_every_hours: float | None = None,
        wait: bool = True,
    ) -> str:
        """Write a checkpoint that `tf.compat.v1.train.Saver` of the user's graph can restore.

        It holds the user's global variables and nothing else, is written by this process, and
        replaces an earlier one of that path only when it is whole.

        A session that was opened with ``resume`` or ``save_on_sigterm`` writes one more file beside
        it, which tells how many steps were done, and how far input pipelines of the graph are.

        Args:
            path: its path, without the endings that TensorFlow adds.
            global_step: a number to append to the path, as ``-100``.
            keep: how many checkpoints of that path stay, with different numbers; the oldest are
                removed when the new one is whole. All by default.
            keep_every_hours: besides, the first of them stays for good, and each that is at least
                so many hours newer than the last one that does.
            wait: False to return when the variables have been brought here, and have the files
                written beside the next steps. Until they are, this process holds a copy. The next
                save, a restore, `close` and the end of the program wait for it. Should it fail,
                the next call of a method raises the error.

        Returns:
            The path that restores it.

        Raises:
            CheckpointError: it cannot be written, or an older one not be removed.
        """
        rotation = Rotation(keep, keep_every_hours)
        work = self._open()
        return work.read(
            lambda running: self._checkpoints.save(running, path, global_step, rotation, wait=wait)
        )

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The paths of the checkpoints that this session has saved and that are there, the newest
        last."""
        return self._checkpoints.paths

    @checked(CheckpointError, apart=("path",))
    @in_turn
    def rescue(self, path: str | os.PathLike[str]) -> str:
        """Write a checkpoint as `save` does, after a worker was lost: of what the others have.

        The variables are those of one worker. In the step that has failed some of them may have
        been updated and others not, and deferred updates of the step before may be missing. What
        each worker has for itself (moving averages) is the mean over those that are left.

        Args:
            path: its path, without the endings that TensorFlow adds.

        Returns:
            The path that restores it.

        Raises:
            SessionError: no worker was lost.
            CheckpointError: something was on lost workers only, which are named; nothing is
                written. Or it cannot be written.
            ClusterError: no worker is left.
        """
        return self._checkpoints.rescue(self._open().running, path)

    @checked(CheckpointError, apart=("path",))
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
        self._checkpoints.wait()
        return self._open().change(
            lambda running: restore_variables(running, path, partial=partial)
        )


def _check_number(method: str, steps: Any) -> None:
    """Raise unless a number of steps is given."""
    is_number = isinstance(steps, Integral) and not isinstance(steps, bool)
    if is_number and steps > _MOST_TRACED:
        raise FeedError(f"session.{method} takes at most {_MOST_TRACED} steps at a time")
    if not is_number or steps < 1:
        given = steps if isinstance(steps, Real) else f"a {type(steps).__name__}"
        raise FeedError(
            f"session.{method} takes a number of steps, at least 1, not {given}; what is fed goes "
            "into feed_dict"
        )
