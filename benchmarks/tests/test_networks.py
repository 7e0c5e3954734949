"""The networks of the benchmarks have the papers' parameters, and train."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

import caramel
from benchmarks import networks

# Number of trainable variables and their size in MiB, from the papers' tables.
PAPERS = {
    "alexnet_v2": (16, 191.89),
    "inception_v1": (116, 25.24),
    "inception_v2": (141, 42.64),
    "inception_v3": (196, 103.54),
    "resnet_v1_50": (108, 97.39),
    "resnet_v1_101": (210, 169.74),
    "resnet_v2_50": (125, 97.45),
    "resnet_v2_101": (244, 169.86),
    "resnet_v2_152": (363, 229.51),
    "vgg_16": (32, 527.79),
    "vgg_19": (38, 548.05),
    "seq_32": (32, 32.0),
    "par_32": (32, 32.0),
}


@functools.cache
def default_job(name):
    """With an optimizer that has no variables, each of which takes as long as a parameter."""
    return networks.build(name, optimizer="sgd")


@functools.cache
def parameters(name, image=None):
    """Name to number of entries of every trainable variable; the network is not differentiated."""
    network = networks.NETWORKS[name]
    shape = [image or network.image] * 2 + [3] if network.image else [networks.WIDTH]
    with tf.Graph().as_default():
        examples = tf.compat.v1.placeholder(tf.float32, [None, *shape])
        network.body(examples, network.classes, network.dropout)
        return {v.name: math.prod(v.shape) for v in tf.compat.v1.trainable_variables()}


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_a_network_has_the_papers_parameters(name):
    found = parameters(name)
    variables, size = PAPERS[name]
    assert len(found) == networks.NETWORKS[name].variables == variables
    assert round(4 * sum(found.values()) / 2**20, 2) == size
    assert networks.NETWORKS[name].mib == pytest.approx(size, abs=0.011)


# Deeper ones have more layers of the same kinds.
DEEP = ("resnet_v1_101", "resnet_v2_101", "resnet_v2_152", "vgg_19")


@pytest.mark.parametrize("name", [name for name in networks.NETWORKS if name not in DEEP])
def test_every_parameter_has_a_gradient(name):
    job = default_job(name)
    with job.graph.as_default():
        trained = tf.compat.v1.trainable_variables()
    assert [variable.name for _, variable in job.gradients] == [v.name for v in trained]
    assert all(gradient is not None for gradient, _ in job.gradients)


@pytest.mark.parametrize(
    "name",
    [
        "alexnet_v2",
        "inception_v1",
        "inception_v2",
        "inception_v3",
        "resnet_v1_50",
        "resnet_v2_50",
        "vgg_16",
    ],
)
def test_parameters_do_not_depend_on_the_size_of_images(name):
    smallest = networks.NETWORKS[name].smallest_image
    assert parameters(name, smallest) == parameters(name)


def test_a_job_says_what_to_feed():
    job = networks.build("vgg_16", batch=3, image=32)
    assert job.inputs == {"examples:0": (3, 32, 32, 3), "labels:0": (3,)}
    feed = job.feed(seed=1)
    assert {name: value.shape for name, value in feed.items()} == job.inputs
    assert feed["examples:0"].dtype == np.float32


def test_the_batches_are_the_papers():
    assert default_job("alexnet_v2").inputs["labels:0"] == (512,)
    assert default_job("inception_v3").inputs["examples:0"] == (32, 299, 299, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "resnet"}, "there is no network 'resnet'; there are alexnet_v2, "),
        ({"name": "vgg_16", "image": 31}, "vgg_16 needs images of at least 32 pixels, not 31"),
        ({"name": "seq_32", "image": 32}, r"seq_32 takes examples of shape \(512,\), no images"),
        ({"name": "seq_32", "optimizer": "magic"}, "there is no optimizer 'magic'"),
        ({"name": "transformer", "dtype": tf.float64}, "transformer takes tokens, and computes"),
    ],
)
def test_what_cannot_be_built_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        networks.build(**options)


def test_only_resnet_v2_updates_moving_averages():
    model = caramel.ARModel(default_job("resnet_v2_50").context(), workers=2)
    # A mean and a variance before each unit and at the end.
    assert len(model.plan.job.local) == 2 * 17
    assert not caramel.ARModel(default_job("resnet_v1_50").context(), workers=2).plan.job.local


def test_the_same_seed_gives_the_same_values():
    def initial(seed):
        smallest = networks.NETWORKS["alexnet_v2"].smallest_image
        job = networks.build("alexnet_v2", image=smallest, optimizer="sgd", seed=seed)
        with tf.compat.v1.Session(graph=job.graph) as session:
            session.run("conv2/weights/Assign")
            return session.run("conv2/weights/Read/ReadVariableOp:0")

    first = initial(1)
    np.testing.assert_array_equal(first, initial(1))
    assert not np.any(first == initial(2))


@pytest.mark.parametrize("name", ["inception_v1", "seq_32", "par_32"])
def test_a_network_trains_on_two_workers(name):
    image = networks.NETWORKS[name].image and 16
    optimizer = "sgd" if name == "inception_v1" else "momentum"
    options = {"batch": 4, "image": image, "dropout": 0, "learning_rate": 0.001}
    job = networks.build(name, optimizer=optimizer, **options)
    with caramel.ARModel(job.context(), workers=2).session() as session:
        losses = [session.step(job.feed()) for _ in range(3)]
    assert np.all(np.isfinite(losses))
    assert losses[2] < losses[0]


@pytest.mark.parametrize(("name", "batch"), [("lstm", 8), ("transformer", 2)])
def test_a_network_for_sequences_trains_and_is_built_the_same_again(name, batch):
    def losses():
        # Small steps: what is fed is random.
        job = networks.build(name, batch=batch, dropout=0, learning_rate=0.01, optimizer="sgd")
        spec = networks.SEQUENCES[name]
        sizes = [math.prod(variable.shape) for _, variable in job.gradients]
        assert len(sizes) == spec.variables
        assert 4 * sum(sizes) / 2**20 == pytest.approx(spec.mib, abs=0.005)
        kinds = {op.type for op in job.graph.get_operations()}
        assert not kinds & {"Enter", "While", "StatelessWhile"}
        with job.graph.as_default():
            initialize = tf.compat.v1.global_variables_initializer()
        with tf.compat.v1.Session(graph=job.graph) as session:
            session.run(initialize)
            return [session.run([job.loss, job.train_op], job.feed())[0] for _ in range(3)]

    first = losses()
    assert first[0] > first[1] > first[2]
    np.testing.assert_allclose(first, losses(), rtol=1e-5)


def test_tokens_do_not_see_later_ones():
    with tf.Graph().as_default() as graph:
        tokens = tf.compat.v1.placeholder(tf.int32, [None, 4])
        (logits,) = networks.SEQUENCES["transformer"].body(tokens, 5, 0)
        initialize = tf.compat.v1.global_variables_initializer()
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(initialize)
        values = session.run(logits, {tokens: [[0, 1, 2, 3], [0, 1, 2, 4]]})
    np.testing.assert_allclose(values[0, :3], values[1, :3], rtol=1e-5)
    assert np.abs(values[0, 3] - values[1, 3]).max() > 0.01
