"""What the workers of a step returned becomes one result."""

from __future__ import annotations

import numpy as np

from caramel.runtime.steps.combine_results import combine


def test_floating_scalars_are_averaged_over_the_examples():
    values = [np.float32(1), np.float32(4)]
    assert combine(values, examples=None, is_batch=False) == np.float32(2.5)
    weighted = combine(values, examples=[2, 1], is_batch=False)
    assert weighted == np.float32(2)
    assert isinstance(weighted, np.float32)


def test_a_summed_loss_is_added_up():
    assert combine([1.0, 4.0], examples=[2, 1], is_batch=False, parts=[1, 1]) == 5.0


def test_what_is_the_same_on_every_worker_counts_once():
    assert combine([11.0, 14.0], examples=None, is_batch=False, parts=[1, 1], shared=10.0) == 15.0


def test_a_worker_that_counts_nothing_brings_no_nan():
    assert combine([np.nan, 4.0], examples=None, is_batch=False, parts=[0, 1]) == 4.0


def test_results_with_one_entry_for_each_example_are_concatenated_in_worker_order():
    joined = combine([np.ones((2, 3)), np.zeros((1, 3))], examples=[2, 1], is_batch=True)
    assert joined.shape == (3, 3)
    assert list(joined[:, 0]) == [1, 1, 0]


def test_anything_else_is_a_list_with_one_value_for_each_worker():
    assert combine([np.int64(3), np.int64(4)], examples=[1, 1], is_batch=True) == [3, 4]
    matrices = combine([np.ones((2, 3)), np.ones((2, 3))], examples=[4, 4], is_batch=True)
    assert isinstance(matrices, list)
    same_length = combine([np.ones(2), np.ones(2)], examples=[2, 2], is_batch=False)
    assert isinstance(same_length, list)
