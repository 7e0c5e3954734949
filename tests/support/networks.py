"""Small training jobs for one device, and the comparison of many workers with plain TensorFlow."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.core.facts import GradientFrontier, ReplicaState
from caramel.core.graph import OpGraph
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.modifiers.variable_ops import value_on
from caramel.simulation.network_model import assumed_network

tf1 = tf.compat.v1

# Sessions that tests open themselves run graphs as they were written, as those of Caramel do. To
# optimize the graph of one of these jobs takes three times as long as to train it on one device.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

FEATURES, WIDTH, CLASSES = 6, 5, 3
STEPS = 4

# Gradients and variables to gradients: what a user does to them before they are applied.
Process = Callable[[list[Any], list[Any]], list[Any]]
# A global step to an optimizer.
MakeOptimizer = Callable[[Any], Any]


@dataclass(frozen=True)
class Network:
    """A training job for one device, with the gradients as `tf.gradients` gave them."""

    graph: tf.Graph
    train_op: Any
    loss: Any
    feed: Mapping[Any, np.ndarray] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)

    def context(self, **options: Any) -> caramel.Context:
        return caramel.Context(self.graph, train_op=self.train_op, loss=self.loss, **options)


# Post-processing of gradients --------------------------------------------------------------------


def unchanged(gradients, variables):
    return gradients


def clip_by_value(gradients, variables):
    return [tf.clip_by_value(g, -0.02, 0.02) for g in gradients]


def clip_by_norm(gradients, variables):
    return [tf.clip_by_norm(g, 0.05) for g in gradients]


def clip_by_global_norm(gradients, variables):
    return tf.clip_by_global_norm(gradients, 0.1)[0]


def decay(gradients, variables):
    return [g + 0.01 * v for g, v in zip(gradients, variables, strict=True)]


def decay_then_clip_by_global_norm(gradients, variables):
    return clip_by_global_norm(decay(gradients, variables), variables)


PROCESSES: Mapping[str, Process] = {
    process.__name__: process
    for process in (
        unchanged,
        clip_by_value,
        clip_by_norm,
        clip_by_global_norm,
        decay,
        decay_then_clip_by_global_norm,
    )
}

# Optimizers --------------------------------------------------------------------------------------

train = tf1.train
FLOAT64_ONLY = frozenset({"proximal", "exponential", "adagrad_da"})
"""Optimizers of the list below that these networks have with float64 numbers only."""

OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "gradient_descent": lambda step: train.GradientDescentOptimizer(0.3),
    "momentum": lambda step: train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda step: train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda step: train.AdamOptimizer(0.01),
    "rmsprop": lambda step: train.RMSPropOptimizer(0.01, momentum=0.5),
    "rmsprop_centered": lambda step: train.RMSPropOptimizer(0.01, centered=True),
    "adagrad": lambda step: train.AdagradOptimizer(0.1),
    "adadelta": lambda step: train.AdadeltaOptimizer(1.0),
    "ftrl": lambda step: train.FtrlOptimizer(
        0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.001
    ),
    "adagrad_da": lambda step: train.AdagradDAOptimizer(
        0.1, step, l1_regularization_strength=0.001
    ),
    # Its update takes float64 parameters only if its numbers are float64 too.
    "proximal": lambda step: train.ProximalGradientDescentOptimizer(
        *(tf.constant(number, tf.float64) for number in (0.3, 0.001, 0.001))
    ),
    "piecewise": lambda step: train.GradientDescentOptimizer(
        train.piecewise_constant(step, [0, 2], [0.3, 0.2, 0.1])
    ),
    # In float32, TensorFlow's graph optimizer changes the last digit of the learning rate.
    "exponential": lambda step: train.AdamOptimizer(
        train.exponential_decay(tf.constant(0.02, tf.float64), step, 3, 0.9)
    ),
}


@contextmanager
def control_flow_version(version: str) -> Iterator[None]:
    """Loops and conditionals as v1 (ops in frames) or v2 (functions)."""
    (tf1.enable_control_flow_v2 if version == "v2" else tf1.disable_control_flow_v2)()
    try:
        yield
    finally:
        tf1.enable_control_flow_v2()


# Jobs --------------------------------------------------------------------------------------------


def examples(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.RandomState(seed)
    return random.randn(number, FEATURES), random.randint(0, CLASSES, number).astype(np.int32)


def inputs(number: int, dtype: Any = tf.float64, batch: int | None = None) -> tuple[Any, Any, dict]:
    """Placeholders of a batch and its labels, and what to feed them."""
    x = tf1.placeholder(dtype, [batch, FEATURES], name="x")
    y = tf1.placeholder(tf.int32, [batch], name="y")
    return x, y, dict(zip(("x:0", "y:0"), examples(number), strict=True))


def parameter(name: str, shape: Sequence[int], dtype: Any = tf.float64) -> Any:
    return tf1.get_variable(name, shape, dtype, use_resource=True)


def cross_entropy(logits: Any, labels: Any, reduce: Any = tf.reduce_mean) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return reduce(losses)


def perceptron(x: Any) -> Any:
    """Two dense layers, one with `BiasAdd` and one with a broadcast sum."""
    w1, b1 = parameter("w1", [FEATURES, WIDTH], x.dtype), parameter("b1", [WIDTH], x.dtype)
    w2, b2 = parameter("w2", [WIDTH, CLASSES], x.dtype), parameter("b2", [CLASSES], x.dtype)
    return tf.tanh(tf.nn.bias_add(x @ w1, b1)) @ w2 + b2


def wide(x: Any) -> Any:
    """Two dense layers large enough to be split over several workers."""
    w1, b1 = parameter("w1", [FEATURES, 700], x.dtype), parameter("b1", [700], x.dtype)
    w2, b2 = parameter("w2", [700, CLASSES], x.dtype), parameter("b2", [CLASSES], x.dtype)
    return tf.tanh(tf.nn.bias_add(x @ w1, b1)) @ w2 + b2


def deep(x: Any) -> Any:
    """A dense layer of many inputs."""
    h = tf.tanh(x @ parameter("w", [6, 500], x.dtype) + parameter("b", [500], x.dtype))
    h = tf.tanh(h @ parameter("w2", [500, 400], x.dtype))
    return h @ parameter("w3", [400, 3], x.dtype)


def tied(x: Any) -> Any:
    """An encoder and decoder with one matrix, read twice."""
    w1, b1 = parameter("w1", [FEATURES, WIDTH], x.dtype), parameter("b1", [WIDTH], x.dtype)
    decoded = tf.matmul(tf.tanh(x @ w1 + b1), w1, transpose_b=True)
    return tf.tanh(decoded @ w1 + b1) @ parameter("w2", [WIDTH, CLASSES], x.dtype)


def l2(variables: Sequence[Any]) -> Any:
    return 0.01 * tf.add_n([tf.nn.l2_loss(v) for v in variables])


def optimized(
    loss: Any, make_optimizer: MakeOptimizer, process: Process = unchanged
) -> tuple[Any, dict[str, Any]]:
    """The train op of a TensorFlow optimizer, and the raw gradients by parameter."""
    step = tf1.train.get_or_create_global_step()
    optimizer = make_optimizer(step)
    pairs = [(g, v) for g, v in optimizer.compute_gradients(loss) if g is not None]
    variables = [v for _, v in pairs]
    processed = process([g for g, _ in pairs], variables)
    train_op = optimizer.apply_gradients(zip(processed, variables, strict=True), global_step=step)
    return train_op, {v.op.name: g for g, v in pairs}


def built_network(
    optimizer: str | MakeOptimizer = "gradient_descent",
    process: str | Process = unchanged,
    *,
    model: Callable[[Any], Any] = perceptron,
    decayed_loss: bool = False,
    reduce: Any = tf.reduce_mean,
    number: int = 40,
    dtype: Any = tf.float64,
    batch: int | None = None,
) -> Network:
    """A classifier with the given optimizer and post-processing of gradients."""
    make_optimizer = OPTIMIZERS[optimizer] if isinstance(optimizer, str) else optimizer
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(number, dtype, batch)
        loss = cross_entropy(model(x), y, reduce)
        if decayed_loss:
            loss += l2(tf1.trainable_variables())
        train_op, raw = optimized(
            loss, make_optimizer, PROCESSES[process] if isinstance(process, str) else process
        )
    return Network(graph, train_op, loss, feed, raw)


def network(*args: Any, **options: Any) -> Network:
    """The same, built once: its graph is finished."""
    return _built_once(tf1.control_flow_v2_enabled(), *args, **options)


@functools.cache
def _built_once(_: bool, *args: Any, **options: Any) -> Network:
    job = built_network(*args, **options)
    job.graph.finalize()
    return job


def in_turns(*lists: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Each value of the longest list with one of every other, the next one each time.

    So all values occur, and far fewer combinations than there are.
    """
    several = [list(each) for each in lists]
    longest = max(map(len, several))
    return [tuple(each[n % len(each)] for each in several) for n in range(longest)]


def partly(
    mark: pytest.MarkDecorator, cases: Iterable[Any], *, every: int = 3, first: int = 0
) -> list[Any]:
    """The cases as parameters of a test, one of `every` with the mark, from the `first` one on.

    With the mark `onednn`, a law is shown with kernels of oneDNN and without, but each case in one
    of the two ways only.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else [case]),
            marks=[mark] if n % every == first else [],
        )
        for n, case in enumerate(cases)
    ]


# Comparison --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What training gave: the loss of every step, and the variables before and after.

    `model` is what was trained, if it was distributed.
    """

    losses: list[float]
    initial: Mapping[str, np.ndarray]
    values: Mapping[str, np.ndarray]
    replicas: Sequence[Mapping[str, np.ndarray]] = ()
    model: caramel.ARModel | None = None


def run_distributed(
    job: Network,
    workers: int,
    pattern: str = "shuffle",
    *,
    steps: int = STEPS,
    sparse: Any = "gather",
    **options: Any,
) -> Run:
    """Train on workers inside this process, by one plan however slow the machine is."""
    model = caramel.ARModel(
        job.context(**options), workers=workers, pattern=pattern, sparse=sparse, check=True
    )
    with model.session(trials=None) as session:
        initial = session.variables()
        losses = [session.step(job.feed) for _ in range(steps)]
        return Run(losses, initial, session.variables(), replicas_of(session), model)


def replicas_of(session: caramel.Session) -> list[dict[str, np.ndarray]]:
    """The variables of every worker, as `session.variables(worker)` has them, read by one call.

    TensorFlow prepares each call of another part of the graph, which takes longer than to run it.
    """
    plan = session._running.job.plan
    session.variables()  # all updates are done then
    read = [value_on(plan, worker, v) for worker in range(plan.workers) for v in plan.job.variables]
    values = iter(session._running.runner.run(read, [], {}, "reading all replicas"))
    return [{v.name: next(values) for v in plan.job.variables} for _ in range(plan.workers)]


def run_on_one_device(
    job: Network, initial: Mapping[str, np.ndarray], *, steps: int = STEPS
) -> Run:
    """Train with plain TensorFlow, on the whole batch and from the given values."""
    if not job.graph.finalized:  # something may be added to it
        return _on_one_device(job, initial, steps)
    known = _ALONE.setdefault(job.graph, {})
    given = [*sorted(initial.items()), *((str(name), each) for name, each in job.feed.items())]
    start = (steps, *((name, value.tobytes()) for name, value in given))
    if start not in known:
        known[start] = _on_one_device(job, initial, steps)
    return known[start]


_ALONE: weakref.WeakKeyDictionary[tf.Graph, dict[Any, Run]] = weakref.WeakKeyDictionary()


def _on_one_device(job: Network, initial: Mapping[str, np.ndarray], steps: int) -> Run:
    with job.graph.as_default(), tf1.Session(graph=job.graph) as session:
        variables = start_from(initial, session)
        session.run(tf1.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS))
        losses = [session.run([job.loss, job.train_op], job.feed)[0] for _ in range(steps)]
        return Run(losses, initial, session.run(variables))


def start_from(
    initial: Mapping[str, np.ndarray], session: tf1.Session, *, local: bool = False
) -> dict[str, Any]:
    """Begin with the given values of the default graph's variables, which it returns by name.

    All by one call, and without `Variable.load`: TensorFlow prepares each call of another part of
    the graph, which takes longer than to run it.
    """
    found = [*tf1.global_variables(), *(tf1.local_variables() if local else ())]
    variables = {v.op.name: v for v in found}
    values = {v.initializer.inputs[1].name: initial[name] for name, v in variables.items()}
    assert len(values) == len(variables), "two variables have one initial value"
    session.run([v.initializer for v in variables.values()], values)
    return variables


def relative_error(values: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """The largest deviation of a variable, relative to its largest entry."""
    return max(
        float(np.max(np.abs(values[name] - expected[name]), initial=0))
        / (float(np.max(np.abs(expected[name]), initial=0)) or 1.0)
        for name in expected
    )


def assert_replicas_equal(run: Run) -> None:
    for replica in run.replicas:
        for name, value in replica.items():
            np.testing.assert_array_equal(value, run.replicas[0][name], err_msg=name)


def assert_equals_one_device(
    job: Network,
    workers: int,
    pattern: str = "shuffle",
    *,
    tolerance: float = 1e-12,
    steps: int = STEPS,
    **options: Any,
) -> Run:
    """Train on many workers and on one device; the same variables and losses must come out."""
    run = run_distributed(job, workers, pattern, steps=steps, **options)
    expected = run_on_one_device(job, run.initial, steps=steps)
    assert any(np.any(expected.values[name] != run.initial[name]) for name in job.raw)
    assert relative_error(run.values, expected.values) < tolerance
    np.testing.assert_allclose(run.losses, expected.losses, rtol=tolerance)
    assert_replicas_equal(run)
    return run


def train_steps(session: caramel.Session, job: Network, steps: int, *, first: int = 0) -> None:
    """Steps with the same examples, each time in another order; the first has this number."""
    for step in range(first, first + steps):
        session.step({name: np.roll(value, step, axis=0) for name, value in job.feed.items()})


# Analysis ----------------------------------------------------------------------------------------


def slow_facts(workers: int) -> list[Callable[..., Any]]:
    """Analyzers that know of ops that take long, and of a network that takes longer."""

    def timing(graph: OpGraph) -> TimingTable:
        return TimingTable(dict.fromkeys(graph.ops, 0.001))

    def network_model() -> NetworkModel:
        return assumed_network(workers, 1e5, 1e-4)

    return [timing, network_model]


def slow_processors(workers: int) -> list[Callable[..., Any]]:
    """The same of ops that a processor computes."""
    network_model = slow_facts(workers)[1]

    def timing(graph: OpGraph) -> TimingTable:
        return TimingTable(dict.fromkeys(graph.ops, 0.0001), cores=1, on_processor=True)

    return [timing, network_model]


def frontier_of(context: caramel.Context) -> GradientFrontier:
    return Analysis([context.op_graph, context.job], ANALYZERS).get(GradientFrontier)


def state_of(context: caramel.Context) -> ReplicaState:
    return Analysis([context.op_graph, context.job], ANALYZERS).get(ReplicaState)
