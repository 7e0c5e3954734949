"""Steps that are functions become graphs."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import caramel
from caramel.capture.functions import lower


def test_variables_that_a_step_makes_are_here_and_it_is_traced_once():
    made, traced = [], []

    def step(x):
        traced.append(x)
        if not made:
            made.append(tf.Variable([1.0, 2.0], name="given"))
            made.append(tf.Variable(lambda: tf.fill([2], 3.0), trainable=False))
        return caramel.loss(tf.reduce_mean(x * made[0] * made[1]))

    lowered = lower(step, [tf.TensorSpec([None, 2])])
    assert len(traced) == 1
    assert set(map(id, lowered.variables.values())) == set(map(id, made))
    np.testing.assert_array_equal([v.numpy() for v in made], [[1, 2], [3, 3]])
    assert [v.trainable for v in made] == [True, False]


def test_variables_that_begin_with_what_is_known_in_the_step_only():
    made = []

    def step(x):
        if not made:
            made.append(tf.Variable(tf.ones([2]) + 1.0))
        return caramel.loss(tf.reduce_mean(x * made[0]))

    lowered = lower(step, [tf.TensorSpec([None, 2])])
    assert list(map(id, lowered.variables.values())) == [id(made[0])]
    np.testing.assert_array_equal(made[0].numpy(), [2, 2])
