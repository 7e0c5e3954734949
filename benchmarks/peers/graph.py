"""The network of a case as a TensorFlow graph: the one definition that all TensorFlow peers use.

`forward` is the network up to its loss. `build` adds the input pipeline, the raw gradients and the
optimizer; what a peer does to gradients or optimizer it passes in as a function. For a case with an
accelerator, gradients come from the emulated computation (`emulated`), which reads no inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.networks import NETWORKS, Network, layers
from benchmarks.peers.data import MOMENTUM, Case, Examples, examples_of, initial_values
from benchmarks.peers.emulated import Emulated
from benchmarks.peers.rank import Rank
from caramel import Context

tf1 = tf.compat.v1

Pairs = Sequence[tuple[Any, Any]]


def tiny(images: Any, classes: int, dropout: float) -> list[Any]:
    """A convolution and two dense layers, 1.04 MiB, for tests."""
    x = layers.conv(images, "conv", 8, 3)
    x = tf.reshape(x, [-1, x.shape[1] * x.shape[2] * x.shape[3]])
    x = layers.dense(x, "hidden", 512)
    return [layers.dense(x, "logits", classes, activation=layers.linear)]


def one_tensor(vectors: Any, classes: int, dropout: float) -> list[Any]:
    """One matrix: a network in which nothing but its gradient is aggregated."""
    return [tf.matmul(vectors[:, :1], layers.weights([1, classes], vectors.dtype))]


TINY = Network(tiny, 6, 1.04, image=8, classes=10)
TENSORS = {
    name: Network(one_tensor, 1, entries / 2**18, image=None, classes=entries)
    for name, entries in {
        "tensor_64kb": 2**14,
        "tensor_1mb": 2**18,
        "tensor_4mb": 2**20,
        "tensor_16mb": 2**22,
        "tensor_64mb": 2**24,
    }.items()
}
"""Networks of one variable, for how long one aggregation takes, by its size."""


def network(name: str) -> Network:
    """What is known of a network.

    Raises:
        ValueError: there is none of this name.
    """
    known = {**NETWORKS, **TENSORS, "tiny": TINY}
    if name not in known:
        raise ValueError(f"there is no network '{name}'; there are {', '.join(known)}")
    return known[name]


def example_shape(case: Case) -> tuple[int, ...]:
    """The shape of one example's inputs."""
    spec = network(case.network)
    if spec.image is None:
        return (512,)
    size = case.image or spec.image
    return (size, size, 3)


def forward(case: Case, examples: Any, labels: Any) -> Any:
    """The loss: the mean cross entropy; that of each further classifier counts 0.4.

    Nothing is dropped out, so that steps are the same everywhere.
    """
    spec = network(case.network)
    first, *others = [
        tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x))
        for x in spec.body(examples, spec.classes, 0.0)
    ]
    return first + 0.4 * tf.add_n(others) if others else first


class Assignment(tf1.train.Optimizer):  # type: ignore[name-defined]
    """In place of an optimizer: assigns each gradient to its parameter."""

    def __init__(self) -> None:
        super().__init__(use_locking=False, name="Assignment")

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return tf.raw_ops.AssignVariableOp(resource=handle.handle, value=grad)


def optimizer(case: Case) -> Any:
    """The optimizer that all peers use."""
    if case.updates == "none":
        return Assignment()
    return tf1.train.MomentumOptimizer(case.learning_rate, MOMENTUM)


def update(case: Case, variable: Any, accumulator: Any, gradient: Any) -> None:
    """What `optimizer` does to one variable, where v1 optimizers do not work."""
    if case.updates == "none":
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=gradient)
        return
    tf.raw_ops.ResourceApplyMomentum(
        var=variable.handle,
        accum=accumulator.handle,
        lr=case.learning_rate,
        grad=gradient,
        momentum=MOMENTUM,
    )


def dataset(examples: Examples, worker: int, workers: int, batch: int) -> Any:
    """One worker's batches, from the file, over and over."""

    def decode(record: Any) -> tuple[Any, Any]:
        inputs = tf.io.decode_raw(tf.strings.substr(record, 0, label_at), tf.float32)
        label = tf.io.decode_raw(tf.strings.substr(record, label_at, 4), tf.int32)
        return tf.reshape(inputs, examples.shape), label[0]

    label_at = examples.record_bytes - 4
    records = tf.data.FixedLengthRecordDataset(examples.path, examples.record_bytes).repeat()
    if workers > 1:
        records = records.shard(workers, worker)
    return records.map(decode).batch(batch, drop_remainder=True).prefetch(1)


@dataclass(frozen=True)
class Job:
    """A training job in a graph of its own.

    Attributes:
        graph: the graph.
        loss: the mean over the batch.
        train_op: what a step runs: `apply` and `averages`.
        apply: updates the parameters.
        averages: updates moving averages.
        gradients: the raw gradients and their variables.
        start: starts the input pipeline, if there is one.
        assign: puts the initial values into the parameters.
        fed: what `assign` is fed.
    """

    graph: tf.Graph
    loss: Any
    train_op: Any
    apply: Any
    averages: tuple[Any, ...]
    gradients: tuple[tuple[Any, Any], ...]
    start: Any
    assign: Any
    fed: Mapping[Any, np.ndarray]

    @property
    def parameters(self) -> dict[str, Any]:
        """The variables that are trained, by name."""
        return {variable.op.name: variable for _, variable in self.gradients}


def build(
    rank: Rank,
    *,
    batch: int | None = None,
    task: str | None = None,
    device: Any = None,
    optimizer_of: Callable[[Case], Any] = optimizer,
    aggregate: Callable[[Pairs], Pairs] = lambda pairs: pairs,
) -> Job:
    """The job of one worker, with its shard of the examples.

    Args:
        rank: which worker of how many, and what to run.
        batch: examples per step; the case's by default.
        task: the device of the input pipeline.
        device: a device, or a device function, for all of it but the input pipeline.
        optimizer_of: makes the optimizer.
        aggregate: gets the raw gradients and returns those that are applied.
    """
    case = rank.case
    values = initial_values(rank.prepared)
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(case.seed)
        if case.accelerator is None:
            with tf1.device(task):
                examples = examples_of(rank.prepared)
                own = dataset(examples, rank.number, rank.workers, batch or case.batch)
                iterator = tf1.data.make_initializable_iterator(own)
                inputs, start = iterator.get_next(), iterator.initializer
        else:
            start = tf.no_op("start")
        with tf1.device(device):
            step = tf1.train.get_or_create_global_step()
            update = optimizer_of(case)
            if case.accelerator is None:
                loss = forward(case, *inputs)
                pairs = tuple(update.compute_gradients(loss))
            else:
                loss, pairs = _emulated(rank, task)
            apply = update.apply_gradients(aggregate(pairs), global_step=step)
            averages = tuple(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
            train_op = tf.group(apply, *averages, name="train")
            fed, assigns = {}, []
            for _, variable in pairs:
                value = tf1.placeholder(variable.dtype, variable.shape)
                fed[value] = values[variable.op.name]
                assigns.append(variable.assign(value, read_value=False))
            assign = tf.group(*assigns, name="assign")
    return Job(graph, loss, train_op, apply, averages, pairs, start, assign, fed)


def _emulated(rank: Rank, task: str | None) -> tuple[Any, tuple[tuple[Any, Any], ...]]:
    """The emulated loss and raw gradients, on the device `task`, with variables of the case."""
    variables = {
        name: tf1.get_variable(
            name, value.shape, value.dtype, tf1.zeros_initializer(), use_resource=True
        )
        for name, value in initial_values(rank.prepared).items()
    }
    reads = {name: tf.convert_to_tensor(variable) for name, variable in variables.items()}
    with tf1.device(None), tf1.device(task):
        loss, gradients = Emulated.read(rank.prepared).gradients(reads)
    return loss, tuple((gradients[name], variable) for name, variable in variables.items())


def context_of(case: Case) -> Context:
    """The job of a case for one device, its inputs fed; computation that is to be emulated."""
    with tf.Graph().as_default() as graph:
        examples = tf1.placeholder(tf.float32, [None, *example_shape(case)])
        loss = forward(case, examples, tf1.placeholder(tf.int32, [None]))
        made = optimizer(case)
        pairs = made.compute_gradients(loss)
        train_op = made.apply_gradients(pairs)
        return Context(graph, train_op=train_op, loss=loss, gradients=pairs)


def draw_initial_values(case: Case, *, trained: bool = True) -> dict[str, np.ndarray]:
    """The initial values of what is trained (or of all else), in the order of the network."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(case.seed)
        examples = tf1.placeholder(tf.float32, [None, *example_shape(case)])
        forward(case, examples, tf1.placeholder(tf.int32, [None]))
        variables = [v for v in tf1.global_variables() if v.trainable == trained]
        names = [variable.op.name for variable in variables]
        with tf1.Session(graph=graph) as session:
            session.run(tf1.global_variables_initializer())
            return dict(zip(names, session.run(variables), strict=True))


def config(case: Case, **options: Any) -> Any:
    """Options of a session or server: the case's threads, and no graph optimizer, as Caramel's.

    The graph optimizer makes the first step slower and later ones no faster.
    """
    proto = tf1.ConfigProto(
        intra_op_parallelism_threads=case.threads,
        inter_op_parallelism_threads=case.inter_op_threads,
        allow_soft_placement=True,
        **options,
    )
    proto.graph_options.rewrite_options.disable_meta_optimizer = True
    return proto


def initialise(session: Any, job: Job, *, chief: bool = True) -> None:
    """Initialise the variables of a job (a chief's only) and start its pipeline."""
    with job.graph.as_default():
        if chief:
            session.run(tf1.global_variables_initializer())
            session.run(job.assign, job.fed)
        session.run([tf1.local_variables_initializer(), job.start])


def step_of(session: Any, job: Job) -> Callable[[], Any]:
    """A function that does one step and fetches the loss."""
    return session.make_callable([job.loss, job.train_op])
