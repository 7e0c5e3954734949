"""The aggregation that TensorFlow carries out does what its schedule says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tensorflow.python.distribute.v1 import all_reduce

from caramel.core.names import TensorRef, in_replica
from caramel.core.patterns import PATTERNS, chunk_sizes, schedule
from caramel.modifiers.aggregation.aggregate import aggregate
from caramel.modifiers.aggregation.results import aggregated_tensors
from caramel.modifiers.batch_weights import weigh
from caramel.modifiers.crossings import Wiring
from caramel.modifiers.traffic_audit import audit
from tests.support.aggregation import (
    aggregated_graph,
    assert_same_on_all_workers,
    random_values,
    replicas,
    run,
    session_on,
)
from tests.support.networks import in_turns, tf
from tests.support.plans import Shape, make_plan

SHAPES: list[Shape] = [(), (7,), (3, 50), (2, 3, 4), (1000,)]
TOLERANCE = {"float16": 5e-3, "bfloat16": 5e-2, "float32": 1e-5, "float64": 1e-13}


@pytest.mark.parametrize(
    ("pattern", "workers", "dtype"),
    in_turns([*PATTERNS] * 3, [2, 3, 5], [d for d in ("int32", "int64", "float64") for _ in "ab"]),
)
def test_sums_are_right_on_every_worker(dtype, workers, pattern):
    plan = make_plan(workers, SHAPES, dtype, pattern=pattern, depth=3, shift=1)
    values = random_values(plan)
    results = run(plan, values)
    assert_same_on_all_workers(results)
    for number in range(len(SHAPES)):
        expected = sum(own[number] for own in values)
        np.testing.assert_allclose(results[0][number], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    ("dtype", "workers", "depth"),
    in_turns(
        TOLERANCE,
        [2, 3],
        [1, 4],
    ),
)
def test_means_are_right_in_every_precision(dtype, workers, depth, pattern):
    plan = make_plan(workers, SHAPES, dtype, pattern=pattern, depth=depth, reduction="mean")
    values = random_values(plan)
    results = run(plan, values)
    assert_same_on_all_workers(results)
    for number in range(len(SHAPES)):
        expected = np.mean([own[number].astype(np.float64) for own in values], 0)
        found = results[0][number].astype(np.float64)
        np.testing.assert_allclose(found, expected, atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_worker_with_more_examples_counts_more(dtype):
    plan = make_plan(3, SHAPES, dtype, pattern="ring", reduction="mean")
    values, examples = random_values(plan), np.array([5, 4, 4])
    results = run(plan, values, shares=examples * 3 / examples.sum())
    assert_same_on_all_workers(results)
    for number in range(len(SHAPES)):
        rows = [own[number].astype(np.float64) for own in values]
        expected = np.average(rows, 0, weights=examples)
        found = results[0][number].astype(np.float64)
        np.testing.assert_allclose(found, expected, atol=2 * TOLERANCE[dtype])


def test_a_group_is_weighed_once_on_each_worker():
    plan = make_plan(2, [(3,), (4, 2)], "float32", pattern="ring", reduction="mean")
    kinds = [node.op for node in aggregated_graph(plan).node]
    assert [kinds.count(kind) for kind in ("Switch", "Mul", "Merge")] == [2, 2, 2]


def test_means_of_small_floats_do_not_overflow():
    plan = make_plan(4, [(100,)], "float16", pattern="ring", reduction="mean")
    values = [[np.full(100, 60000, np.float16)]] * 4
    np.testing.assert_array_equal(run(plan, values)[0][0], values[0][0])


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (2, 0)])
def test_tiny_and_empty_gradients_are_aggregated_too(shape, pattern):
    plan = make_plan(5, [shape, (3,), (0, 4)], "float64", pattern=pattern, depth=2)
    values = random_values(plan)
    results = run(plan, values)
    assert_same_on_all_workers(results)
    np.testing.assert_allclose(results[0][0], sum(own[0] for own in values))
    np.testing.assert_allclose(results[0][1], sum(own[1] for own in values))


@pytest.mark.parametrize(
    ("workers", "reduction"),
    [
        *itertools.product([2, 3, 4], ["sum", "mean"]),
        *in_turns([5, 6, 7, 8, 11], ["sum", "mean"]),
    ],
)
def test_shuffle_is_a_left_fold_over_the_workers_to_the_bit(workers, reduction):
    """Whatever the groups, the depth and the shift."""
    shapes = [(50,), (3, 7), (700,)]
    ways = [
        {"groups": [[0, 1, 2]], "depth": 1},
        {"groups": [[2, 0], [1]], "depth": 3, "shift": 1},
        {"groups": [[0], [1], [2]], "depth": 2, "shift": workers - 1},
    ]
    for way in ways[: 3 if workers <= 4 else 2 if workers <= 8 else 1]:
        plan = make_plan(workers, shapes, "float32", reduction=reduction, pattern="shuffle", **way)
        values = random_values(plan)
        results = run(plan, values)
        assert_same_on_all_workers(results)
        for number in range(len(shapes)):
            expected = values[0][number]
            for own in values[1:]:
                expected = expected + own[number]
            if reduction == "mean":
                expected = expected / np.float32(workers)
            np.testing.assert_array_equal(results[0][number], expected)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    ("workers", "dtype"), [(2, "float32"), (3, "float64"), (6, "bfloat16"), (3, "float32")]
)
def test_the_graph_sends_what_the_schedule_says(dtype, workers, pattern):
    plan = make_plan(workers, SHAPES, dtype, pattern=pattern, depth=2, shift=1)
    with tf.Graph().as_default() as graph:
        graph_def = aggregated_graph(plan)
        tf.graph_util.import_graph_def(graph_def, name="")
        definitions = {op.type: op.op_def for op in graph.get_operations()}
    last = [in_replica(w, f"read{n}") for w in range(workers) for n in range(len(SHAPES))]
    traffic = audit(Wiring(graph_def, definitions.get), plan, last)
    steps = schedule(pattern, workers, depth=2, shift=1)
    size = tf.as_dtype(dtype).size
    elements = sum(int(np.prod(shape)) for shape in SHAPES)
    sent = steps.sent_elements(chunk_sizes(elements, steps.chunks, size))
    assert traffic.bytes == {
        (f"/job:worker/task:{a}", f"/job:worker/task:{b}"): count * size
        for (a, b), count in sent.items()
    }
    assert not traffic.open_transfers
    copies = workers if pattern == "exchange" else 2
    assert sum(traffic.bytes.values()) == copies * (workers - 1) * elements * size


def test_one_worker_needs_no_aggregation():
    plan = make_plan(1, SHAPES, "float32", pattern="ring")
    graph_def = replicas(plan)
    assert aggregate(graph_def, plan) == graph_def


def test_the_modifier_does_not_edit_its_input():
    plan = make_plan(2, SHAPES, "float32", pattern="ring")
    graph_def = weigh(replicas(plan), plan)
    before = graph_def.SerializeToString(deterministic=True)
    aggregate(graph_def, plan)
    assert graph_def.SerializeToString(deterministic=True) == before


def test_it_says_where_the_aggregated_gradients_are():
    plan = make_plan(2, [(3,), (0,), (4,)], "float32", pattern="ring", groups=[[2, 0], [1]])
    graph_def = aggregated_graph(plan)
    names = {node.name for node in graph_def.node}
    found = aggregated_tensors(plan, 1)
    assert set(found) == {TensorRef("raw0"), TensorRef("raw2")}
    assert all(tensor.op in names for tensor in found.values())


# TensorFlow's own builders -----------------------------------------------------------------------


def built_by_tensorflow(pattern: str, values: list[np.ndarray]) -> list[np.ndarray]:
    workers = len(values)
    devices = [f"/job:worker/task:{worker}" for worker in range(workers)]
    with tf.Graph().as_default() as graph:
        tensors = []
        for device, value in zip(devices, values, strict=True):
            with tf.device(device):
                tensors.append(tf.constant(value))
        match pattern:
            case "ring":
                ranks = [list(range(workers))]
                reduced = all_reduce.build_ring_all_reduce(tensors, 1, 1, ranks[0], tf.add, None)
            case "halving_doubling":
                reduced = all_reduce.build_recursive_hd_all_reduce(tensors, tf.add, None)
            case _:
                reduced = all_reduce.build_shuffle_all_reduce(tensors, devices, tf.add_n, None)
        with session_on(graph, workers) as session:
            return session.run(reduced)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("workers", "dtype"), [(2, "int32"), (4, "float64")])
def test_tensorflow_s_own_builders_give_the_same(dtype, workers, pattern):
    plan = make_plan(workers, [(256,)], dtype, pattern=pattern)
    values = random_values(plan)
    ours = run(plan, values)
    theirs = built_by_tensorflow(pattern, [own[0] for own in values])
    for worker in range(workers):
        if dtype == "int32":
            np.testing.assert_array_equal(ours[worker][0], theirs[worker])
        else:
            np.testing.assert_allclose(ours[worker][0], theirs[worker], rtol=1e-13, atol=1e-14)
