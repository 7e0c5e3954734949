"""Measures what aggregations take on a real cluster (Caramel paper, section 4.2).

Each measurement is a job of its own that computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import permutations
from typing import Any

import tensorflow as tf

from caramel.capture.context import Context
from caramel.cluster.cluster import Cluster
from caramel.core.errors import ProfileError
from caramel.core.measurements import AggregationTimes, Measurements, SendTimes
from caramel.core.names import ON_WORKERS
from caramel.core.patterns import check_pattern, frugal_patterns
from caramel.models.allreduce import ARModel
from caramel.profiling.series import Progress, Series, take_turns
from caramel.runtime.execution.distributed_graph import DistributedGraph
from caramel.runtime.execution.runner import Runner
from caramel.simulation.network_model import SMALL_BYTES

tf1 = tf.compat.v1

SIZES_BYTES = (64, 4 * 2**20)
MOST_WORKERS_IN_PAIRS = 8
TOGETHER = 4
"""So many tensors at the same time leave no link idle."""

MANY = 64
"""Of so many small tensors nearly all of a step is what messages cost."""

_STEP_TIMEOUT_S = 300.0


def measure_network(
    workers: Any,
    *,
    patterns: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES_BYTES,
    repeats: int = 20,
    pairs: bool | None = None,
    start_timeout_s: float = 60.0,
    config: Any = None,
    progress: Progress | None = None,
) -> Measurements:
    """Time aggregations one after another, some at a time, and sends between all pairs of workers.

    Of the first pattern also many small tensors at a time are aggregated.

    Args:
        workers: a `Cluster`, or what `ARModel` takes.
        patterns: which are measured; by default those that send no more bytes than they must.
        sizes: of the tensors, in bytes; at least two.
        repeats: how many steps of each pattern and size count; of several tensors at a time (some
            that are as large as the largest size together, or many small ones), and of each pair it
            is a quarter.
        pairs: whether pairs are measured; by default for 2 to 8 workers.
        start_timeout_s: how long to wait for the workers, in seconds.
        config: a `tf.compat.v1.ConfigProto` with options of the sessions.
        progress: called with what is being measured, and the turns done and to do.

    Raises:
        ProfileError: it makes no sense with these arguments.
        ClusterError: the workers are described wrongly, cannot be reached, or one was lost.
    """
    cluster = Cluster.coerce(workers)
    patterns = frugal_patterns(cluster.size) if patterns is None else patterns
    _check(cluster, patterns, sizes, repeats)
    options = {
        "start_timeout_s": start_timeout_s,
        "step_timeout_s": _STEP_TIMEOUT_S,
        "config": config,
    }
    wanted = list(dict.fromkeys(sizes))
    with_pairs = cluster.size <= MOST_WORKERS_IN_PAIRS if pairs is None else pairs
    report = progress or (lambda *_: None)
    with ExitStack() as stack:

        def series(context: Context, pattern: str) -> Series:
            model = ARModel(context, cluster, pattern=pattern, planner="plain")
            session = model.session(**options, trials=None)  # every step alike
            stack.enter_context(session)
            return Series(lambda: session.step(fetches=[]))

        # A job that sends nothing: its step takes what every step takes.
        empty = series(empty_job(), patterns[0])
        aggregations = {
            (pattern, size): series(aggregation_job(size), pattern)
            for size in wanted
            for pattern in dict.fromkeys(patterns)
        }
        take_turns([empty, *aggregations.values()], repeats, "aggregations", report)
        # Together as large as the largest single one, in whole floats.
        each_bytes = max(4, max(wanted) // TOGETHER // 4 * 4)
        together = {
            pattern: series(aggregation_job(each_bytes, TOGETHER), pattern)
            for pattern in dict.fromkeys(patterns)
        }
        many = series(aggregation_job(SMALL_BYTES, MANY), patterns[0])
        some = max(1, repeats // 4)
        take_turns([*together.values(), many], some, "aggregations at a time", report)
    empty_sends, sends = (
        _measure_pairs(cluster, wanted, repeats, options, report) if with_pairs else ((), ())
    )
    return Measurements(
        workers=cluster.size,
        aggregations=tuple(
            AggregationTimes(pattern, size, tuple(each.seconds))
            for (pattern, size), each in aggregations.items()
        )
        + tuple(
            AggregationTimes(pattern, TOGETHER * each_bytes, tuple(each.seconds), TOGETHER)
            for pattern, each in together.items()
        )
        + (AggregationTimes(patterns[0], MANY * SMALL_BYTES, tuple(many.seconds), MANY),),
        empty_seconds=tuple(empty.seconds),
        sends=sends,
        empty_send_seconds=empty_sends,
        addresses=tuple(task.address or "" for task in cluster.tasks),
    )


def _check(cluster: Cluster, patterns: Sequence[str], sizes: Sequence[int], repeats: int) -> None:
    if cluster.size < 2:
        raise ProfileError("one worker sends nothing; name at least 2 workers")
    if not patterns:
        raise ProfileError("no pattern to measure; name at least one")
    for pattern in patterns:
        check_pattern(pattern)
    for size in sizes:
        if size < 4 or size % 4:
            raise ProfileError(f"{size} bytes are no whole number of floats; use multiples of 4")
    if len(set(sizes)) < 2:
        raise ProfileError("a line needs at least two different sizes")
    if repeats < 1:
        raise ProfileError(f"{repeats} repeats: at least 1 is needed")


# Aggregations -----------------------------------------------------------------------------------


def aggregation_job(size_bytes: int, tensors: int = 1) -> Context:
    """A job whose step stores the mean of a variable over the workers in another variable.

    The first stands for a gradient, and storing it for an update.

    Args:
        size_bytes: of the variable.
        tensors: how many such variables there are.
    """
    elements = size_bytes // 4
    pairs = []
    with tf.Graph().as_default() as graph:
        # A batch that nobody has to feed.
        x = tf1.placeholder_with_default(tf.zeros([1]), [None], name="x")
        for number in range(tensors):
            weight = _variable(f"weight_{number}", elements)
            local = _variable(f"gradient_{number}", elements, trainable=False)
            # Never run: an assignment from data is what makes the variable another on every worker.
            local.assign(tf.fill([elements], x[0]))
            pairs.append((tf.identity(local.read_value(), name=f"raw_{number}"), weight))
        train_op = tf.group(
            *(weight.assign(gradient, read_value=False) for gradient, weight in pairs)
        )
        loss = tf.reduce_mean(x)
    return Context(graph, train_op=train_op, loss=loss, gradients=pairs)


def empty_job() -> Context:
    """The same without anything that would have to be aggregated."""
    with tf.Graph().as_default() as graph:
        loss = tf.constant(0.0)
        weight = _variable("weight", 1)
        train_op = weight.assign(tf.zeros([1]), read_value=False)
    return Context(graph, train_op=train_op, loss=loss)


def _variable(name: str, elements: int, *, trainable: bool = True) -> Any:
    return tf1.get_variable(
        name,
        [elements],
        initializer=tf1.zeros_initializer(),
        trainable=trainable,
        use_resource=True,
    )


# Pairs ------------------------------------------------------------------------------------------


def _measure_pairs(
    cluster: Cluster, sizes: Sequence[int], repeats: int, options: dict[str, Any], report: Progress
) -> tuple[tuple[float, ...], tuple[SendTimes, ...]]:
    """Times of empty steps, and of sends from each worker to each other one."""
    graph = tf.Graph()
    with graph.as_default(), graph.container(ON_WORKERS):
        initializers, sends, empty = _send_graph(cluster, sizes)
    sent = DistributedGraph()
    sent.add(graph.as_graph_def())
    runner = Runner(
        sent,
        cluster.devices,
        cluster,
        start_timeout_s=options["start_timeout_s"],
        call_timeout_s=options["step_timeout_s"],
        config=options["config"],
    )

    def series(targets: list[str]) -> Series:
        return Series(lambda: runner.run([], targets, {}, "measuring the network"))

    with closing(runner):
        runner.extend()
        runner.run([], initializers, {}, "measuring the network")
        without = series(empty)
        measured = {
            # An op on each worker, as in the empty step: else fewer of them take part.
            (source, target, size): series([op, *empty])
            for source, target, size, op in sends
        }
        take_turns([without, *measured.values()], max(1, repeats // 4), "pairs", report)
    times = tuple(SendTimes(*key, tuple(each.seconds)) for key, each in measured.items())
    return tuple(without.seconds), times


def _send_graph(
    cluster: Cluster, sizes: Sequence[int]
) -> tuple[list[str], list[tuple[int, int, int, str]], list[str]]:
    """Names of ops: initializers; sends with source, target and size; one op on each worker."""
    initializers, sends, empty = [], [], []
    values: dict[tuple[int, int], Any] = {}
    for worker, device in enumerate(cluster.devices):
        with tf.device(device):
            empty.append(tf.no_op(name=f"empty_{worker}").name)
            for size in sizes:
                variable = _variable(f"value_{worker}_{size}", size // 4)
                initializers.append(variable.initializer.name)
                values[worker, size] = variable.read_value()
    for source, target, size in _sends(cluster.size, sizes):
        with tf.device(cluster.devices[target]):
            received = tf.identity(values[source, size], name=f"from_{source}_to_{target}_{size}")
            sends.append((source, target, size, received.op.name))
    return initializers, sends, empty


def _sends(workers: int, sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    for source, target in permutations(range(workers), 2):
        yield from ((source, target, size) for size in sizes)
