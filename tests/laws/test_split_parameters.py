"""A parameter of which servers have parts trains to the bits of a whole one, and users see nothing
of the parts."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from tests.laws.test_exactness import slot
from tests.support.embeddings import CLASSES as LABELS
from tests.support.networks import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    Network,
    cross_entropy,
    in_turns,
    inputs,
    network,
    optimized,
    parameter,
    relative_error,
    run_distributed,
    run_on_one_device,
    tf,
    tf1,
)
from tests.support.serving import assert_same_run, gradients_in_order, run_model, served

ROWS = 45
"""Of the matrix that is split, each of 64 bytes."""


def bottleneck(x):
    """Two dense layers, of which the second is larger than all else."""
    columns = 64 // x.dtype.size
    w1, b1 = parameter("w1", [FEATURES, ROWS], x.dtype), parameter("b1", [ROWS], x.dtype)
    w2 = parameter("w2", [ROWS, columns], x.dtype)
    hidden = tf.tanh(tf.tanh(tf.nn.bias_add(x @ w1, b1)) @ w2)
    return hidden[:, :CLASSES]


def split_network(optimizer="momentum", process="unchanged", **options) -> Network:
    return network(optimizer, process, model=bottleneck, **options)


def split_of(model) -> dict[str, tuple[int, ...]]:
    """The rows of the parts of each parameter that is split."""
    return {s.parameter.name: s.rows for s in model.context.row_splits.splits}


def assert_exact(job: Network, workers: int, servers: int, split: str, **options) -> None:
    """Train with servers, between workers, and on one device, and compare."""
    sparse = {key: options[key] for key in ("sparse",) if key in options}
    model = served(job, workers, servers, **options)
    homes = {o.variable: o.server for o in model.plan.decision.owners}
    parts = [home for name, home in homes.items() if name.startswith(f"{split}/part_")]
    assert len(parts) == len(split_of(model)[split]) == len(set(parts)) > 1
    run = run_model(model, job, steps=2)
    assert_same_run(run, run_distributed(job, workers, "shuffle", steps=2, **sparse))
    if tf.float64 in (v.dtype for v in job.graph.get_collection("trainable_variables")):
        expected = run_on_one_device(job, run.initial, steps=2)
        assert relative_error(run.values, expected.values) < 1e-12


@pytest.mark.parametrize(
    ("optimizer", "process", "workers", "servers", "dtype"),
    in_turns(
        ["gradient_descent", "nesterov", "adam", "adagrad", "rmsprop_centered", "ftrl"],
        ["clip_by_value", "decay", "unchanged"],
        [2, 3, 1],
        [2, 3],
        [tf.float64, tf.float32, tf.float32, tf.float64],
    ),
)
def test_parts_train_to_the_bits_of_the_whole(optimizer, process, workers, servers, dtype):
    """Also with batches of different size, and a decay in the loss that counts once."""
    number, decayed = 41, process == "unchanged"
    job = split_network(optimizer, process, dtype=dtype, number=number, decayed_loss=decayed)
    assert_exact(job, workers, servers, "w2", ordering="tic" if servers == 3 else None)


def test_gradients_of_parts_may_be_sent_in_order():
    job = split_network("adam")
    plain = served(job, 2, 2)
    plan = gradients_in_order(plain.plan)
    waiting = {name for gate in plan.decision.gates for name in (gate.group, gate.after)}
    assert any("/part_" in plan.group(name).members[0] for name in waiting)
    ordered = served(job, 2, 2, plan=plan)
    assert_same_run(run_model(ordered, job, steps=2), run_model(plain, job, steps=2))


def adam_by_hand(variables, gradients):
    """As Keras writes it: several ops for each slot."""
    steps = tf1.get_variable("steps", [], tf.float64, tf1.zeros_initializer(), trainable=False)
    done = []
    for v, g in zip(variables, gradients, strict=True):
        g = tf.clip_by_value(g + 0.01 * v, -0.05, 0.05)
        m, s = slot(v, "m"), slot(v, "s")
        count = steps + 1.0
        rate = 0.01 * tf.sqrt(1.0 - tf.pow(tf.cast(0.99, tf.float64), count))
        first = m.assign_add((g - m) * 0.1)
        second = s.assign_add((tf.square(g) - s) * 0.01)
        done.append(v.assign_sub(first * rate / (tf.sqrt(second) + 1e-7)))
    with tf.control_dependencies(done):
        return steps.assign_add(1.0).op


def test_an_update_written_by_hand_is_done_for_each_part():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(bottleneck(x), y)
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        job = Network(graph, adam_by_hand(variables, gradients), loss, feed)
    assert_exact(job, 2, 3, "w2")


# Tables ------------------------------------------------------------------------------------------


def table_network(optimizer, process="unchanged", index_dtype=tf.int32) -> Network:
    """A classifier of words; of the table a batch needs some rows, some of them twice."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        ids = tf1.placeholder(index_dtype, [None, 4], name="ids")
        labels = tf1.placeholder(tf.int32, [None], name="labels")
        table = parameter("table", [13, 8])
        looked_up = [tf.nn.embedding_lookup(table, n) for n in (ids, (ids * 5 + 1) % 13)]
        hidden = tf.tanh(tf.reduce_mean(tf.add_n(looked_up), 1))
        loss = cross_entropy(hidden @ parameter("w", [8, LABELS]), labels)
        if process == "clipped":
            process = lambda pairs, _: [_clipped(g) for g in pairs]  # noqa: E731
        options = () if process == "unchanged" else (process,)
        train_op, raw = optimized(loss, OPTIMIZERS[optimizer], *options)
    random = np.random.RandomState(0)
    feed = {"ids:0": random.randint(0, 13, (11, 4)), "labels:0": random.randint(0, LABELS, 11)}
    return Network(graph, train_op, loss, feed, raw)


def _clipped(gradient):
    return tf.clip_by_value(gradient, -0.02, 0.02)


@pytest.mark.parametrize(
    ("optimizer", "process", "workers", "servers", "sparse", "index_dtype"),
    in_turns(
        ["gradient_descent", "adam", "adagrad", "momentum", "adam"],
        ["unchanged", "unchanged", "clipped"],
        [3, 2, 1, 3],
        [2, 3],
        ["gather", "dense"],
        [tf.int32, tf.int64],
    ),
)
def test_rows_of_a_table_go_to_and_from_the_server_that_has_them(
    optimizer, process, workers, servers, sparse, index_dtype
):
    job = table_network(optimizer, process, index_dtype)
    assert_exact(job, workers, servers, "table", sparse=sparse)
    remote = served(job, workers, servers).plan.consequences.serving.remote
    assert {each.variable for each in remote} == {f"table/part_{n}" for n in range(servers)}


# What users see ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def job() -> Network:
    return split_network("adam", number=41)


def test_users_see_whole_variables(job):
    w2 = next(v for v in job.graph.get_collection("trainable_variables") if v.op.name == "w2")
    gradient = job.raw["w2"]
    fetched = [w2, w2.op.name + "/Read/ReadVariableOp:0", gradient]
    runs = []
    for model in (
        served(job, 2, 3),
        caramel.ARModel(job.context(), 2, pattern="shuffle", planner="plain"),
    ):
        with model.session(trials=None) as session:
            stepped = session.step(job.feed, fetched)
            before = session.run([w2, job.loss], job.feed)
            session.run(w2.initializer)
            session.step(job.feed)
            runs.append((stepped, before, session.variables(), session.variables(worker=1)))
    for own, other in zip(tf.nest.flatten(runs[0]), tf.nest.flatten(runs[1]), strict=True):
        np.testing.assert_array_equal(own, other)


def test_checkpoints_have_whole_variables(job, tmp_path):
    """Of any model, for any other."""
    models = [
        served(job, 2, 3),
        served(job, 1, 2, ordering="tic"),
        caramel.ARModel(job.context(), 2, pattern="shuffle", planner="plain"),
    ]
    values, path = [], None
    for model in models:
        with model.session(trials=None) as session:
            if path is not None:
                assert session.restore(path) == ()
                assert_equal(session.variables(), values[-1])
            session.step(job.feed)
            values.append(session.variables())
            path = session.save(tmp_path / f"model-{len(values)}")
    with models[0].session(trials=None) as session:
        session.restore(path)
        assert_equal(session.variables(), values[-1])
    with job.graph.as_default(), tf1.Session() as session:
        reader = tf.train.load_checkpoint(path)
        assert set(reader.get_variable_to_shape_map()) == set(values[0])
    assert {name for name in values[0] if "part_" in name} == set()


def assert_equal(values, others) -> None:
    assert values.keys() == others.keys()
    for name, value in others.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_agents_that_only_infer_receive_parts(job):
    model = served(job, 2, 3, mode="inference")
    assert {"w2/part_0", "w2/part_1"} < {p.variable for p in model.plan.decision.pulls}
    with model.session(trials=None) as session:
        (told,) = {session.step(job.feed) for _ in range(2)}
        np.testing.assert_allclose(told, session.run(job.loss, job.feed), rtol=1e-12)


# What stays whole --------------------------------------------------------------------------------


def test_what_is_split_is_explained(job):
    model = served(job, 2, 2)
    first, second = split_of(model)["w2"]
    assert first + second == ROWS
    assert f"'w2' is split by rows: {first} on /job:ps/task:0, {second} on" in str(model.explain())


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (split_network("momentum", "clip_by_global_norm"), "(L2Loss) reads all of its gradient"),
        (split_network("momentum", "clip_by_norm"), "reads all of its gradient"),
        (network("momentum"), "it has too few rows"),
    ],
)
def test_what_an_update_mixes_stays_whole_with_the_reason(job, reason):
    model = served(job, 1, 2)
    assert not split_of(model)
    (note,) = [each for each in model.explain().notes if "stays whole" in each]
    assert note.startswith(f"'{'w2' if job.raw['w2'].shape[0] == ROWS else 'w1'}'")
    assert note.endswith(reason)
