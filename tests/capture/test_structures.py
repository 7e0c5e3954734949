"""Structures of feeds and fetches are taken and given back as `tf.compat.v1.Session.run` does."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import attr
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import FeedError, NotTensorFlowError
from tests.support.networks import parameter

tf1 = tf.compat.v1

Pair = namedtuple("Pair", ["x", "y"])
X, Y = np.arange(4.0), np.linspace(0, 1, 4)


@pytest.fixture(scope="module")
def graph():
    with tf.Graph().as_default() as graph:
        x, y = (tf1.placeholder(tf.float64, [None], name) for name in "xy")
        loss = tf.reduce_mean(tf.square(parameter("w", []) * x - y), name="loss")
        tf.identity(2 * x, name="twice")
        tf1.train.GradientDescentOptimizer(0.0).minimize(loss, name="train")
    return graph


@pytest.fixture(scope="module")
def session(graph):
    context = caramel.Context(graph, train_op="train", loss="loss:0")
    with caramel.ARModel(context, 2).session() as session:
        yield session


@pytest.fixture
def tensors(graph):
    return {name: graph.get_tensor_by_name(f"{name}:0") for name in ("x", "y", "loss", "twice")}


def test_structures_of_keys_take_structures_of_values(session, tensors):
    x, y = tensors["x"], tensors["y"]
    expected = session.step({x: X, y: Y})
    for feeds in (
        {(x, y): (X, Y)},
        {(x, y): [X.tolist(), Y]},
        {("x:0", (y,)): (X, [Y])},
        {Pair(x, y): Pair(X, Y)},
        {Pair(x, y): (X, Y)},
        {(x,): np.array([X]), y: Y},
    ):
        assert session.step(feeds) == expected
        assert session.run("loss:0", feeds) == pytest.approx(expected)


@pytest.mark.parametrize("value", [(X,), X, 1.0, None, {"x": X, "y": Y}])
def test_values_of_another_structure_are_refused(session, tensors, value):
    keys = (tensors["x"], tensors["y"])
    with pytest.raises(FeedError, match=r"\(x:0, y:0\) are fed together, .* no sequence of 2"):
        session.step({keys: value})


def test_the_same_tensor_twice_is_refused(session, tensors):
    with pytest.raises(FeedError, match="two values for 'x:0'"):
        session.step({(tensors["x"], tensors["y"]): (X, Y), "x:0": X})


@pytest.mark.parametrize("kind", ["step", "run"])
def test_fetches_come_back_in_their_structure(session, tensors, kind):
    loss, twice = tensors["loss"], tensors["twice"]

    def fetch(structure):
        if kind == "run":
            return session.run(structure, {"x:0": X, "y:0": Y})
        return session.step({"x:0": X, "y:0": Y}, structure)

    of_loss, of_twice = fetch([loss, twice])
    np.testing.assert_array_equal(of_twice, 2 * X)
    assert fetch((loss, (), [[loss]])) == (of_loss, (), [[of_loss]])
    pair = fetch(Pair(twice, {"deep": [loss]}))
    assert type(pair) is Pair
    assert pair.y == {"deep": [of_loss]}
    mixed = fetch({2: loss, "b": loss, loss.ref(): loss})  # keys that cannot be sorted
    assert list(mixed) == [2, "b", loss.ref()]
    ordered = fetch(OrderedDict([("z", loss), ("a", loss)]))
    assert type(ordered) is OrderedDict
    assert list(ordered) == ["z", "a"]
    default = fetch(defaultdict(list, a=loss))
    assert default == {"a": of_loss}
    assert default.default_factory is list
    assert fetch({}) == {}


def test_fetches_of_attrs_come_back_as_such(session, tensors):
    cls = attr.make_class("Made", ["loss", "other"])
    made = session.run(cls(tensors["loss"], [tensors["loss"]]), {"x:0": X, "y:0": Y})
    assert made == cls(made.loss, [made.loss])


@pytest.mark.parametrize("structure", [None, [None], {"a": 1.5}, {"a": {1, 2}}])
def test_what_is_no_fetch_is_refused(session, structure):
    with pytest.raises(NotTensorFlowError, match="must be a tensor, an operation or a name"):
        session.run(structure, {"x:0": X, "y:0": Y})


def test_what_is_fed_may_be_fetched(session, tensors):
    feeds = {"x:0": X, "y:0": Y}
    for fetched in (
        session.step(feeds, [tensors["x"], tensors["loss"], "y:0"]),
        session.run([tensors["x"], tensors["loss"], "y:0"], feeds),
    ):
        np.testing.assert_array_equal(fetched[0], X)
        np.testing.assert_array_equal(fetched[2], Y)
        assert fetched[1] == pytest.approx(session.run("loss:0", feeds))
    assert session.run("loss:0", {"loss:0": 2.0}) == 2.0
