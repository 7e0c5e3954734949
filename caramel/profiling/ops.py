"""Traces steps of the single-device job: how long does each op take (Caramel paper, section 4.1)?

The job runs in a graph and a session of its own, on one worker's device, without anything that
distribution adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.capture.context import Context
from caramel.capture.initial_values import first_missing_feed, in_order
from caramel.capture.structures import single_pairs
from caramel.core import op_types
from caramel.core.devices import Device, without_task
from caramel.core.dtypes import dtype_bytes
from caramel.core.errors import ProfileError
from caramel.core.names import TensorRef
from caramel.core.time_facts import TimingTable
from caramel.core.util.disk_cache import keep_timing, kept_timing
from caramel.core.util.fingerprint import Machine, digest, graph_hash, this_machine
from caramel.core.variable_access import handle_of
from caramel.native import malloc
from caramel.native.check import check_labels
from caramel.runtime.traces.op_times import op_seconds, open_bytes, timing_table

tf1 = tf.compat.v1

Feed = Mapping[Any, Any] | Callable[[int], Mapping[Any, Any]]
"""Values by tensor or name; or a function from a step's number to them."""

_VERSION = "6"  # of what is kept on disk
WARM_UP_STEPS = 2
_ITERATORS = ("IteratorV2", "Iterator")


def profile_steps(
    context: Context,
    *,
    steps: int = 10,
    feed: Feed | None = None,
    device: str | None = None,
    initializers: Sequence[Any] | None = None,
    config: Any = None,
    use_cache: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> TimingTable:
    """Trace steps of a job and take the least time of each op.

    The user's graph and variables are untouched. A result is kept on disk
    (`core.util.disk_cache`) for the same graph, feeds of the same shapes, TensorFlow
    version and machine.

    Args:
        context: the single-device job.
        steps: how many steps are traced, after two that are not, with as many that are timed only.
        feed: what one worker is fed: its part of the batch.
        device: where ops go that name no device, such as "/CPU:0"; TensorFlow's choice by default.
        initializers: ops that start the input pipelines; by default, for each iterator that the
            step reads, the first op of the graph that does. They run again when a pipeline ends.
        config: a `tf.compat.v1.ConfigProto` with options of the session.
        use_cache: whether to take a kept result, if there is one.
        progress: called after each step with the number of steps done and to do.

    Raises:
        ProfileError: a placeholder is not fed, there is no such device, or a pipeline is empty.
        tf.errors.OpError: an op has failed.
    """
    if steps < 1:
        raise ProfileError(f"{steps} steps cannot be traced; at least 1 is needed")
    job = _Job(context, _feeds(context, feed), pipeline_starters(context, initializers))
    job.check_fed()
    runs_on = machine(device)
    # Everything that times may depend on.
    key = digest(
        _VERSION,
        graph_hash(context.graph_def),
        context.job.train_op,
        str(context.job.loss),
        tf.__version__,
        repr(runs_on),
        device or "",
        str(steps),
        repr(job.fed_shapes()),
        repr(job.starters),
        b"" if config is None else config.SerializeToString(deterministic=True),
    )
    kept = kept_timing(key) if use_cache else None
    if kept is not None:
        return kept
    table = _traced(job, steps, device, config, progress or (lambda *_: None))
    if runs_on.device == "CPU":
        table = replace(table, cores=runs_on.cores, on_processor=True)
    keep_timing(key, table)
    return table


def machine(device: str | None = None) -> Machine:
    """This machine, and what runs ops that are placed on `device`.

    Raises:
        ProfileError: there is no such device.
    """
    wanted = Device() if device is None else Device.parse(device)
    accelerators = tf.config.list_physical_devices("GPU")
    if wanted.kind == "CPU" or (wanted.kind is None and not accelerators):
        return this_machine("CPU")
    if wanted.kind not in (None, "GPU") or (wanted.index or 0) >= len(accelerators):
        there = ["/CPU:0", *(f"/GPU:{index}" for index in range(len(accelerators)))]
        raise ProfileError(f"there is no device '{device}' here; there are {', '.join(there)}")
    details = tf.config.experimental.get_device_details(accelerators[wanted.index or 0])
    return this_machine(details.get("device_name", "GPU"))


@dataclass(frozen=True, slots=True)
class _Job:
    """What is traced: the job, what each step is fed, and what starts its pipelines."""

    context: Context
    feeds: Callable[[int], Mapping[TensorRef, Any]]
    starters: tuple[str, ...]

    @property
    def ops(self) -> tuple[str, str]:
        """What a step runs."""
        return self.context.job.train_op, self.context.job.loss.op

    def fed_shapes(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of what is fed."""
        fed = ((str(tensor), np.asarray(value)) for tensor, value in self.feeds(0).items())
        return sorted((name, str(array.dtype), array.shape) for name, array in fed)

    def fed_bytes(self, step: int) -> dict[str, int]:
        """The size of what a step is fed, which no trace tells, by name."""
        sizes = {}
        for tensor, value in self.feeds(step).items():
            element_bytes = dtype_bytes(self.context.op_graph.spec(tensor).dtype) or 0
            sizes[str(tensor)] = element_bytes * np.size(value)
        return sizes

    def check_fed(self) -> None:
        """Raise unless every placeholder that a step or a pipeline needs is fed."""
        fed = frozenset(tensor.op for tensor in self.feeds(0))
        graph, about = self.context.op_graph, self.context.job
        missing = first_missing_feed(graph, about, fed)
        if missing is not None:
            what, name = missing
            raise ProfileError(f"{what} depends on placeholder '{name}'; feed it, too")
        for name in sorted(graph.ancestors([*self.ops, *self.starters], stop=fed)):
            if graph[name].kind in op_types.WITHOUT_DEFAULT and name not in fed:
                raise ProfileError(
                    f"placeholder '{name}' must be fed to trace a step; pass feed={{'{name}:0': "
                    "...} with a batch of one worker's size"
                )

    def fed_to(self, ops: Iterable[str], step: int) -> dict[str, Any]:
        """What a step feeds to some ops, as `tf.Session.run` takes it."""
        needed = self.context.op_graph.ancestors(ops)
        return {
            str(tensor): value for tensor, value in self.feeds(step).items() if tensor.op in needed
        }


def _feeds(context: Context, feed: Feed | None) -> Callable[[int], Mapping[TensorRef, Any]]:
    last: list[tuple[int, Mapping[TensorRef, Any]]] = []  # a generator is asked once for each step

    def feeds(step: int) -> Mapping[TensorRef, Any]:
        if not last or (callable(feed) and last[0][0] != step):
            given = feed(step) if callable(feed) else feed or {}
            pairs = single_pairs(given)
            named = {context.tensor(tensor, "feed"): value for tensor, value in pairs}
            last[:] = [(step, named)]
        return last[0][1]

    return feeds


def pipeline_starters(
    context: Context, initializers: Sequence[Any] | None = None
) -> tuple[str, ...]:
    """Names of the ops that start the step's input pipelines.

    Args:
        context: the single-device job.
        initializers: these ops; by default, for each iterator that the step reads, the first op of
            the graph that does.

    Raises:
        ProfileError: no op of the graph starts an iterator that the step reads.
    """
    if initializers is not None:
        return tuple(context.operation(given, "initializers") for given in initializers)
    graph, found = context.op_graph, dict[str, str]()
    step = graph.ancestors([context.job.train_op, context.job.loss.op])
    for op in graph:
        if op.kind == "MakeIterator":
            iterator = handle_of(graph, op.inputs[1])
            if iterator in step:
                found.setdefault(iterator, op.name)
    idle = [name for name in graph.ops if name in step and graph[name].kind in _ITERATORS]
    for name in idle:
        if name not in found:
            raise ProfileError(
                f"nothing in the graph starts the input pipeline of iterator '{name}'; create its "
                "initializer before the Context, or name the op with initializers=[...]"
            )
    return tuple(found.values())


# Running ----------------------------------------------------------------------------------------


def _traced(
    job: _Job,
    steps: int,
    device: str | None,
    config: Any,
    progress: Callable[[int, int], None],
) -> TimingTable:
    """The times of the ops in traced steps, and of as many steps that were not traced."""
    graph = _imported(job.context.graph_def, device)
    traced: list[dict[str, float]] = []
    sizes: list[dict[str, int]] = []
    untraced_s: list[float] = []
    malloc.keep_memory()  # as workers do
    _check_labels(device, config)
    with tf1.Session(graph=graph, config=_config(config)) as session:
        _initialise(session, job)
        for step in range(WARM_UP_STEPS + steps):
            is_traced = step >= WARM_UP_STEPS
            stats = _run_step(session, job, step, is_traced)
            if is_traced:
                traced.append(op_seconds(stats, job.context.op_graph))
                sizes.append(open_bytes(stats, job.context.op_graph) | job.fed_bytes(step))
                begin_s = time.perf_counter()
                # Right behind each traced step, so that a slow moment does not hit one kind alone.
                _run_step(session, job, step, False)
                untraced_s.append(time.perf_counter() - begin_s)
            progress(step + 1, WARM_UP_STEPS + steps)
    return timing_table(traced, untraced_s, sizes)


def _check_labels(device: str | None, config: Any) -> None:
    """Look once whether TensorFlow names what it traces as `op_seconds` reads it."""
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph, config=_config(config)) as own:

        def prepare(graph_def: Any, op: str) -> Callable[[], list[Any]]:
            tf.graph_util.import_graph_def(graph_def, name="")
            return lambda: [_traced_call(own, [op], {})]

        check_labels(prepare, [without_task(device or "")])


def _initialise(session: Any, job: _Job) -> None:
    about = job.context.job
    portions = in_order(job.context.op_graph, about.variables)
    # Initial values may look something up in tables.
    for ops in (about.table_initializers, *([v.initializer for v in p] for p in portions)):
        session.run(_operations(session, ops), job.fed_to(ops, 0))
    _start_pipelines(session, job, 0)


def _start_pipelines(session: Any, job: _Job, step: int) -> None:
    session.run(_operations(session, job.starters), job.fed_to(job.starters, step))


def _run_step(session: Any, job: _Job, step: int, is_traced: bool) -> Any:
    """Run one step, if need be with pipelines started again; returns what was traced."""
    try:
        return _run_once(session, job, step, is_traced)
    except tf.errors.OutOfRangeError:
        if not job.starters:
            raise
    _start_pipelines(session, job, step)
    try:
        return _run_once(session, job, step, is_traced)
    except tf.errors.OutOfRangeError:
        raise ProfileError(
            f"an input pipeline has no element for a single step (started by "
            f"{', '.join(job.starters)})"
        ) from None


def _run_once(session: Any, job: _Job, step: int, is_traced: bool) -> Any:
    feed = {str(tensor): value for tensor, value in job.feeds(step).items()}
    if is_traced:
        return _traced_call(session, job.ops, feed)
    session.run(_operations(session, job.ops), feed)
    return None


def _traced_call(session: Any, ops: Iterable[str], feed: Mapping[str, Any]) -> Any:
    """Run ops; returns the `StepStats`."""
    metadata = tf1.RunMetadata()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    session.run(_operations(session, ops), feed, options=options, run_metadata=metadata)
    return metadata.step_stats


def _operations(session: Any, names: Iterable[str]) -> list[Any]:
    return [session.graph.get_operation_by_name(name) for name in names]


def _imported(graph_def: Any, device: str | None) -> tf.Graph:
    """The job as a graph of its own. Jobs and tasks in names of devices do not exist here."""
    own = type(graph_def)()
    own.CopyFrom(graph_def)
    default = Device() if device is None else Device.parse(device)
    for node in own.node:
        given = Device.parse(node.device)
        chosen = default if given.kind is None else given
        node.device = str(Device(kind=chosen.kind, index=chosen.index))
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(own, name="")
    return graph


def _config(config: Any) -> Any:
    """The user's options; one op at a time; and no graph optimizers."""
    own = tf1.ConfigProto()
    if config is not None:
        own.CopyFrom(config)
    # Some ops have no kernel for an accelerator.
    own.allow_soft_placement = True
    # Ops that could run side by side must not take the processor from each other: the wall time of
    # each is its own.
    own.inter_op_parallelism_threads = 1
    # Else the number of threads is that of the process's first session.
    own.use_per_session_threads = True
    # They would rename ops, or make one of several.
    own.graph_options.rewrite_options.disable_meta_optimizer = True
    own.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return own
