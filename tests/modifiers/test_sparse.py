"""Sparse gradients (`IndexedSlices`) train as on one device, whichever way they are aggregated."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.cluster.servers import embedded_servers
from caramel.core.names import TensorRef, in_group
from tests.support.embeddings import (
    METHODS,
    ROWS,
    WIDTH,
    embedding,
    looked_up_once,
    looked_up_twice,
)
from tests.support.networks import (
    assert_equals_one_device,
    frontier_of,
    in_turns,
    parameter,
    run_distributed,
    run_on_one_device,
    tf,
    tf1,
)


def looked_up_twice_with_repeats(ids):
    """The second time with ids of which most are the same."""
    table = parameter("table", [ROWS, WIDTH])
    return tf.nn.embedding_lookup(table, ids) * tf.nn.embedding_lookup(table, ids // 6)


def vector(ids):
    return parameter("table", [ROWS, WIDTH])[0] * tf.expand_dims(
        tf.gather(parameter("bias", [ROWS]), ids), -1
    )


def sparse_clip_by_norm(gradients, variables):
    return [tf.clip_by_norm(g, 0.05) for g in gradients]


LOOKUPS = (looked_up_once, looked_up_twice, looked_up_twice_with_repeats)
SPARSE_OPTIMIZERS = ("gradient_descent", "adam", "momentum", "nesterov", "adagrad", "rmsprop")


@pytest.mark.parametrize("sparse", METHODS)
@pytest.mark.parametrize("optimizer", [*SPARSE_OPTIMIZERS, "rmsprop_centered", "ftrl", "adadelta"])
def test_every_optimizer_trains_embeddings_as_on_one_device(optimizer, sparse):
    assert_equals_one_device(embedding(optimizer), 2, "ring", sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
@pytest.mark.parametrize(
    ("lookup", "workers", "pattern", "optimizer"),
    in_turns(LOOKUPS, [3, 5], ["shuffle", "halving_doubling"], ["adam", "momentum"]),
)
def test_ids_may_repeat_in_any_way(lookup, workers, pattern, optimizer, sparse):
    assert_equals_one_device(embedding(optimizer, lookup=lookup), workers, pattern, sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
@pytest.mark.parametrize(
    ("lookup", "optimizer"), [(looked_up_once, "gradient_descent"), (looked_up_twice, "adam")]
)
def test_global_norm_clipping_sees_the_rows_of_all_workers(lookup, optimizer, sparse):
    """One device clips by the norm of rows that repeat; merged rows have another norm."""
    job = embedding(optimizer, "clip_by_global_norm", lookup=lookup)
    assert_equals_one_device(job, 3, sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
@pytest.mark.parametrize("optimizer", ["gradient_descent", "adam", "adagrad"])
def test_clipping_by_norm_sees_the_rows_of_all_workers(optimizer, sparse):
    job = embedding(optimizer, "clip_by_norm")
    assert_equals_one_device(job, 3, sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
def test_row_numbers_may_have_64_bits(sparse):
    assert_equals_one_device(embedding("adam", index_dtype=tf.int64), 2, sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
def test_a_vector_may_be_looked_up_too(sparse):
    assert_equals_one_device(embedding("adam", lookup=vector), 3, sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
def test_a_loss_that_is_a_sum_adds_up_rows(sparse):
    job = embedding("adam", reduce=tf.reduce_sum, number=13)
    assert_equals_one_device(job, 3, sparse=sparse, loss_reduction="sum")


@pytest.mark.parametrize(("number", "sparse"), [(3, "gather"), (13, "dense")])
def test_uneven_parts_of_sentences_count_by_their_number(number, sparse):
    assert_equals_one_device(embedding("momentum", number=number), 3, sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
@pytest.mark.parametrize("process", ["unchanged", "clip_by_global_norm"])
def test_sparse_gradients_may_be_given(process, sparse):
    job = embedding("adam", process)
    pairs = [(gradient, name) for name, gradient in job.raw.items()]
    assert_equals_one_device(job, 3, sparse=sparse, gradients=pairs)


# What is sent ------------------------------------------------------------------------------------


def test_the_values_and_row_numbers_of_slices_are_found():
    job = embedding("adam")
    cuts = {cut.gradient.parameter: cut for cut in frontier_of(job.context()).cuts}
    assert cuts["table"].gradient.indices is not None
    assert cuts["w"].gradient.indices is None


def merged(optimizer, process="unchanged", **options) -> bool:
    cuts = frontier_of(embedding(optimizer, process, **options).context()).cuts
    return next(cut.merge_duplicates for cut in cuts if cut.gradient.parameter == "table")


@pytest.mark.parametrize("optimizer", SPARSE_OPTIMIZERS)
def test_rows_that_repeat_are_merged_where_the_update_adds_them_up(optimizer):
    assert merged(optimizer)


def scaled(gradients, variables):
    return [
        tf.IndexedSlices(2 * g.values, g.indices, g.dense_shape)
        if isinstance(g, tf.IndexedSlices)
        else g
        for g in gradients
    ]


def squared(gradients, variables):
    return [
        tf.IndexedSlices(g.values * abs(g.values), g.indices, g.dense_shape)
        if isinstance(g, tf.IndexedSlices)
        else g
        for g in gradients
    ]


def test_rows_are_merged_where_they_are_only_scaled_before():
    assert merged("adam", scaled)
    assert_equals_one_device(embedding("adam", scaled), 2)


@pytest.mark.parametrize("process", ["clip_by_global_norm", "clip_by_norm"])
def test_rows_are_not_merged_where_a_norm_could_tell(process):
    assert not merged("adam", process)


def test_rows_are_not_merged_where_each_is_squared():
    assert not merged("gradient_descent", squared)
    assert_equals_one_device(embedding("gradient_descent", squared), 2)


@pytest.mark.parametrize(("process", "rows"), [("unchanged", 7 + 7), ("clip_by_global_norm", 70)])
def test_only_rows_that_are_needed_are_gathered(process, rows):
    """Seven different ids stand in the sentences of either worker, 70 in all."""
    job = embedding("gradient_descent", process)
    model = caramel.ARModel(job.context(), workers=2, check=True)
    group = next(g.name for g in model.plan.decision.groups if g.members == ("table",))
    fed = {
        f"worker_{worker}/{name}": value[worker * 7 : worker * 7 + 7]
        for worker in range(2)
        for name, value in job.feed.items()
    }
    with tf1.Session(embedded_servers(2).target, graph=model.graph) as session:
        gathered = session.run(str(TensorRef(in_group(group, 1, "gathered_indices"))), fed)
    assert gathered.shape == (rows,)
    if process != "unchanged":
        np.testing.assert_array_equal(gathered, np.ravel(job.feed["ids:0"]))
    else:
        assert all(len(set(half)) == 7 for half in np.split(gathered, 2))


@pytest.mark.parametrize("optimizer", ["gradient_descent", "momentum", "adagrad"])
def test_rows_that_nobody_looked_up_stay_untouched(optimizer):
    job = embedding(optimizer)
    for sparse in METHODS:
        run = run_distributed(job, 3, sparse=sparse)
        np.testing.assert_array_equal(run.values["table"][7:], run.initial["table"][7:])
        assert np.all(run.values["table"][:7] != run.initial["table"][:7])


def test_a_table_may_be_read_both_sparsely_and_whole():
    """Then its gradient is dense."""

    def tied(ids):
        table = parameter("table", [ROWS, WIDTH])
        hidden = tf.nn.embedding_lookup(table, ids)
        return hidden + tf.einsum("bwr,rd->bwd", tf.einsum("bwd,rd->bwr", hidden, table), table)

    assert_equals_one_device(embedding("adam", lookup=tied), 3)


def test_the_sum_of_all_rows_of_a_table_may_be_used():
    """Its gradient is one row, which is repeated behind differentiation."""

    def summed(ids):
        table = parameter("table", [ROWS, WIDTH])
        total = tf.reduce_sum(tf.nn.embedding_lookup(table, tf.range(ROWS)), 0)
        return tf.one_hot(ids, WIDTH, dtype=tf.float64) + total

    assert_equals_one_device(embedding("adam", lookup=summed), 3)


def test_two_ways_of_aggregating_agree():
    job = embedding("adam")
    runs = [run_distributed(job, 3, sparse=sparse) for sparse in METHODS]
    for name, value in runs[0].values.items():
        np.testing.assert_allclose(value, runs[1].values[name], rtol=1e-12, atol=1e-15)


def test_partitioned_tables_train_as_on_one_device():
    def partitioned(ids):
        parts = tf1.get_variable(
            "table",
            [ROWS, WIDTH],
            tf.float64,
            partitioner=tf1.fixed_size_partitioner(2),
            use_resource=True,
        )
        return tf1.nn.embedding_lookup(parts, ids, partition_strategy="div")

    job = embedding("adam", lookup=partitioned)
    run = run_distributed(job, 3)
    expected = run_on_one_device(job, run.initial)
    for name, value in expected.values.items():
        np.testing.assert_allclose(run.values[name], value, rtol=1e-12, atol=1e-15)
