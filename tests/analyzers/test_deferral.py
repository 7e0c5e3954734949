"""Deferred groups change when an update is done, never what it is."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import caramel
from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.core.decision import Gate, Part
from caramel.core.errors import PlanError
from caramel.core.facts import GradientFrontier, LoopFrames
from caramel.core.time_facts import ActivationOrder, TimingTable
from caramel.planning.control_edges import serialize
from caramel.planning.search.split import with_parts
from tests.support.deferring import (
    CHOICES,
    EVERY,
    FIRST,
    JOBS,
    LAST,
    SOME,
    averaged,
    deferred,
    failing,
    scheduled_in_the_loss,
    with_norm,
)
from tests.support.networks import (
    CLASSES,
    FEATURES,
    FLOAT64_ONLY,
    OPTIMIZERS,
    PROCESSES,
    STEPS,
    Network,
    cross_entropy,
    in_turns,
    inputs,
    network,
    parameter,
    partly,
    perceptron,
    relative_error,
    replicas_of,
    run_on_one_device,
    tf,
    tf1,
)
from tests.support.pending_updates import (
    assert_equal,
    assert_errors_lose_no_updates,
    assert_fetches_are_of_their_step,
    assert_saving_loses_nothing,
)


def train(model, feed, *, reads_replicas=False):
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(feed) for _ in range(STEPS)]
        replicas = replicas_of(session) if reads_replicas else []
        return initial, losses, session.variables(), replicas


def assert_same(job, workers, choice, *, pattern="shuffle", change=lambda plan: plan, **options):
    """Training with deferred groups gives the same bits as training without."""
    context = job.context()
    plain = caramel.ARModel(context, workers, pattern=pattern, **options)
    plan = change(deferred(plain, choice))
    other = caramel.ARModel(context, workers, plan=plan, check=True)
    assert other.plan.consequences.deferral.moved
    _, losses, values, _ = train(plain, job.feed)
    initial, other_losses, other_values, replicas = train(other, job.feed, reads_replicas=True)
    assert len(replicas) == workers
    for name, value in values.items():
        np.testing.assert_array_equal(other_values[name], value, err_msg=name)
        for replica in replicas:
            np.testing.assert_array_equal(replica[name], value, err_msg=name)
    assert other_losses == losses
    return initial, other_values


@pytest.mark.parametrize(
    ("optimizer", "choice"),
    partly(pytest.mark.onednn, in_turns(OPTIMIZERS, [EVERY, SOME]), first=2),
)
def test_every_optimizer_gives_the_same_bits(optimizer, choice):
    dtype = tf.float64 if optimizer in FLOAT64_ONLY else tf.float32
    assert_same(network(optimizer, dtype=dtype), 2 + len(optimizer) % 2, choice)


@pytest.mark.parametrize(("process", "choice"), in_turns(PROCESSES, [EVERY, SOME]))
def test_clipping_and_decay_give_the_same_bits(process, choice):
    assert_same(network("adam", process, decayed_loss=True), 2, choice)


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "piecewise"])
def test_deferred_training_is_that_of_one_device(optimizer):
    job = network(optimizer)
    initial, values = assert_same(job, 3, EVERY)
    expected = run_on_one_device(job, initial)
    assert relative_error(values, expected.values) < 1e-12


# Any network and any plan ------------------------------------------------------------------------


@pytest.mark.parametrize(("choice", "name"), in_turns([*CHOICES] * 2, JOBS))
def test_whatever_follows_the_update_gives_the_same_bits(name, choice):
    job = JOBS[name]()
    initial, values = assert_same(job, 2, choice)
    expected = run_on_one_device(job, initial)
    assert relative_error(values, expected.values) < 1e-12


def randomly_cut(random, plan):
    """Some gradients cut wherever they may be."""
    for gradient in plan.job.gradients:
        unit = 8  # numbers of 8 bytes
        cuts = [n for n in range(unit, gradient.elements, unit) if random.random() < 0.4]
        if cuts:
            for pair in itertools.pairwise([0, *cuts, gradient.elements]):
                yield Part(gradient.parameter, *pair)


def random_job(random):
    """A network of a few layers of any width, some of which share a matrix, with any updates."""
    widths = [int(width) for width in random.integers(2, 9, size=random.integers(1, 5))]
    ties = bool(random.integers(0, 2))
    skips = bool(random.integers(0, 2))
    activations = [tf.tanh, tf.nn.relu, tf.sigmoid]

    def model(x):
        hidden = [x]
        for number, width in enumerate(widths):
            fan_in = hidden[-1].shape[1]
            w = parameter(f"w{number}", [fan_in, width], x.dtype)
            layer = hidden[-1] @ w + parameter(f"b{number}", [width], x.dtype)
            layer = activations[int(random.integers(3))](layer)
            if ties and number % 2:
                layer = tf.matmul(layer, w, transpose_b=True) @ w  # read three times
            hidden.append(layer)
        last = tf.concat(hidden, axis=1) if skips else hidden[-1]
        return last @ parameter("out", [last.shape[1], CLASSES], x.dtype)

    optimizer = str(random.choice(sorted(OPTIMIZERS)))
    process = str(random.choice(sorted(PROCESSES)))
    return network(optimizer, process, model=model)


def random_edges(random, model):
    """Control edges that enforce the greedy order of gradients, or the opposite if that can be."""
    context = model.context
    facts = Analysis([context.op_graph, context.job, TimingTable({})], ANALYZERS)
    order = facts.get(ActivationOrder)
    orders = [order, ActivationOrder(order.parameters[::-1])]
    for each in orders[:: random.choice([-1, 1])]:
        try:
            return serialize(
                context.op_graph,
                context.job,
                facts.get(GradientFrontier),
                facts.get(LoopFrames),
                each,
            )
        except PlanError:  # some gradient is computed from another one
            continue
    raise AssertionError("the greedy order can always be enforced")


@pytest.mark.parametrize("seed", range(10))
def test_random_plans_give_the_same_bits(seed):
    random = np.random.default_rng(seed)
    job = list(JOBS.values())[seed]() if seed < len(JOBS) else random_job(random)
    workers = int(random.integers(2, 4))
    with_edges = bool(random.integers(0, 2))
    edges = random_edges(random, caramel.ARModel(job.context(), 2)) if with_edges else ()

    def change(plan):
        plan = with_parts(plan, randomly_cut(random, plan))
        members = list(random.permutation([g.members[0] for g in plan.decision.groups]))
        groups = []
        while members:
            size = int(random.integers(1, len(members) + 1))
            groups.append(
                dataclasses.replace(
                    plan.decision.groups[0],
                    name=f"group_{len(groups)}",
                    members=tuple(str(m) for m in members[:size]),
                    depth=int(random.integers(1, 5)),
                    shift=int(random.integers(0, workers)),
                    deferred=bool(random.integers(0, 2)) or not groups,
                )
            )
            members = members[size:]
        gates = [
            Gate(later.name, earlier.name)
            for position, later in enumerate(groups)
            for earlier in groups[:position]
            # What is deferred is sent before what is not.
            if later.deferred <= earlier.deferred and random.random() < 0.5
        ]
        return plan.deciding(groups=tuple(groups), gates=tuple(gates), edges=edges)

    assert_same(job, workers, EVERY, change=change)


# What stays and what moves -----------------------------------------------------------------------


def deferral(job):
    plan = deferred(caramel.ARModel(job.context(), 2), EVERY)
    return caramel.ARModel(job.context(), 2, plan=plan).plan.consequences.deferral


def kinds(job, names):
    return sorted({job.graph.get_operation_by_name(name).type for name in names})


def test_powers_and_counters_stay():
    job = network("adam")
    found = deferral(job)
    assert kinds(job, found.moved) == ["Identity", "ResourceApplyAdam"]
    assert kinds(job, [detour.op for detour in found.detours]) == ["NoOp", "ReadVariableOp"]
    assert {barrier.variable for barrier in found.barriers} == {"w1", "b1", "w2", "b2"}
    scalars = {kept.spec.shape for kept in found.kept}
    assert scalars == {()}  # the powers of the betas


def test_averages_of_the_weights_move():
    found = deferral(averaged())
    assert any("ExponentialMovingAverage" in name for name in found.moved)


def test_after_a_global_norm_clip_all_updates_and_averages_move_with_any_gradient():
    """With many parameters, too, of which each average could wait for each update."""
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        for number in range(24):
            x = x * parameter(f"w{number}", [FEATURES], x.dtype)
        loss = cross_entropy(x @ parameter("last", [FEATURES, CLASSES], x.dtype), y)
        variables = tf1.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
        optimizer = tf1.train.AdamOptimizer(0.01)
        update = optimizer.apply_gradients(zip(gradients, variables, strict=True))
        with tf1.control_dependencies([update]):
            train_op = tf1.train.ExponentialMovingAverage(0.9).apply(variables)
    job = Network(graph, train_op, loss, feed)
    plain = caramel.ARModel(job.context(), 2, planner="plain")
    moved = deferred(plain, FIRST)
    deferral = caramel.ARModel(plain.context, 2, plan=moved).plan.consequences.deferral
    for kind in ("/ResourceApplyAdam", "/AssignSubVariableOp"):
        assert sum(kind in op for op in deferral.moved) == len(variables)
    assert not any(op.startswith("Adam/Assign") for op in deferral.moved)  # powers of betas


def test_a_counter_that_the_forward_pass_reads_does_not_hold_it_up():
    found = deferral(scheduled_in_the_loss())
    assert "global_step" not in {barrier.variable for barrier in found.barriers}


def test_an_empty_gradient_or_one_in_a_loop_is_not_deferred():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        empty = parameter("empty", [0])
        loss = cross_entropy(perceptron(x), y) + tf.reduce_sum(empty * tf.reduce_mean(x))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    job = Network(graph, train_op, loss, feed)
    model = caramel.ARModel(job.context(), 2)
    with pytest.raises(PlanError, match="'empty' is empty"):
        caramel.ARModel(job.context(), 2, plan=deferred(model, EVERY))


# Sessions ----------------------------------------------------------------------------------------


@pytest.fixture
def momentum():
    """A job with all groups deferred, and what plain training makes of it."""
    job = network("momentum")
    context = job.context()
    plain = caramel.ARModel(context, 2)
    return job, plain, caramel.ARModel(context, 2, plan=deferred(plain, EVERY), check=True)


def test_whatever_looks_at_variables_sees_all_updates(momentum, tmp_path):
    job, plain, model = momentum
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(3):
            assert session.step(job.feed) == expected.step(job.feed)
            assert_equal(session.variables(), expected.variables())
        session.step(job.feed), expected.step(job.feed)
        assert_equal(session.variables(worker=1), expected.variables(worker=1))
        session.step(job.feed), expected.step(job.feed)
        read = session.run(job.loss, job.feed), expected.run(job.loss, job.feed)
        assert read[0] == read[1]


def test_a_checkpoint_holds_all_updates_and_nothing_of_caramels(momentum, tmp_path):
    assert_saving_loses_nothing(*momentum, tmp_path)


def test_fetches_of_the_deferred_part_are_those_of_their_step(momentum, tmp_path):
    assert_fetches_are_of_their_step(*momentum, tmp_path)


@pytest.mark.parametrize("choice", [FIRST, SOME, EVERY])
def test_a_fetch_of_both_parts_sees_what_it_would_see_in_one(choice, tmp_path):
    job = with_norm()
    plain = caramel.ARModel(job.context(), 2)
    model = caramel.ARModel(job.context(), 2, plan=deferred(plain, choice), check=True)
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(3):
            assert session.step(job.feed, ["norm:0"]) == expected.step(job.feed, ["norm:0"])
            assert session.step(job.feed) == expected.step(job.feed)
        assert_equal(session.variables(), expected.variables())


def with_biased_loss():
    """The loss reads a variable that nothing else of the step reads, not even its gradient."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        factor = tf.reduce_mean(x)

        @tf.custom_gradient
        def scaled(value):  # TensorFlow's own gradient of a product reads both factors
            return value * factor, lambda upstream: upstream * factor

        loss = cross_entropy(perceptron(x), y) + scaled(parameter("bias", []).read_value())
        train_op = tf1.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    return Network(graph, train_op, loss, feed)


def test_steps_without_a_loss_leave_no_tokens_behind(tmp_path):
    job = with_biased_loss()
    plain = caramel.ARModel(job.context(), 2)
    model = caramel.ARModel(job.context(), 2, plan=deferred(plain, EVERY), check=True)
    waiting = {b.variable: b.waiting for b in model.plan.consequences.deferral.barriers}
    assert "bias" in waiting
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(3):
            session.step(job.feed, []), expected.step(job.feed, [])
            pending = session._running.controllers.active.executor._pending
            counts = session._running.runner.run(pending._counts, [], {}, "counting tokens")
            assert max(counts) <= 1
        for _ in range(3):
            assert session.step(job.feed) == expected.step(job.feed)


def test_an_error_in_a_step_does_not_lose_the_updates_of_the_one_before(tmp_path):
    job = failing()
    context = job.context()
    plain = caramel.ARModel(context, 2)
    model = caramel.ARModel(context, 2, plan=deferred(plain, EVERY), check=True)
    bad = {"x:0": np.full_like(job.feed["x:0"], np.nan)}
    assert_errors_lose_no_updates(job, bad, plain, model, tmp_path, told="bad input")


def test_an_error_in_a_deferred_update_is_raised_by_the_next_call():
    job = failing()
    plain = caramel.ARModel(job.context(), 2)
    model = caramel.ARModel(job.context(), 2, plan=deferred(plain, EVERY))
    poisoned = {**job.feed, "poison:0": np.nan}
    with model.session(step_timeout_s=60) as session:
        for follow in (lambda: session.step(job.feed), session.variables):
            session.step(job.feed)
            session.step(poisoned)
            with pytest.raises(tf.errors.InvalidArgumentError, match="bad gradient"):
                follow()
        session.step(job.feed)
        assert np.isfinite(session.variables()["w1"]).all()


def test_an_update_from_which_another_gradient_is_computed_is_not_deferred():
    """Two players in turns: the second one's gradient sees the first one's update."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        first = parameter("first", [FEATURES, 7], x.dtype)
        second = parameter("second", [7, CLASSES], x.dtype)

        def loss():
            return cross_entropy(tf.tanh(x @ first.read_value()) @ second.read_value(), y)

        optimizer = tf1.train.GradientDescentOptimizer(0.3)
        own_loss = loss()
        pairs = optimizer.compute_gradients(own_loss, [first])
        with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
            pairs += optimizer.compute_gradients(loss(), [second])
            train_op = optimizer.apply_gradients(pairs[1:])
    job = Network(graph, train_op, own_loss, feed)
    model = caramel.ARModel(job.context(gradients=pairs), 2, planner="plain", pattern="shuffle")
    for choice in (EVERY, FIRST):
        with pytest.raises(PlanError, match="the gradient of 'second' is computed from what they"):
            caramel.ARModel(model.context, 2, plan=deferred(model, choice))
    last = caramel.ARModel(model.context, 2, plan=deferred(model, LAST))
    initial, _, values, _ = train(last, feed)
    assert relative_error(values, run_on_one_device(job, initial).values) < 1e-12


@pytest.mark.parametrize("kind", ["If", "Case", "While"])
def test_updates_inside_functional_control_flow_are_not_deferred(kind, control_flow):
    """What waits for such an op by a control edge may run before the function's ops."""
    control_flow(True)
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(perceptron(x), y)
        optimizer = tf1.train.GradientDescentOptimizer(0.3)
        pairs = optimizer.compute_gradients(loss)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g, _ in pairs])

        def update():
            with tf.control_dependencies([optimizer.apply_gradients(pairs)]):
                return tf.constant(1)

        if kind == "If":
            done = tf.cond(finite, update, lambda: tf.constant(0))
        elif kind == "Case":
            done = tf.switch_case(tf.cast(finite, tf.int32), [lambda: tf.constant(0), update])
        else:
            done = tf.while_loop(lambda n: (n < 1) & finite, lambda n: update(), [tf.constant(0)])
        train_op = tf.group(done)
    plain = caramel.ARModel(Network(graph, train_op, loss, feed).context(), 2, planner="plain")
    assert any(op.kind == kind for op in plain.context.op_graph)
    with pytest.raises(PlanError, match="touches variables in a function"):
        caramel.ARModel(plain.context, 2, plan=deferred(plain, EVERY))
