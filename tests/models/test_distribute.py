"""Steps that are functions, done by several workers: as one process does them."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import (
    CheckpointError,
    FeedError,
    GraphError,
    LossScaleError,
    PlanError,
    SessionError,
    UnsupportedOpError,
)
from caramel.core.util import progress
from tests.support.displays import Recorded

FEATURES, CLASSES = 6, 3
SPECS = [tf.TensorSpec([None, FEATURES], tf.float64), tf.TensorSpec([None], tf.int64)]


def batches(sizes=(7, 7, 5)):
    random = np.random.RandomState(2)
    return [(random.randn(n, FEATURES), random.randint(0, CLASSES, n)) for n in sizes]


class Job:
    """A perceptron with momentum by hand."""

    def __init__(self):
        random = np.random.RandomState(1)
        self.w = tf.Variable(random.randn(FEATURES, CLASSES), name="w")
        self.velocity = tf.Variable(np.zeros([FEATURES, CLASSES]), trainable=False, name="v")
        self.rate = tf.Variable(0.1, trainable=False, dtype=tf.float64, name="rate")
        self.seen = tf.Variable(0, trainable=False, dtype=tf.int64, name="seen")

    @tf.function
    def gradient(self, x, y):
        with tf.GradientTape() as tape:
            logits = x @ self.w
            loss = caramel.loss(
                tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            )
        return loss, logits, tape.gradient(loss, self.w)

    def step(self, x, y):
        loss, logits, gradient = self.gradient(x, y)
        self.velocity.assign(0.9 * self.velocity + gradient)
        self.w.assign_sub(self.rate * self.velocity)
        self.seen.assign_add(1)
        return {"loss": loss, "logits": logits}

    @property
    def values(self):
        return [v.numpy() for v in (self.w, self.velocity, self.seen)]


def assert_close(values, others):
    for value, other in zip(values, others, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_do_a_step_as_this_process_does(workers):
    alone, job = Job(), Job()
    expected = [alone.step(x, tf.constant(y)) for x, y in batches()]
    with caramel.distribute(job.step, workers=workers, check=True) as step:
        for batch, wanted in zip(batches(), expected, strict=True):
            got = step(*batch)
            assert_close([got["loss"]], [wanted["loss"]])
            assert_close([got["logits"]], [wanted["logits"]])
    assert_close(job.values, alone.values)


def test_that_a_step_is_traced_is_told_once(monkeypatch):
    display, job = Recorded(), Job()
    monkeypatch.setattr(progress, "_display", display)
    with caramel.distribute(job.step, workers=1) as step:
        for batch in batches(sizes=(4, 4)):
            step(*batch)
    assert display.begun.count("tracing the step") == 1


def test_what_is_assigned_here_counts_in_the_next_step():
    alone, job = Job(), Job()
    data = batches()
    alone.step(*data[0])
    with caramel.distribute(job.step, workers=2) as step:
        step(*data[0])
        step.pull()
        assert_close(job.values, alone.values)
        for each in (job, alone):
            each.rate.assign(0.5)  # only read by the step
            each.w.assign(each.w * 0.5)
        step(*data[1])
    alone.step(*data[1])
    assert_close(job.values, alone.values)


def test_batches_of_another_shape_make_another_graph_of_the_same_state():
    w = tf.Variable(np.ones([1, 2]), name="w")

    def step(x):
        with tf.GradientTape() as tape:
            loss = caramel.loss(tf.reduce_mean(tf.square(tf.reduce_sum(x, [1, 2])[:, None] * w)))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    def run(function):
        return [float(function(np.full([4, n, 2], 0.5)[..., :1])) for n in (3, 3, 5, 2)]

    with caramel.distribute(step, workers=2) as distributed:
        got = run(distributed)
    after = w.numpy()
    w.assign(np.ones([1, 2]))
    assert_close(got, run(step))
    assert_close([after], [w.numpy()])


def test_arguments_of_a_shape_that_the_step_was_not_built_for_are_named():
    w = tf.Variable(np.ones([2, 3]), name="w")

    def step(pair, *more, weights):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(pair["a"] @ w + more[0]) * weights)
        w.assign_sub(0.01 * tape.gradient(caramel.loss(loss), w))
        return loss

    good = ({"a": np.ones([4, 2])}, np.ones([4, 3]))
    with caramel.distribute(step, workers=2) as distributed:
        distributed(*good, weights=np.ones([4, 3]))
        session = distributed.session
        for given, weights, told in [
            (({"a": np.ones([4, 5])}, good[1]), 3, "'pair['a']' has shape (None, 5), .*(None, 2)"),
            (
                (good[0], np.ones([4, 7])),
                9,
                "'argument 2' has shape (None, 7) and 'weights' has shape (None, 9), .* for shape "
                "(None, 3) and (None, 3); give data of that shape",
            ),
        ]:
            pattern = ".*".join(map(re.escape, told.split(".*")))
            with pytest.raises(FeedError, match=pattern):
                distributed(*given, weights=np.ones([4, weights]))
        distributed(*good, weights=np.ones([4, 3]))
        assert distributed.session is session


def test_arguments_by_name_and_values_that_make_another_graph():
    """As with `tf.function`: a truth value chooses what is traced, a number is only given."""
    w = tf.Variable(np.ones(2), name="w")

    def step(x, *, scale, doubled=False, kind="sum"):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(x * w, 1) if kind == "sum" else tf.reduce_max(x * w, 1)
            loss = caramel.loss(tf.reduce_mean((2 if doubled else 1) * scale * total))
        w.assign_sub(tape.gradient(loss, w))
        return loss, caramel.per_worker(loss)

    def run(function):
        x = np.arange(8.0).reshape(4, 2)
        scales = tf.constant([0.1, 0.2, 0.1], tf.float64)
        options = [{}, {}, {"doubled": True, "kind": "max"}]
        calls = zip(scales, options, strict=True)
        results = [function(x, scale=scale, **named) for scale, named in calls]
        return [float(loss) for loss, _ in results], [own for _, own in results]

    with caramel.distribute(step, workers=2) as distributed:
        got, apart = run(distributed)
    after = w.numpy()
    w.assign(np.ones(2))
    assert_close(got, run(step)[0])
    for loss, own in zip(got, apart, strict=True):
        assert isinstance(own, tuple)
        assert own[0] != own[1]
        assert_close([np.mean(own)], [loss])
    assert_close([after], [w.numpy()])


def test_metrics_that_a_step_updates_are_those_of_all_examples():
    """They are reset in each pass; parts differ by an example, or have none."""
    kinds = keras.metrics.MeanSquaredError, keras.metrics.Mean
    job, alone = ((Job(), *(kind(dtype="float64") for kind in kinds)) for _ in range(2))

    def step_of(job, errors, means):
        def step(x, y):
            told = job.step(x, y)
            errors.update_state(tf.one_hot(y, CLASSES), told["logits"])
            means.update_state(told["loss"], sample_weight=tf.shape(y)[0])
            return told["loss"]

        return step

    def passes(step, errors, means, pull=lambda: None):
        for _ in range(2):
            errors.reset_state()
            means.reset_state()
            for batch in batches((7, 3, 1)):
                step(*batch)
            pull()
            yield float(errors.result()), float(means.result())

    with caramel.distribute(step_of(*job), workers=2) as step:
        got = list(passes(step, *job[1:], step.pull))
    assert_close(got, list(passes(step_of(*alone), *alone[1:])))
    assert_close(job[0].values, alone[0].values)


def test_a_context_is_made_of_a_function():
    alone, job = Job(), Job()
    context = caramel.Context.from_function(job.step, SPECS)
    x, y = batches()[0]
    assert len(context.inputs) == 2
    (rate,) = context.lowered.scalars
    with caramel.ARModel(context, 2).session() as session:
        session.assign({n: v.numpy() for n, v in context.lowered.variables.items()})
        feed = dict(zip(context.inputs, (x, y), strict=True))
        got = session.step({**feed, f"{rate}:0": 0.1}, context.outputs["loss"])
        values = session.variables()
    assert_close([got], [alone.step(x, y)["loss"]])
    assert_close([values["w"]], [alone.w])


# What is wrong --------------------------------------------------------------------------------


def test_a_step_says_what_it_minimises():
    v = tf.Variable(np.float64(1))
    with pytest.raises(LossScaleError, match="mark its loss inside the step by 'loss = caramel"):
        caramel.distribute(lambda x: v.assign_sub(tf.reduce_mean(x)), workers=2)(np.ones(4))


def test_a_step_that_asks_for_values_cannot_be_traced():
    with pytest.raises(
        GraphError, match=r"(?s)the step cannot be traced.*has no attribute 'numpy'"
    ):
        caramel.distribute(lambda x: caramel.loss(x).numpy(), workers=2)(np.ones(4))


def test_tables_belong_into_the_dataset():
    initializer = tf.lookup.KeyValueTensorInitializer([1], [2], tf.int64, tf.int64)
    table = tf.lookup.StaticHashTable(initializer, 0)
    v = tf.Variable(1.0)

    def step(x):
        return caramel.loss(tf.reduce_mean(v * tf.cast(table.lookup(x), tf.float32)))

    with pytest.raises(UnsupportedOpError, match="look up in the dataset"):
        caramel.distribute(step, workers=2)(np.arange(4))


def test_ragged_batches_are_refused():
    with pytest.raises(FeedError, match="dense tensors only, not a RaggedTensor"):
        caramel.distribute(lambda x: x, workers=2)(tf.ragged.constant([[1], [2, 3]]))


def test_datasets_are_iterated_outside():
    data = tf.data.Dataset.range(3)
    for given in (data, iter(data)):
        with pytest.raises(FeedError, match="a dataset is iterated outside of the step"):
            caramel.distribute(lambda x: x, workers=2)(given)


def test_a_loss_is_marked_outside_of_conditionals():
    v = tf.Variable(np.float64(1))

    def step(x):
        return tf.cond(x[0] > 0, lambda: caramel.loss(tf.reduce_mean(v * x)), lambda: v * 2)

    with pytest.raises(LossScaleError, match="return it from there, and mark what comes out"):
        caramel.distribute(step, workers=2)(np.ones(4))


def test_before_the_first_step_there_is_no_session():
    step = caramel.distribute(lambda x: x, workers=2)
    with pytest.raises(SessionError, match="before the first step"):
        step.session  # noqa: B018
    step.close()


def test_outside_of_a_step_a_loss_is_marked_in_vain():
    assert caramel.loss(3) == 3


def test_a_loop_goes_on_from_the_newest_checkpoint(tmp_path):
    """Steps are counted over all runs, also where another graph takes over."""
    alone, data = Job(), batches((7, 7, 5, 7, 4, 6))
    for batch in data:
        alone.step(batch[0], tf.constant(batch[1]))
    options = {"session_options": {"resume": tmp_path / "new"}}
    for ends_at, saves_at in ((4, 3), (6, 6)):
        job = Job()
        with caramel.distribute(job.step, 2, **options) as step:
            for x, y in data[step.steps_done : ends_at]:
                step(x, y.astype("int32" if step.steps_done == 2 else "int64"))
                if step.steps_done == saves_at:
                    step.session.save(tmp_path / "new/m", global_step=step.steps_done)
        assert step.steps_done == ends_at
    assert_close(job.values, alone.values)
    with pytest.raises(PlanError, match="session_options has variables, but these are those of"):
        caramel.distribute(Job().step, 2, session_options={"variables": None})
    with pytest.raises(CheckpointError, match="resume is .* which is no directory"):
        caramel.distribute(Job().step, 2, session_options={"resume": tmp_path / "new/m-6"})


def test_a_loop_that_was_told_of_a_damaged_checkpoint_does_not_leave_steps_out(tmp_path):
    data, options = batches((7, 7)), {"session_options": {"resume": tmp_path}}
    with caramel.distribute(Job().step, 2, **options) as step:
        for x, y in data:
            step(x, y)
            step.session.save(tmp_path / "m", global_step=step.steps_done)
    next(tmp_path.glob("m-2.data-*")).write_bytes(b"damaged")
    step = caramel.distribute(Job().step, 2, **options)
    assert step.steps_done == 2
    with pytest.raises(CheckpointError, match="2 steps were done .* after 1, from '.*/m-1': start"):
        step(*data[0])
    step.close()
