"""Jobs that read and write a variable in one step and leave the order open.

Each is built as users write it, and again with the order in which one device runs it drawn in, for
plain TensorFlow to follow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.networks import Network, cross_entropy, inputs, perceptron, tf, tf1


class Order:
    """Lets ops wait for others, or leaves that open."""

    def __init__(self, drawn: bool) -> None:
        self._drawn = drawn

    @contextmanager
    def after(self, *waited: Any) -> Iterator[None]:
        with tf1.control_dependencies(waited if self._drawn else []):
            yield


def counter(name: str = "counter", value: float = 0.0) -> Any:
    return tf1.get_variable(
        name,
        [],
        tf.float64,
        tf1.constant_initializer(value),
        trainable=False,
        use_resource=True,
    )


def one() -> Any:
    return tf.constant(1.0, tf.float64)


def descent(loss: Any, rate: Any) -> Any:
    """Updates of all parameters, written out."""
    variables = tf1.trainable_variables()
    gradients = tf1.gradients(loss, variables)
    pairs = zip(variables, gradients, strict=True)
    return tf.group(*[v.assign_sub(rate * g) for v, g in pairs])


# A rate that is counted down beside the updates --------------------------------------------------


def read_first(loss, order):
    count = counter()
    rate = 0.3 / (1.0 + count.read_value())
    with order.after(rate):
        counted = count.assign_add(one(), read_value=False)
    return tf.group(descent(loss, rate), counted)


def write_defined_first(loss, order):
    """It still runs last; the reference has to be defined the other way round."""
    count = counter()
    if order._drawn:
        rate = 0.3 / (1.0 + count.read_value())
        with order.after(rate):
            counted = count.assign_add(one(), read_value=False)
    else:
        counted = count.assign_add(one(), read_value=False)
        rate = 0.3 / (1.0 + count.read_value())
    return tf.group(descent(loss, rate), counted)


def assigned_sum(loss, order):
    """As BERT's optimizer counts its steps."""
    count = counter()
    rate = 0.3 / (1.0 + count)
    update = descent(loss, rate)
    following = count + 1.0
    with order.after(rate):
        counted = count.assign(following, read_value=False)
    return tf.group(update, [counted])


def warm_up(loss, order):
    count = counter()
    rate = tf.cond(count < 3.0, lambda: 0.1 * (1.0 + count), lambda: 0.3 * one())
    with order.after(rate):
        counted = count.assign_add(one(), read_value=False)
    return tf.group(descent(loss, rate), counted)


def warm_up_in_function(loss, order):
    count = counter()

    @tf.function(autograph=False)
    def rate_of():
        return tf.minimum(0.1 * (1.0 + count), 0.3)

    rate = rate_of()
    with order.after(rate):
        counted = count.assign_add(one(), read_value=False)
    return tf.group(descent(loss, rate), counted)


def loop(loss, order):
    count = counter()
    rate = tf.while_loop(
        lambda i, rate: i < 3, lambda i, rate: (i + 1, rate / (1.0 + count)), (0, 0.5 * one())
    )[1]
    with order.after(rate):
        counted = count.assign_add(one(), read_value=False)
    return tf.group(descent(loss, rate), counted)


def gathered(loss, order):
    rates = tf1.get_variable(
        "rates",
        [3],
        tf.float64,
        tf1.constant_initializer(0.1),
        trainable=False,
        use_resource=True,
    )
    rate = tf.reduce_sum(tf.gather(rates, [0, 2]))
    with order.after(rate):
        halved = tf1.scatter_sub(rates, [0, 2], tf.constant([0.01, 0.02], tf.float64))
    return tf.group(descent(loss, rate), halved)


def counted_in_condition(loss, order):
    count, limit = counter(), counter("limit", 4.0)
    rate = 0.3 / (1.0 + count)
    with order.after(rate):
        again = count + 1.0
    counted = tf.cond(again < limit, lambda: count.assign_add(one()), lambda: again - 1.0)
    return tf.group(descent(loss, rate), counted)


# Writes that run first, because the others wait for computation ----------------------------------


def average_after_the_updates(loss, order):
    """Its decay depends on a counter that nothing orders against it."""
    count = counter()
    counted = count.assign_add(one(), read_value=False)
    with tf1.control_dependencies([descent(loss, 0.3)]), order.after(counted):
        average = tf1.train.ExponentialMovingAverage(0.9, num_updates=count)
        averaged = average.apply(tf1.trainable_variables())
    return tf.group(averaged, counted)


def clipped_weights(loss, order):
    """As WGAN clips its critic, beside the update."""
    variables = tf1.trainable_variables()
    gradients = tf1.gradients(loss, variables)
    clips = [tf.clip_by_value(v, -0.3, 0.3) for v in variables]
    train = []
    for v, g, clip in zip(variables, gradients, clips, strict=True):
        with order.after(loss):
            clipped = v.assign(clip, read_value=False)
        with order.after(clipped):
            updated = v.assign_sub(0.3 * g, read_value=False)
        train += [updated, clipped]
    return tf.group(*train)


# Writes -----------------------------------------------------------------------------------------


def two_writes(loss, order):
    """The first one is defined first; the second adds to it."""
    count = counter()
    first = count.assign(2.0 * one(), read_value=False)
    with order.after(first):
        second = count.assign_add(one(), read_value=False)
    with tf1.control_dependencies([first, second]):
        rate = 0.1 * count.read_value()
    return descent(loss, rate)


def read_to_be_doubled(loss, order):
    """What is made of a read is written before anything is added, or that would be lost."""
    count = counter(value=1.0)
    doubled = 1.5 * count.read_value()
    if order._drawn:
        second = count.assign(doubled, read_value=False)
        with order.after(second):
            first = count.assign_add(one(), read_value=False)
    else:
        first = count.assign_add(one(), read_value=False)
        second = count.assign(doubled, read_value=False)
    with tf1.control_dependencies([first, second]):
        rate = 0.1 / count.read_value()
    return descent(loss, rate)


TRAIN_OPS: Mapping[str, Callable[[Any, Order], Any]] = {
    make.__name__: make
    for make in (
        read_first,
        write_defined_first,
        assigned_sum,
        warm_up,
        warm_up_in_function,
        loop,
        gathered,
        counted_in_condition,
        average_after_the_updates,
        clipped_weights,
        two_writes,
        read_to_be_doubled,
    )
}


def biased(loss: Any) -> Any:
    """A loss that reads a parameter whose gradient does not depend on what is read."""
    bias = tf1.get_variable("bias", [3], tf.float64, use_resource=True)
    return loss + tf.reduce_sum(bias)


def job(
    make: Callable[[Any, Order], Any], *, drawn: bool = False, of_loss: Any = lambda loss: loss
) -> Network:
    """A classifier with the given train op, with or without its order drawn in."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(24)
        loss = of_loss(cross_entropy(perceptron(x), y))
        names = [v.op.name for v in tf1.trainable_variables()]
        train_op = make(loss, Order(drawn))
    return Network(graph, train_op, loss, feed, dict.fromkeys(names))


# Those that have loops or conditionals, as initial values of averages have.
_BRANCHING = (warm_up, loop, counted_in_condition, average_after_the_updates)
_KINDS = {"Enter", "If", "StatelessIf", "StatelessWhile", "Switch", "While"}


def finished_job(make: Callable[[Any, Order], Any], **options: Any) -> Network:
    """The same, built once, for each version of control flow if it has any: it is finished."""
    return _built_once(make, make in _BRANCHING and tf1.control_flow_v2_enabled(), **options)


@functools.cache
def _built_once(make: Callable[[Any, Order], Any], _: bool, **options: Any) -> Network:
    built = job(make, **options)
    assert (make in _BRANCHING) == any(op.type in _KINDS for op in built.graph.get_operations())
    built.graph.finalize()
    return built
