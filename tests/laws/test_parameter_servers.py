"""Training with parameter servers gives what one device gives, and the bits of `ARModel`'s plain
plan."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import caramel
from caramel.core.errors import DriftError, FeedError, PlanError
from tests.laws.test_control_flow import conditional_updates
from tests.laws.test_exactness import (
    accumulating,
    by_hand,
    momentum,
    momentum_in_two_phases,
    moving_average,
)
from tests.support import control_flow, pipelines
from tests.support.embeddings import METHODS, embedding, looked_up_once, looked_up_twice
from tests.support.losses import SUMS, WEIGHTED, loss_network
from tests.support.networks import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    PROCESSES,
    STEPS,
    WIDTH,
    Network,
    built_network,
    control_flow_version,
    cross_entropy,
    in_turns,
    inputs,
    network,
    optimized,
    parameter,
    perceptron,
    replicas_of,
    tf,
    tf1,
    tied,
    wide,
)
from tests.support.serving import (
    assert_same_run,
    assert_served_as_shuffled,
    assert_served_equals_one_device,
    gradients_in_order,
    run_model,
    run_served,
    served,
)
from tests.support.step_jobs import alone, assert_as_alone, gan, gathering, trained

SERVERS = (1, 2, 3)


@pytest.mark.parametrize(
    ("optimizer", "workers", "servers"), in_turns(OPTIMIZERS, [2, 3, 5, 1, 3], SERVERS)
)
def test_every_optimizer_trains_as_on_one_device(optimizer, workers, servers):
    assert_served_equals_one_device(network(optimizer), workers, servers)


@pytest.mark.parametrize(("process", "workers", "servers"), in_turns(PROCESSES, [2, 3], SERVERS))
def test_clipping_and_decay_see_the_aggregated_gradient(process, workers, servers):
    """Also a norm over the gradients of several servers."""
    job = network("adam", process, decayed_loss=True)
    assert_served_equals_one_device(job, workers, servers)


@pytest.mark.onednn
@pytest.mark.parametrize(
    ("workers", "servers", "dtype"),
    [(2, 1, tf.float32), (3, 2, tf.float16), (2, 3, tf.bfloat16), (3, 3, tf.float32)],
)
def test_a_step_has_the_bits_of_the_plain_plan_of_workers_alone(workers, servers, dtype):
    job = network("momentum", "clip_by_global_norm", dtype=dtype, number=41)
    assert_served_as_shuffled(job, workers, servers)


@pytest.mark.parametrize(
    ("workers", "number", "process"), [(2, 3, "unchanged"), (5, 7, "clip_by_global_norm")]
)
def test_parts_of_a_batch_may_be_of_different_size(workers, number, process):
    job = network("adam", process, number=number, decayed_loss=True)
    assert_served_equals_one_device(job, workers, 2)


def test_a_loss_that_is_a_sum_gives_the_sum_of_the_gradients():
    job = network("adam", "clip_by_global_norm", reduce=tf.reduce_sum, number=38)
    assert_served_equals_one_device(job, 3, 2, loss_reduction="sum")


@pytest.mark.parametrize(
    "loss",
    [
        SUMS["sum and decay"],
        WEIGHTED["by the sum of a mask"],
        WEIGHTED["boolean_mask"],
        WEIGHTED["weighted with decay"],
    ],
)
def test_gradients_count_by_what_their_loss_is_divided_by(loss):
    assert_served_equals_one_device(loss_network(loss, number=11), 3, 2, steps=3)


def test_a_variable_that_is_read_several_times_has_one_gradient():
    assert_served_equals_one_device(network("adam", model=tied), 3, 2)


# Embeddings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "process", "lookup", "sparse"),
    in_turns(
        ["gradient_descent", "adam", "adagrad", "momentum"],
        ["unchanged", "clip_by_global_norm"],
        [looked_up_once, looked_up_once, looked_up_twice],
        [METHODS[0], METHODS[1], METHODS[1], METHODS[0]],
    ),
)
def test_sparse_gradients_train_as_on_one_device(optimizer, process, lookup, sparse):
    job = embedding(optimizer, process, lookup=lookup, number=13)
    assert_served_equals_one_device(job, 3, 2, sparse=sparse)


@pytest.mark.parametrize("sparse", METHODS)
def test_workers_receive_rows_of_a_table_and_not_the_table(sparse):
    job = embedding("adagrad", index_dtype=tf.int64)
    model = served(job, 2, 2, sparse=sparse)
    assert [pull.variable for pull in model.plan.decision.pulls] == ["w"]
    remote = {each.variable for each in model.plan.consequences.serving.remote}
    assert remote == {"table/part_0", "table/part_1"}  # each server has some of its rows
    assert_served_as_shuffled(job, 2, 2, sparse=sparse)


def test_a_table_in_parts_lives_on_several_servers():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        ids = tf1.placeholder(tf.int32, [None, 5], name="ids")
        labels = tf1.placeholder(tf.int32, [None], name="labels")
        parts = tf1.fixed_size_partitioner(3)
        table = tf1.get_variable("table", [12, 4], tf.float64, partitioner=parts, use_resource=True)
        hidden = tf.reduce_mean(tf1.nn.embedding_lookup(table, ids), 1)
        loss = cross_entropy(hidden @ parameter("w", [4, CLASSES]), labels)
        train_op, raw = optimized(loss, OPTIMIZERS["adagrad"])
    random = np.random.RandomState(0)
    feed = {"ids:0": random.randint(0, 12, (13, 5)), "labels:0": random.randint(0, CLASSES, 13)}
    job = Network(graph, train_op, loss, feed, raw)
    assert_served_as_shuffled(job, 2, 3, steps=3)
    remote = served(job, 2, 3).plan.consequences.serving.remote
    assert {each.variable for each in remote} == {f"table/part_{n}" for n in range(3)}


def in_a_loop(table, ids):
    start = [0, tf.zeros([tf.shape(ids)[0], 4], tf.float64)]
    return tf.while_loop(
        lambda n, _: n < 5, lambda n, total: (n + 1, total + tf.gather(table, ids[:, n])), start
    )[1]


def in_a_conditional(table, ids):
    rows = lambda: tf.reduce_sum(tf.gather(table, ids), 1)  # noqa: E731
    return tf.cond(tf.reduce_sum(ids) > 0, rows, lambda: 2 * rows())


@pytest.mark.parametrize(
    ("lookup", "version"),
    [(in_a_loop, "v1"), (in_a_loop, "v2"), (in_a_conditional, "v1"), (in_a_conditional, "v2")],
)
def test_rows_may_be_read_in_loops_and_conditionals(lookup, version):
    with control_flow_version(version), tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        ids = tf1.placeholder(tf.int32, [None, 5], name="ids")
        labels = tf1.placeholder(tf.int32, [None], name="labels")
        hidden = tf.tanh(lookup(parameter("table", [12, 4]), ids))
        loss = cross_entropy(hidden @ parameter("w", [4, CLASSES]), labels)
        train_op, raw = optimized(loss, OPTIMIZERS["adagrad"])
    random = np.random.RandomState(0)
    feed = {"ids:0": random.randint(0, 7, (13, 5)), "labels:0": random.randint(0, CLASSES, 13)}
    job = Network(graph, train_op, loss, feed, raw)
    assert_served_equals_one_device(job, 2, 2, steps=2)


# Loops, conditionals, functions -----------------------------------------------------------------

V1_AND_V2 = [
    (model, (number + turn) % 2 == 1 or model in control_flow.ONLY_V2)
    for turn in (0, 1)
    for number, model in enumerate(control_flow.MODELS[: -3 if turn else None])
    if not (turn and model in control_flow.ONLY_V2)
]


@pytest.mark.parametrize(("model", "v2"), V1_AND_V2)
def test_loops_and_conditionals_train_as_on_one_device(model, v2):
    with control_flow_version("v2" if v2 else "v1"):
        job = control_flow.network(model)
    assert_served_equals_one_device(job, 2, 1 if model is control_flow.mapped else 2, steps=3)


# Other updates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [momentum, momentum_in_two_phases, moving_average])
def test_updates_written_by_hand_train_as_on_one_device(update):
    assert_served_equals_one_device(by_hand(update), 2, 2)


@pytest.mark.parametrize(("control_flow", "servers"), [("v1", 2), ("v2", 1)])
def test_accumulated_gradients_train_as_on_one_device(control_flow, servers):
    """With v2 one op updates all parameters, which are on one server then."""
    with control_flow_version(control_flow):
        job = accumulating(3)
    assert_served_equals_one_device(job, 3, servers)


@pytest.mark.parametrize(("version", "servers"), [("v1", 2), ("v2", 1)])
def test_conditional_updates_see_aggregated_gradients(version, servers):
    with control_flow_version(version):
        job = conditional_updates()
    assert_served_equals_one_device(job, 2, servers, steps=2)


@pytest.mark.parametrize(
    "extra",
    [
        lambda loss: [loss],
        lambda loss: [tf.debugging.assert_positive(loss)],
        lambda loss: [loss.graph.get_tensor_by_name("x:0")],
    ],
)
def test_updates_may_wait_for_what_workers_compute(extra):
    assert_served_equals_one_device(control_flow.network(perceptron, extra=extra), 2, 2, steps=2)


def updated_in_a_loop(variables, gradients):
    """Three times with the same gradients."""

    def body(turn):
        pairs = zip(variables, gradients, strict=True)
        with tf.control_dependencies([v.assign_sub(0.05 * g) for v, g in pairs]):
            return turn + 1

    return tf.while_loop(lambda turn: turn < 3, body, [tf.constant(0)])[0].op


def test_updates_in_a_loop_train_as_on_one_device():
    with control_flow_version("v1"):
        job = by_hand(updated_in_a_loop)
    assert_served_equals_one_device(job, 2, 2, steps=3)


def counting_first(x, y):
    """The forward pass reads a counter that was counted up before."""
    count = tf1.train.get_or_create_global_step().assign_add(1)
    loss = cross_entropy(perceptron(x) / tf.cast(count, tf.float64), y)
    return loss, [tf1.train.AdamOptimizer(0.01).minimize(loss)]


def counting_by_another_way(x, y):
    """It waits for the counter by way of another write."""
    ones = tf1.ones_initializer()
    count, scale = (
        tf1.get_variable(name, [], tf.float64, ones, trainable=False) for name in ("count", "scale")
    )
    with tf.control_dependencies([count.assign_add(1.0)]):
        scaled = scale.assign(scale * 1.1)
    with tf.control_dependencies([scaled]):
        read = count.read_value()
    loss = cross_entropy(perceptron(x) / read, y)
    return loss, [tf1.train.AdamOptimizer(0.01).minimize(loss)]


def measuring(x, y):
    """The train op also updates metrics, one of which counts calls."""
    logits = perceptron(x)
    loss = cross_entropy(logits, y)
    updates = [
        tf1.metrics.mean(loss)[1],
        tf1.metrics.accuracy(y, tf.argmax(logits, 1))[1],
    ]
    return loss, [tf1.train.AdamOptimizer(0.01).minimize(loss), *updates]


def rescaling(x, y):
    """The loss is scaled by a number that the step changes."""
    ones = tf1.ones_initializer()
    scale = tf1.get_variable("scale", [], tf.float64, ones, trainable=False)
    loss = cross_entropy(perceptron(x), y)
    variables = tf1.trainable_variables()
    gradients = [g / scale for g in tf1.gradients(loss * scale, variables)]
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    with tf.control_dependencies(
        [optimizer.apply_gradients(zip(gradients, variables, strict=True))]
    ):
        return loss, [scale.assign(scale * 1.5)]


@pytest.mark.parametrize("build", [counting_first, counting_by_another_way, measuring, rescaling])
def test_what_the_forward_pass_reads_of_other_writes_is_as_on_workers_alone(build):
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(24)
        loss, updates = build(x, y)
        job = Network(graph, tf.group(*updates), loss, feed)
    assert_served_as_shuffled(job, 2, 2, steps=3)


def test_frozen_and_untrained_variables_are_served_too():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(23)
        frozen = tf1.get_variable("frozen", [FEATURES], tf.float64, trainable=False)
        tf1.get_variable("unread", [3], tf.float64, trainable=False)
        other = parameter("other", [FEATURES])
        loss = cross_entropy(perceptron(x * frozen + other), y)
        trained = [v for v in tf1.trainable_variables() if v is not other]
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss, var_list=trained)
    job = Network(graph, train_op, loss, feed, {"w1": None})
    assert_served_equals_one_device(job, 3, 2)
    plan = served(job, 3, 2).plan
    assert plan.job.served > {"frozen", "unread", "other"}
    assert plan.decision.pull_of.keys() == {"frozen", "other", "w1", "b1", "w2", "b2"}


def test_variables_of_other_dtypes_are_updated_once():
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(23)
        ones, zeros = tf1.ones_initializer(), tf1.zeros_initializer()
        mask = tf1.get_variable("mask", [FEATURES], tf.bool, ones, trainable=False)
        count = tf1.get_variable("count", [], tf.int32, zeros, trainable=False)
        told = tf1.get_variable(
            "told", [], tf.string, tf1.constant_initializer("-"), trainable=False
        )
        loss = cross_entropy(perceptron(tf.where(mask, tf.ones_like(x), 0 * x) * x), y)
        updates = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        bias = next(v for v in tf1.trainable_variables() if v.op.name == "b1")
        with tf.control_dependencies([updates]):
            last = tf.reduce_sum(bias.read_value())
            masked = mask.assign(tf.range(FEATURES) < tf.where(last > 0, 3, 4))
            counted = count.assign_add(1)
            train_op = tf.group(masked, counted, told.assign(tf.strings.as_string(counted)))
    run = assert_served_as_shuffled(Network(graph, train_op, loss, feed), 2, 2)
    assert run.values["told"] == str(STEPS).encode()
    assert run.values["mask"].sum() in (3, 4)


# What workers have themselves --------------------------------------------------------------------


def normalised(x):
    """Batch norm whose moving averages the step updates."""
    h = x @ parameter("w", [FEATURES, WIDTH])
    mean, variance = tf.nn.moments(h, [0])
    zeros = tf1.zeros_initializer()
    average = tf1.get_variable("average", [WIDTH], tf.float64, zeros, trainable=False)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, average.assign_sub(0.1 * (average - mean)).op)
    scale = parameter("scale", [WIDTH])
    return ((h - mean) * tf.math.rsqrt(variance + 1e-3) * scale) @ parameter("v", [WIDTH, CLASSES])


def test_moving_averages_stay_with_the_workers():
    job = control_flow.network(
        normalised, extra=lambda loss: tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    )
    runs = [
        run_model(model, job)
        for model in (
            served(job, 2, 2),
            caramel.ARModel(job.context(), 2, pattern="shuffle", planner="plain"),
        )
    ]
    assert_same_run(*runs)
    averages = [[replica["average"] for replica in run.replicas] for run in runs]
    np.testing.assert_array_equal(*averages)
    assert np.any(averages[0][0] != averages[0][1])
    np.testing.assert_allclose(runs[0].values["average"], np.mean(averages[0], 0), rtol=1e-12)


def test_an_epoch_ends_for_all_and_changes_no_variable():
    ending = pipelines.job(lambda: pipelines.numbers(10).batch(3), averages=True)
    with ending.graph.as_default():
        tf1.set_random_seed(2)
    context = caramel.Context(ending.graph, train_op=ending.train_op, loss=ending.loss)
    with caramel.PSModel(context, 2, 1, ordering="tic", check=True).session(trials=None) as session:
        for epoch in (1, 2):
            session.run(ending.iterator.initializer)
            read = pipelines.until_the_end(lambda: session.step(fetches=ending.ids).tolist())
            assert read == [[0, 2, 4, 1, 3, 5], [6, 8, 7, 9]]
            before = replicas_of(session)
            assert [own["count"] for own in before] == [2 * epoch] * 2
            assert before[0]["global_step"] == 2 * epoch
            for _ in range(5):
                with pytest.raises(tf.errors.OutOfRangeError):
                    session.step()
            for own, was in zip(replicas_of(session), before, strict=True):
                for name, value in was.items():
                    np.testing.assert_array_equal(own[name], value, err_msg=name)


# Several steps, and fetches that write -----------------------------------------------------------


@pytest.mark.parametrize(("workers", "servers", "ordering"), [(3, 2, None), (2, 1, "tic")])
def test_a_gan_trains_as_on_one_device(workers, servers, ordering):
    job = gan()
    model = caramel.PSModel(job.context(), workers, servers, ordering=ordering, check=True)
    joint = [("d", ("g_train",)), ("g", ("average",)), ("g", ("clip",))]
    assert_as_alone(job, model, [("d", ()), ("g", ()), *joint, ("d", ()), ("g", ())])


def test_all_steps_have_the_variables_on_the_same_servers():
    job = gan()
    plans = [step.plan for step in served_steps(job, 3).values()]
    assert plans[0].decision.owners == plans[1].decision.owners
    assert {owner.server for owner in plans[0].decision.owners} == {0, 1, 2}


def served_steps(job, servers):
    return caramel.PSModel(job.context(), 2, servers, ordering=None).steps


def test_gradients_that_are_gathered_over_steps_are_applied_once():
    job = gathering()
    turns = [(name, ()) for name in ("gather", "gather", "apply", "clear")] * 2
    assert_as_alone(job, caramel.PSModel(job.context(), 3, 2, check=True), turns)


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_fetch_writes_is_written_on_the_server_once(workers):
    job = gan()
    turns = [("d", ("counted:0",)), ("g", ()), ("d", ("counted:0",))]
    model = caramel.PSModel(job.context(), workers, 2, ordering=None, check=True)
    initial, values, told, _ = trained(job, model, turns)
    expected, expected_told = alone(job, initial, turns)
    assert values["counter"] == expected["counter"] == 2
    for own, wanted in zip(told, expected_told, strict=True):
        for one, other in zip(own[1:], wanted[1:], strict=True):
            assert set(np.ravel(one)) == {other}


def test_a_fetch_that_would_write_a_value_of_one_worker_is_refused():
    job = gan()
    model = caramel.PSModel(job.context(), 2, 2, ordering=None)
    with model.session(trials=None) as session:
        with pytest.raises(DriftError, match=r"reaches variable 'kept' .* along x"):
            session.step(job.feed, "keep", step="d")
        session.run("keep", job.feed)
        np.testing.assert_allclose(session.variables()["kept"], np.mean(job.feed["x:0"]))


# Fetches -----------------------------------------------------------------------------------------


def measured() -> tuple[Network, dict]:
    """A job, and what may be fetched of it."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(23)
        loss = cross_entropy(perceptron(x), y)
        step = tf1.train.get_or_create_global_step()
        decayed = tf1.train.exponential_decay(tf.constant(0.2, tf.float64), step, 2, 0.5)
        momentum = tf1.placeholder(tf.float64, [], name="momentum")
        optimizer = tf1.train.MomentumOptimizer(decayed, momentum)
        pairs = optimizer.compute_gradients(loss)
        clipped, norm = tf.clip_by_global_norm([g for g, _ in pairs], 0.1)
        train_op = optimizer.apply_gradients(
            zip(clipped, [v for _, v in pairs], strict=True), global_step=step
        )
        told = {
            "loss": loss,
            "gradients": [g for g, _ in pairs],
            "clipped": clipped,
            "norm": norm,
            "rate": tf.identity(decayed),
            "variables": [v for _, v in pairs],
            "examples": tf.identity(x),
            "summary": tf1.summary.scalar("norm", norm),
            "train": train_op,
        }
        both = tf1.summary.merge([told["summary"], tf1.summary.scalar("loss", loss)])
    feed["momentum:0"] = np.array(0.9)
    return Network(graph, train_op, loss, feed), {**told, "both": both}


def test_what_is_fetched_of_a_step_has_the_bits_of_workers_alone():
    job, told = measured()
    del told["both"]
    models = (
        served(job, 3, 2, ordering="tic"),
        caramel.ARModel(job.context(), 3, pattern="shuffle", planner="plain"),
    )
    fetched = []
    for model in models:
        with model.session(trials=None) as session:
            fetched.append([session.step(job.feed, told) for _ in range(3)])
    for own, other in zip(*fetched, strict=True):
        for one, two in zip(tf.nest.flatten(own), tf.nest.flatten(other), strict=True):
            np.testing.assert_array_equal(one, two)


def test_what_nobody_can_compute_is_no_fetch():
    job, told = measured()
    with served(job, 2, 2).session(trials=None) as session:
        with pytest.raises(FeedError, match="nobody has all that it is computed from"):
            session.step(job.feed, told["both"])
        session.step(job.feed)


# Orders ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unordered():
    return run_served(network("adam", "clip_by_global_norm", model=wide), 3, 2)


@pytest.mark.parametrize(
    ("ordering", "in_flight_bytes"),
    [("tic", None), ("tac", 0), ("search", 10_000), ("random", 0), ("execution_ordering", None)],
)
def test_no_order_changes_a_bit(ordering, in_flight_bytes, unordered):
    job = network("adam", "clip_by_global_norm", model=wide)
    model = served(job, 3, 2, ordering=ordering, in_flight_bytes=in_flight_bytes)
    assert_same_run(run_model(model, job), unordered)


@pytest.mark.parametrize(("workers", "ahead"), [(3, True), (1, False)])
def test_no_order_of_gradients_changes_a_bit(workers, ahead, unordered):
    """Also if variables are sent ahead."""
    job = network("adam", "clip_by_global_norm", model=wide)
    plain = served(job, workers, 2)
    plan = gradients_in_order(plain.plan)
    pulls = tuple(dataclasses.replace(pull, ahead=ahead) for pull in plan.decision.pulls)
    model = served(job, workers, 2, plan=plan.deciding(pulls=pulls))
    assert len(model.plan.decision.gates) == len(model.plan.decision.groups) - 2
    assert_same_run(run_model(model, job), unordered if workers == 3 else run_model(plain, job))


def test_trials_of_orders_change_no_bit():
    job = network("adam", "clip_by_global_norm", model=wide)
    runs = []
    for ordering, trials in ((None, None), ("tic", caramel.TrialSettings(1, 1, 0))):
        model = served(job, 2, 2, ordering=ordering, in_flight_bytes=0)
        with model.session(trials=trials) as session:
            initial = session.variables()
            losses = [session.step(job.feed) for _ in range(6)]
            runs.append((losses, {**initial, **session.variables()}))
    assert runs[0][0] == runs[1][0]
    for name, value in runs[0][1].items():
        np.testing.assert_array_equal(value, runs[1][1][name])


# Outside of steps --------------------------------------------------------------------------------


def test_checkpoints_go_to_plain_tensorflow_and_back(tmp_path):
    job = built_network("adam")
    with job.graph.as_default():
        variables = {v.op.name: v for v in tf1.global_variables()}
        saver = tf1.train.Saver()
    with served(job, 3, 2).session(trials=None) as session:
        session.step(job.feed)
        saved, path = session.variables(), session.save(str(tmp_path / "served"))
        with tf1.Session(graph=job.graph) as plain:
            saver.restore(plain, path)
            assert_equal(plain.run(variables), saved)
            loss, _ = plain.run([job.loss, job.train_op], job.feed)
            path, expected = saver.save(plain, str(tmp_path / "plain")), plain.run(variables)
        np.testing.assert_allclose(session.step(job.feed), loss, rtol=1e-12)
        session.step(job.feed)
        session.restore(path)
        assert_equal(session.variables(), expected)
        next_loss = session.step(job.feed)
        with tf1.Session(graph=job.graph) as plain:
            saver.restore(plain, path)
            np.testing.assert_allclose(next_loss, plain.run(job.loss, job.feed), rtol=1e-12)


def assert_equal(values, expected):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_evaluation_between_steps_reads_the_servers_and_changes_nothing(unordered):
    job = network("adam", "clip_by_global_norm", model=wide)
    with served(job, 3, 2).session(trials=None) as session:
        for expected in unordered.losses:
            np.testing.assert_allclose(session.run(job.loss, job.feed), expected, rtol=1e-12)
            assert session.step(job.feed) == expected


def test_agents_that_only_infer_change_nothing_and_compute_the_loss():
    job = network("adam", model=wide, number=41)
    model = served(job, 3, 2, mode="inference", ordering="tic")
    with model.session(trials=None) as session:
        before = session.variables()
        losses = [session.step(job.feed) for _ in range(2)]
        expected = session.run(job.loss, job.feed)
        assert_equal(session.variables(), before)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert not model.plan.job.gradients
    own = served(job, 3, 2).plan.decision.owners
    assert model.plan.decision.owners == own


def test_agents_that_only_infer_keep_what_workers_would_write():
    job = control_flow.network(
        normalised, extra=lambda loss: tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    )
    with served(job, 2, 2, mode="inference").session(trials=None) as session:
        before = replicas_of(session)
        losses = [session.step(job.feed) for _ in range(2)]
        for own, was in zip(replicas_of(session), before, strict=True):
            assert_equal(own, was)
        with pytest.raises(FeedError, match="no part of a step of agents that only infer"):
            session.step(job.feed, job.train_op)
    assert losses[0] == losses[1]


def test_agents_that_only_infer_take_the_feeds_of_training():
    """Also those that no loss needs."""
    job = gan()
    model = caramel.PSModel(job.context(), 2, 2, mode="inference", check=True)
    with model.session(trials=None) as session:
        before = session.variables()
        losses = [session.step(job.feed, step=step) for step in ("d", "g")]
        expected = session.run([loss for _, loss in job.steps.values()], job.feed)
        assert_equal(session.variables(), before)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_processes_give_the_bits_of_servers_in_this_process():
    job = network("adam", "clip_by_global_norm", model=wide)
    expected = run_served(job, 2, 1)
    with caramel.Cluster.local(2, parameter_servers=1) as cluster:
        model = caramel.PSModel(job.context(), cluster, ordering="tic", check=True)
        run = run_model(model, job)
    assert_same_run(run, dataclasses.replace(expected, replicas=()))


# Sent for the next step --------------------------------------------------------------------------


def with_ahead(model: caramel.PSModel, every: int) -> caramel.Plan:
    """The plan of a model with each so manieth variable sent for the next step."""
    pulls = [
        dataclasses.replace(pull, ahead=number % every == 0)
        for number, pull in enumerate(model.plan.decision.pulls)
    ]
    return model.plan.deciding(pulls=tuple(pulls))


@pytest.mark.parametrize(
    ("optimizer", "process", "workers", "servers", "every"),
    [
        ("adam", "clip_by_global_norm", 2, 1, 1),
        ("momentum", "unchanged", 3, 2, 2),
        ("gradient_descent", "unchanged", 1, 1, 1),
    ],
)
def test_what_is_sent_for_the_next_step_changes_no_bit(optimizer, process, workers, servers, every):
    job = network(optimizer, process, model=wide)
    model = served(job, workers, servers)
    model.add_variant(with_ahead(model, every), "ahead")
    expected = run_model(model, job, steps=6)
    with model.session(trials=None) as session:
        losses = []
        for step in range(6):  # also after steps of another plan, and after an evaluation
            session.use("own" if step == 3 else "ahead")
            losses.append(session.step(job.feed))
            if step == 1:
                session.run(job.loss, job.feed)
        values = session.variables()
    assert losses == expected.losses
    for name, value in expected.values.items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


def test_a_restored_variable_is_sent_before_the_next_step(tmp_path):
    job = network("momentum", model=wide)
    model = served(job, 2, 1)
    model.add_variant(with_ahead(model, 1), "ahead")
    with model.session(trials=None) as session:
        session.use("ahead")
        first = session.step(job.feed)
        path = session.save(tmp_path / "checkpoint")
        second = session.step(job.feed)
        assert session.step(job.feed) != second != first
        session.restore(path)
        assert session.step(job.feed) == second


def test_what_is_read_in_a_loop_is_not_sent_ahead():
    with control_flow_version("v1"):
        job = control_flow.network(control_flow.loop)
    model = served(job, 2, 1)
    with pytest.raises(PlanError, match="cannot be pulled ahead: it is read inside a loop"):
        model.add_variant(with_ahead(model, 1), "ahead")
