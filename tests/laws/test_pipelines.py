"""Input pipelines in the graph: every worker reads its own shard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caramel
from caramel.cluster.servers import embedded_servers
from caramel.core.errors import InputPipelineError, OneShotIteratorError
from tests.support.graphs import session_config
from tests.support.networks import relative_error, start_from, tf, tf1
from tests.support.pipelines import (
    Job,
    job,
    numbers,
    regression,
    until_the_end,
)

Dataset = tf.data.Dataset


def as_lists(values: Any) -> list[list[int]]:
    return [np.ravel(value).tolist() for value in values]


def epoch(session: Any, job: Job, feeds: Any = None) -> list[Any]:
    """What each step of an epoch reads, worker by worker, after initialising the iterator."""
    session.run(job.iterator.initializer, feeds)
    return until_the_end(lambda: session.step(fetches={"ids": job.ids, "loss": job.loss})["ids"])


def shards(job: Job, workers: int) -> list[list[int]]:
    """What each worker reads until its own shard has ended, by a plain TensorFlow session."""
    model = job.model(workers)
    target = embedded_servers(workers).target
    with tf1.Session(target, graph=model.graph, config=session_config()) as session:
        found = []
        for worker in range(workers):
            session.run(f"worker_{worker}/{job.iterator.initializer.name}")
            tensor = f"worker_{worker}/{job.ids.name}"
            found.append(until_the_end(lambda name=tensor: session.run(name)))
    return [[n for batch in batches for n in np.ravel(batch).tolist()] for batches in found]


def assert_disjoint_and_complete(found: list[list[int]], expected: Any) -> None:
    assert sorted(number for shard in found for number in shard) == sorted(expected)


# Shards -----------------------------------------------------------------------------------------


def write_records(folder: Any, files: int = 4) -> list[str]:
    paths = [str(folder / f"{number}.tfrecord") for number in range(files)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for value in range(5 * number, 5 * number + 5):
                writer.write(str(value).encode())
    return paths


def to_number(record: Any) -> Any:
    return tf.strings.to_number(record, tf.int64)


def nested(number: Any) -> Any:
    return Dataset.range(3 * number, 3 * number + 3)


def nested_shuffled(number: Any) -> Any:
    return nested(number).shuffle(3)


PIPELINES: dict[str, tuple[Callable[[], Any], Any]] = {
    "batch": (lambda: numbers().batch(2), range(10)),
    "map": (lambda: numbers().map(lambda i: i + 5).batch(2), range(5, 15)),
    "shuffle with a seed": (lambda: numbers().shuffle(10, seed=3).batch(2), range(10)),
    "shuffle without a seed": (lambda: numbers().shuffle(10).batch(2), range(10)),
    "skip": (lambda: numbers().skip(3).batch(2), range(3, 10)),
    "take": (lambda: numbers().take(7).batch(2), range(7)),
    "take while": (lambda: numbers().take_while(lambda i: i < 8).batch(2), range(8)),
    "take after a shuffle with a seed": (
        lambda: numbers().shuffle(10, seed=3).skip(2).take(8).shuffle(10, seed=4).take(8).batch(2),
        None,
    ),
    "take of batches": (lambda: numbers(12).batch(2).take(5), range(10)),
    "own shard": (lambda: numbers(30).shard(3, 1).batch(2), range(1, 30, 3)),
    "concatenate": (
        lambda: numbers(4).concatenate(Dataset.range(20, 25)).batch(1),
        [*range(4), *range(20, 25)],
    ),
    "concatenate shuffled": (
        lambda: numbers(4).shuffle(4).concatenate(Dataset.range(20, 25)).batch(1),
        [*range(4), *range(20, 25)],
    ),
    "interleave": (lambda: numbers(4).interleave(nested, 2, 1).batch(2), range(12)),
    "parallel interleave without order": (
        lambda: (
            numbers(4).interleave(nested, 2, 1, num_parallel_calls=2, deterministic=False).batch(2)
        ),
        range(12),
    ),
    "interleave shuffled": (
        lambda: numbers(4).shuffle(4).interleave(nested, 2, 1).batch(2),
        range(12),
    ),
    "shuffle within interleave": (
        lambda: numbers(4).interleave(nested_shuffled, 2, 1).batch(2),
        range(12),
    ),
    "flat map": (lambda: numbers(4).flat_map(nested).batch(2), range(12)),
    "filter": (lambda: numbers(20).filter(lambda i: tf.equal(i % 3, 0)).batch(2), range(0, 20, 3)),
    "unbatch": (lambda: numbers(20).batch(5).unbatch().batch(2), range(20)),
    "sample from datasets": (
        lambda: Dataset.sample_from_datasets(
            [numbers(5), Dataset.range(20, 25)], rerandomize_each_iteration=False
        ).batch(1),
        [*range(5), *range(20, 25)],
    ),
    "cache and prefetch": (lambda: numbers().cache().prefetch(2).batch(2), range(10)),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_every_worker_reads_its_own_shard(name):
    pipeline, expected = PIPELINES[name]
    found = shards(job(pipeline), 3)
    if expected is None:
        assert_disjoint_and_complete(found, {n for shard in found for n in shard})
        assert sum(map(len, found)) == 8
    else:
        assert_disjoint_and_complete(found, expected)
    assert all(found)


def test_shards_of_a_shuffle_without_seed_are_shuffled_on_their_own():
    found = shards(job(lambda: numbers(300).shuffle(300).batch(10)), 3)
    assert [sorted(shard) for shard in found] == [[*range(i, 300, 3)] for i in range(3)]
    assert found[0] != sorted(found[0])


def test_random_filters_draw_on_each_worker_from_its_own_shard():
    pipeline = lambda: numbers(60).filter(lambda i: tf.random.uniform([]) < 0.5).batch(2)  # noqa: E731
    found = shards(job(pipeline), 3)
    assert all(number % 3 == worker for worker, shard in enumerate(found) for number in shard)
    assert all(0 < len(shard) < 20 for shard in found)


def test_records_in_files_are_read_by_one_worker_each_once(tmp_path):
    paths = write_records(tmp_path)
    pipeline = lambda: tf.data.TFRecordDataset(paths).map(to_number).batch(2)  # noqa: E731
    assert_disjoint_and_complete(shards(job(pipeline), 3), range(20))


def test_listed_files_in_random_order_are_split_by_file(tmp_path):
    write_records(tmp_path)
    pattern = str(tmp_path / "*.tfrecord")
    pipeline = lambda: (  # noqa: E731
        Dataset.list_files(pattern).interleave(tf.data.TFRecordDataset).map(to_number).batch(2)
    )
    found = shards(job(pipeline), 2)
    assert_disjoint_and_complete(found, range(20))
    files = [{number // 5 for number in shard} for shard in found]
    assert not files[0] & files[1]


def test_a_file_cache_is_kept_for_each_worker(tmp_path):
    pipeline = lambda: numbers().cache(str(tmp_path / "cache")).batch(2)  # noqa: E731
    for _ in range(2):  # the second time from the files
        assert_disjoint_and_complete(shards(job(pipeline), 2), range(10))
    assert {path.name.partition(".")[0] for path in tmp_path.glob("*.index")} == {
        "cache-0-of-2",
        "cache-1-of-2",
    }


def test_pairs_of_a_zip_stay_together():
    with tf.Graph().as_default() as graph:
        pipeline = Dataset.zip((numbers(7), Dataset.range(100, 107).shuffle(7, seed=1)))
        iterator = tf1.data.make_initializable_iterator(pipeline.batch(1))
        ids, others = iterator.get_next()
        train_op, loss = regression(ids)
        pairs = tf.stack([ids, others], axis=1)
    zipped = Job(graph, train_op, loss, pairs, iterator)
    whole = job_values(zipped)
    found = [tuple(pair) for shard in shards(zipped, 2) for pair in np.reshape(shard, [-1, 2])]
    assert sorted(found) == sorted(whole)


def job_values(zipped: Job) -> list[tuple[int, ...]]:
    """All pairs, read by plain TensorFlow."""
    with tf1.Session(graph=zipped.graph) as session:
        session.run(zipped.iterator.initializer)
        batches = until_the_end(lambda: session.run(zipped.ids))
    return [tuple(pair) for batch in batches for pair in batch]


@pytest.mark.parametrize(
    ("pipeline", "culprit"),
    [
        (lambda: numbers().shuffle(10).take(5).batch(1), "TakeDataset"),
        (lambda: numbers().shuffle(10).skip(5).batch(1), "SkipDataset"),
        (lambda: numbers().shuffle(10).shard(2, 0).batch(1), "ShardDataset"),
        (lambda: numbers().interleave(nested_shuffled).take(5).batch(1), "TakeDataset"),
        (lambda: Dataset.zip((numbers(), numbers().shuffle(10))).map(lambda a, b: a), "ZipDataset"),
    ],
)
def test_a_shuffle_without_seed_before_an_op_by_position_is_refused(pipeline, culprit):
    refused = job(lambda: pipeline().repeat(2), reshape=True)
    with pytest.raises(InputPipelineError, match=rf"{culprit}.*by position.*give '.*' a seed"):
        refused.model(2)


def test_one_worker_reads_everything():
    assert shards(job(lambda: numbers().batch(3)), 1) == [[*range(10)]]


# Training ---------------------------------------------------------------------------------------


def test_epochs_end_for_all_workers_at_the_same_step_and_can_be_repeated():
    uneven = job(lambda: numbers(10).batch(1))
    with uneven.model(3).session() as session:
        for _ in range(2):
            read = epoch(session, uneven)
            assert [value.tolist() for value in read] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_a_step_without_feeds_returns_the_loss():
    simple = job(lambda: numbers(12).repeat().batch(2))
    with simple.model(2).session() as session:
        session.run(simple.iterator.initializer)
        losses = [session.step() for _ in range(100)]
        fetched = session.step(fetches=[simple.loss, simple.ids, simple.train_op])
    assert losses[-1] < losses[0]
    assert [np.shape(value) for value in fetched[:2]] == [(), (4,)]
    assert fetched[2] is None


def test_steps_fetch_the_examples_of_all_workers_in_their_order():
    with_rest = job(lambda: numbers(10).batch(3))
    without = job(lambda: numbers(10).batch(3, drop_remainder=True))
    with with_rest.model(2).session() as session:
        assert as_lists(epoch(session, with_rest)) == [[0, 2, 4, 1, 3, 5], [6, 8, 7, 9]]
    with without.model(2).session() as session:
        assert as_lists(epoch(session, without)) == [[0, 2, 4, 1, 3, 5]]


@pytest.mark.parametrize(("workers", "examples"), [(1, 2), (2, 5)])
def test_an_ended_epoch_changes_no_variable(workers, examples):
    """Plain TensorFlow may update what needs no examples before it reads them."""
    ending = job(lambda: numbers(examples).batch(1), averages=True)
    with ending.model(workers).session() as session:
        session.run(ending.iterator.initializer)
        for _ in range(2):
            session.step()
        before = [session.variables(worker=worker) for worker in range(workers)]
        for _ in range(20):
            with pytest.raises(tf.errors.OutOfRangeError):
                session.step()
        after = [session.variables(worker=worker) for worker in range(workers)]
        counts = next(
            op for op in ending.graph.get_operations() if op.type == "AssignAddVariableOp"
        )
        session.run(counts)  # by itself it waits for no examples
    for worker in range(workers):
        assert before[worker]["count"] == 2
        for name, value in before[worker].items():
            np.testing.assert_array_equal(after[worker][name], value, err_msg=name)


@pytest.mark.parametrize(("workers", "count", "batch"), [(2, 7, 4), (3, 19, 4), (3, 8, 3)])
def test_uneven_batches_count_as_on_one_device(workers, count, batch):
    """The union of the workers' batches of each step, read by one device, gives the same."""
    distributed = job(lambda: numbers(count).batch(batch))
    with distributed.model(workers).session() as session:
        initial = session.variables()
        steps: list[Any] = []
        for _ in range(2):
            session.run(distributed.iterator.initializer)
            fetches = [distributed.loss, distributed.ids]
            steps += until_the_end(lambda: session.step(fetches=fetches))  # noqa: B023
        losses, read = zip(*steps, strict=True)
        values = session.variables()
    with tf.Graph().as_default() as graph, tf1.Session(graph=graph) as session:
        fed = tf1.placeholder(tf.int64, [None])
        train_op, loss = regression(fed)
        variables = start_from(initial, session)
        expected = [session.run([loss, train_op], {fed: ids})[0] for ids in read]
        expected_values = session.run(variables)
    assert any(len(ids) % workers for ids in read), "the last batches should have been uneven"
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert relative_error(values, expected_values) < 1e-12


def test_initializers_are_fed_on_every_worker():
    with tf.Graph().as_default() as graph:
        last = tf1.placeholder(tf.int64, [], name="last")
        iterator = tf1.data.make_initializable_iterator(Dataset.range(last).batch(1))
        ids = iterator.get_next()
        train_op, loss = regression(ids)
    fed = Job(graph, train_op, loss, ids, iterator)
    with fed.model(2).session() as session:
        assert as_lists(epoch(session, fed, {last: 4})) == [[0, 1], [2, 3]]
        assert as_lists(epoch(session, fed, {last: 2})) == [[0, 1]]


def test_evaluation_reads_all_data_in_one_piece():
    whole = job(lambda: numbers(6).batch(2))
    with whole.model(3).session() as session:
        session.run(whole.iterator.initializer)
        session.step()
        assert as_lists(session.run(whole.ids) for _ in range(3)) == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(whole.ids)


def test_reinitializable_iterators_switch_all_workers():
    with tf.Graph().as_default() as graph:
        train, test = numbers(8).batch(2), Dataset.range(30, 36).batch(1)
        iterator = tf1.data.Iterator.from_structure(
            tf1.data.get_output_types(train), tf1.data.get_output_shapes(train)
        )
        ids = iterator.get_next()
        train_op, loss = regression(ids)
        start_train, start_test = iterator.make_initializer(train), iterator.make_initializer(test)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with caramel.ARModel(context, workers=2, check=True).session() as session:
        session.run(start_train)
        assert session.step(fetches=ids).tolist() == [0, 2, 1, 3]
        session.run(start_test)
        assert as_lists(session.run(ids) for _ in range(3)) == [[30], [31], [32]]
        assert session.step(fetches=ids).tolist() == [30, 31]
        session.run(start_train)
        assert session.step(fetches=ids).tolist() == [0, 2, 1, 3]


def test_batches_of_unknown_rank_are_counted_too():
    def pipeline():
        return numbers(7).batch(3).map(lambda i: tf.py_function(lambda v: v, [i], tf.int64))

    unknown = job(pipeline, reshape=True)
    assert unknown.ids.shape.rank is None
    with unknown.model(2).session() as session:
        assert as_lists(epoch(session, unknown)) == [[0, 2, 4, 1, 3, 5]]


# What cannot be sharded -------------------------------------------------------------------------


def test_an_iterator_through_a_fed_handle_is_refused():
    with tf.Graph().as_default() as graph:
        handle = tf1.placeholder(tf.string, [])
        pipeline = numbers().batch(1)
        iterator = tf1.data.Iterator.from_string_handle(
            handle, tf1.data.get_output_types(pipeline), tf1.data.get_output_shapes(pipeline)
        )
        train_op, loss = regression(iterator.get_next())
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with pytest.raises(InputPipelineError, match="string handle of 'IteratorFromStringHandleV2'"):
        caramel.ARModel(context, workers=2)


def test_a_one_shot_iterator_is_refused():
    with tf.Graph().as_default() as graph:
        ids = tf1.data.make_one_shot_iterator(numbers().batch(1)).get_next()
        train_op, loss = regression(ids)
    with pytest.raises(OneShotIteratorError, match="make_initializable_iterator"):
        caramel.Context(graph, train_op=train_op, loss=loss)


def test_an_iterator_that_nothing_initialises_is_refused():
    with tf.Graph().as_default() as graph:
        iterator = tf1.data.Iterator.from_structure(tf.int64, tf.TensorShape([None]))
        train_op, loss = regression(iterator.get_next())
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with pytest.raises(InputPipelineError, match="nothing in the graph initialises it"):
        caramel.ARModel(context, workers=2)


def test_a_dataset_read_inside_a_function_is_refused():
    @tf.function
    def total():
        return next(iter(numbers(5)))

    with tf.Graph().as_default() as graph:
        train_op, loss = regression(tf.reshape(total(), [1]))
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with pytest.raises(InputPipelineError, match="reads a dataset inside a function"):
        caramel.ARModel(context, workers=2)


@pytest.mark.parametrize("v2", [False, True])
def test_batches_read_inside_a_conditional_need_a_fixed_size(v2, control_flow):
    control_flow(v2)

    def chosen(*, drop_remainder: bool) -> Job:
        with tf.Graph().as_default() as graph:
            first = tf1.data.make_initializable_iterator(numbers(9).batch(2, drop_remainder))
            second = tf1.data.make_initializable_iterator(numbers(7).batch(2, drop_remainder))
            training = tf1.placeholder_with_default(True, [])
            ids = tf.cond(training, first.get_next, second.get_next)
            train_op, loss = regression(ids)
        return Job(graph, train_op, loss, ids, [first.initializer, second.initializer])

    with pytest.raises(InputPipelineError, match="inside a conditional or a function"):
        chosen(drop_remainder=False).model(2)
    if v2:  # nothing is known of the sizes of batches inside functions
        return
    fixed = chosen(drop_remainder=True)
    with fixed.model(2).session() as session:
        session.run(fixed.iterator)
        assert session.step(fetches=fixed.ids).tolist() == [0, 2, 1, 3]
