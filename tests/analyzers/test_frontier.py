"""Raw gradients are found from the structure of the graph alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

import caramel
from caramel.analyzers.examples.examples import examples
from caramel.analyzers.frames import loop_frames
from caramel.analyzers.gradients.frontier import gradient_frontier
from caramel.analyzers.inputs import worker_inputs
from caramel.core.errors import AmbiguousGradientError
from caramel.core.facts import GradientFrontier, RawGradient, TrainingJob
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef, parse_tensor
from caramel.core.variable_access import state_access
from tests.support.models import (
    MODELS,
    WITH_CONTROL_FLOW,
    bias_of_one_row,
    column,
    convolution,
    residual,
    scalars,
    sliced_at_run_time,
    square,
)
from tests.support.networks import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    PROCESSES,
    Network,
    assert_equals_one_device,
    control_flow_version,
    cross_entropy,
    frontier_of,
    in_turns,
    inputs,
    l2,
    network,
    optimized,
    parameter,
    perceptron,
    run_on_one_device,
    tf,
    tf1,
    tied,
)


def reference(tensor) -> TensorRef:
    return parse_tensor(tensor.name)


def cut_tensors(frontier: GradientFrontier) -> dict[str, tuple[TensorRef, ...]]:
    return {cut.gradient.parameter: cut.gradient.tensors for cut in frontier.cuts}


def before_shape_changes(tensor):
    """The first tensor of the same values and shape, where only copies and reshapes follow."""
    passing = ("Reshape", "Identity")
    while tensor.op.type in passing and tensor.op.inputs[0].shape == tensor.shape:
        tensor = tensor.op.inputs[0]
    return tensor


def expected_tensors(job: Network) -> dict[str, tuple[TensorRef, ...]]:
    """What differentiation put out, without the copies and reshapes at its end."""
    found = {}
    for name, gradient in job.raw.items():
        if isinstance(gradient, tf.IndexedSlices):
            found[name] = (reference(gradient.values), reference(gradient.indices))
        else:
            found[name] = (reference(before_shape_changes(gradient)),)
    return found


def assert_cut_at_raw_gradients(job: Network, **options) -> None:
    assert cut_tensors(frontier_of(job.context(**options))) == expected_tensors(job)


def built(make_loss, process=PROCESSES["unchanged"], optimizer="adam") -> Network:
    """A job whose loss is made inside a graph of its own."""
    with tf.Graph().as_default() as graph:
        loss = make_loss()
        train_op, raw = optimized(loss, OPTIMIZERS[optimizer], process)
    return Network(graph, train_op, loss, {}, raw)


# Dense layers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "process"), in_turns([name for name in OPTIMIZERS for _ in range(2)], PROCESSES)
)
def test_the_cut_is_before_all_post_processing(optimizer, process):
    assert_cut_at_raw_gradients(network(optimizer, process))


def test_the_exact_tensors_of_a_small_graph():
    cut = cut_tensors(frontier_of(network("momentum", "clip_by_global_norm").context()))
    assert cut == {
        "w1": (TensorRef("gradients/matmul_grad/MatMul_1"),),
        "b1": (TensorRef("gradients/BiasAdd_grad/BiasAddGrad"),),
        "w2": (TensorRef("gradients/matmul_1_grad/MatMul_1"),),
        "b2": (TensorRef("gradients/add_grad/Reshape"),),
    }


def test_only_post_processing_reads_the_aggregated_gradient():
    cuts = frontier_of(network("gradient_descent", "clip_by_norm", model=tied).context()).cuts
    assert {cut.gradient.parameter: cut.consumers for cut in cuts} == {
        "w1": ("clip_by_norm/mul", "clip_by_norm/mul_1"),
        "b1": ("clip_by_norm_1/mul", "clip_by_norm_1/mul_1"),
        "w2": ("gradients/matmul_3_grad/tuple/control_dependency_1",),
    }


@pytest.mark.parametrize("process", PROCESSES)
def test_weight_decay_in_the_loss_is_added_behind_the_cut(process):
    """The gradient of the decay is the same on every worker, so it need not be sent."""
    with_decay = cut_tensors(frontier_of(network("adam", process, decayed_loss=True).context()))
    assert with_decay == cut_tensors(frontier_of(network("adam").context()))


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("decayed_loss", [False, True])
def test_the_gradients_of_all_reads_of_a_variable_are_added_first(process, decayed_loss):
    job = network("adam", process, model=tied, decayed_loss=decayed_loss)
    cut, expected = cut_tensors(frontier_of(job.context())), expected_tensors(job)
    assert {cut["w1"], cut["b1"]} == {expected["w1"], expected["b1"]}
    assert job.graph.get_operation_by_name(cut["w1"][0].op).type == "AddN"


# Models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "process"),
    [
        *in_turns(MODELS, ["clip_by_global_norm"]),
        *in_turns(MODELS, ["unchanged", "clip_by_norm"]),
    ],
)
def test_the_cut_is_found_in_every_model(model, process):
    assert_cut_at_raw_gradients(network("momentum", process, model=model))


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("process", ["unchanged", "clip_by_global_norm"])
@pytest.mark.parametrize("model", WITH_CONTROL_FLOW)
def test_the_cut_is_found_outside_of_loops_and_conditionals(model, process, version):
    with control_flow_version(version):
        job = network("momentum", process, model=model)
    assert_cut_at_raw_gradients(job)


@pytest.mark.parametrize("batch", [1, 3, 5, 6])
@pytest.mark.parametrize("model", [perceptron, square, bias_of_one_row, scalars, column, residual])
def test_the_size_of_a_fixed_batch_makes_no_difference(model, batch):
    """Not if it is 1, nor if it is the width of a layer."""
    assert_cut_at_raw_gradients(
        network("momentum", "clip_by_global_norm", model=model, batch=batch)
    )


@pytest.mark.parametrize("model", [bias_of_one_row, scalars, sliced_at_run_time, convolution])
def test_such_models_train_as_on_one_device(model):
    assert_equals_one_device(network("adam", "clip_by_global_norm", model=model), 3, "ring")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("model", WITH_CONTROL_FLOW)
def test_loops_and_conditionals_train_as_on_one_device(model, version):
    with control_flow_version(version):
        job = network("momentum", "clip_by_norm", model=model, number=41)
    assert_equals_one_device(job, 2)


# Earlier than the raw gradient, where only linear ops lie between ---------------------------------


def weight_norm(x):
    v, g = parameter("v", [6, 3]), parameter("g", [3])
    return x @ (g * v / tf.norm(v, axis=0)) + parameter("b", [3])


def gated(x):
    gates = tf.sigmoid(parameter("gate", [3])) * tf.nn.softplus(parameter("s", [1]))
    return (x @ parameter("w", [6, 3])) * gates


def sum_of_two(x):
    return x @ (parameter("w", [6, 3]) + parameter("v", [6, 3]))


@pytest.mark.parametrize(
    ("model", "process"),
    [
        (weight_norm, "unchanged"),
        (weight_norm, "clip_by_global_norm"),
        (gated, "unchanged"),
        (sum_of_two, "clip_by_global_norm"),
    ],
)
def test_what_is_computed_from_parameters_alone_may_follow_aggregation(model, process):
    assert_equals_one_device(network("adam", process, model=model), 3)


def test_one_gradient_serves_two_parameters_that_are_added():
    cut = cut_tensors(frontier_of(network(model=sum_of_two).context()))
    assert list(cut.values()) == [(TensorRef("gradients/matmul_grad/MatMul_1"),)]


# Branches that only some workers take -------------------------------------------------------------


def chosen_by_the_batch(x):
    w, b = parameter("w", [6, 6]), parameter("b", [6])
    h = tf.cond(tf.reduce_mean(x) > 0, lambda: tf.tanh(x @ w + b), lambda: tf.nn.relu(x @ w))
    return h @ parameter("w2", [6, 3])


def chosen_in_a_loop(x):
    w, b = parameter("w", [6, 6]), parameter("b", [6])

    def step(i, h):
        return i + 1, tf.cond(tf.reduce_mean(h) > 0, lambda: tf.tanh(h @ w + b), lambda: h @ w)

    return tf.while_loop(lambda i, _: i < 3, step, [0, x])[1] @ parameter("w2", [6, 3])


def loop_in_a_branch(x):
    w, b = parameter("w", [6, 6]), parameter("b", [6])

    def looped():
        return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.tanh(h @ w + b)), [0, x])[
            1
        ]

    return tf.cond(tf.reduce_mean(x) > 0, looped, lambda: x) @ parameter("w2", [6, 3])


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("model", [chosen_by_the_batch, chosen_in_a_loop, loop_in_a_branch])
def test_workers_that_take_different_branches_average_their_gradients(model, version):
    with control_flow_version(version):
        job = network("gradient_descent", model=model)
    x, y = job.feed.values()
    x = np.concatenate([abs(x[:20]), -abs(x[20:])])
    feed = {"x:0": x, "y:0": y}
    model_ = caramel.ARModel(job.context(), workers=2, check=True)
    with model_.session() as session:
        initial = session.variables()
        session.step(feed)
        values = session.variables()
    parts = [
        run_on_one_device(replace(job, feed={"x:0": a, "y:0": b}), initial, steps=1).values
        for a, b in ((x[:20], y[:20]), (x[20:], y[20:]))
    ]
    for name in job.raw:
        expected = (parts[0][name] + parts[1][name]) / 2
        np.testing.assert_allclose(values[name], expected, rtol=1e-12, atol=1e-15)


# Ambiguous graphs --------------------------------------------------------------------------------


def with_gradients(process, decorate=lambda gradients, variables, loss, x: gradients) -> Network:
    """One layer, whose gradients are changed by a function that may read anything."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        loss = cross_entropy(x @ parameter("w", [6, 3]), y)
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        pairs = optimizer.compute_gradients(loss)
        gradients, variables = zip(*pairs, strict=True)
        changed = process(gradients, variables, loss, x)
        train_op = optimizer.apply_gradients(zip(changed, variables, strict=True))
    return Network(graph, train_op, loss, feed, {v.op.name: g for g, v in pairs})


def times_loss(gradients, variables, loss, x):
    return [g * loss for g in gradients]


def over_the_norm_of_the_batch(gradients, variables, loss, x):
    return [g / tf.norm(x) for g in gradients]


@pytest.mark.parametrize("process", [times_loss, over_the_norm_of_the_batch])
def test_a_gradient_times_a_local_value_is_ambiguous(process):
    job = with_gradients(process)
    with pytest.raises(AmbiguousGradientError, match=r"cannot tell .* gradients=\["):
        frontier_of(job.context())


def flat_and_squared() -> Network:
    """Gradients that are squared while they lie side by side in one flat tensor."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        w, v = parameter("w", [6, 3]), parameter("v", [3])
        loss = cross_entropy(x @ w * v, y)
        gw, gv = tf1.gradients(loss, [w, v])
        flat = tf.concat([tf.reshape(gw, [-1]), gv], 0)
        flat *= tf.abs(flat)
        train_op = tf.group(w.assign_sub(tf.reshape(flat[:18], [6, 3])), v.assign_sub(flat[18:]))
    return Network(graph, train_op, loss, feed, {"w": gw, "v": gv})


def test_a_gradient_that_is_changed_without_its_shape_is_cut_before_that():
    job = flat_and_squared()
    assert cut_tensors(frontier_of(job.context())).keys() == {"w", "v"}
    assert_equals_one_device(job, 3)


def test_giving_the_gradients_resolves_what_is_ambiguous():
    job = flat_and_squared()
    assert_equals_one_device(job, 3, gradients=given(job))


def test_the_gradient_of_a_slot_is_that_of_the_parameter_whose_update_reads_it():
    """Nothing but control leads from the gradient to the parameter, over a slot made by hand."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        w = parameter("w", [6, 3])
        slot = tf.Variable(tf.zeros([6, 3], w.dtype), trainable=False, name="slot")
        loss = cross_entropy(x @ w, y)
        gradient = tf1.gradients(loss, [w])[0]
        with tf.control_dependencies([slot.assign(0.9 * slot + gradient)]):
            train_op = w.assign_sub(0.5 * slot.read_value()).op
    job = Network(graph, train_op, loss, feed, {"w": gradient})
    assert cut_tensors(frontier_of(job.context())) == {"w": (reference(gradient),)}
    assert_equals_one_device(job, 3)


def squared(x):
    return x @ tf.square(parameter("w", [6, 3]))


def test_squares_of_parameters_are_differentiated_after_aggregation():
    assert_equals_one_device(network("adam", model=squared), 2)


def given(job: Network):
    return [(gradient, name) for name, gradient in job.raw.items()]


@pytest.mark.parametrize("process", PROCESSES)
def test_given_gradients_are_where_the_graph_is_cut(process):
    job = network("adam", process, decayed_loss=True)
    frontier = frontier_of(job.context(gradients=given(job)))
    assert cut_tensors(frontier) == {name: (reference(g),) for name, g in job.raw.items()}


@pytest.mark.parametrize("process", PROCESSES)
def test_given_gradients_train_as_on_one_device(process):
    job = network("adam", process, decayed_loss=True)
    assert_equals_one_device(job, 3, gradients=given(job))


def test_what_reads_a_given_gradient_sees_the_aggregated_one():
    job = with_gradients(lambda gradients, variables, loss, x: [2 * g for g in gradients])
    frontier = frontier_of(job.context(gradients=given(job)))
    assert cut_tensors(frontier) == {"w": (reference(job.raw["w"]),)}
    assert frontier.cuts[0].consumers == ("mul",)


def test_a_given_gradient_inside_a_branch_is_refused():
    with control_flow_version("v1"), tf.Graph().as_default() as graph:
        x, y, _ = inputs(40)
        w = parameter("w", [6, 3])
        inner = []

        def differentiated():
            loss = cross_entropy(x @ w, y)
            inner.append(tf1.gradients(loss, [w])[0])
            return tf.identity(inner[0])

        outer = tf.cond(tf.reduce_mean(x) > 0, differentiated, lambda: tf.zeros([6, 3], x.dtype))
        loss = cross_entropy(x @ w, y)
        train_op = w.assign_sub(outer).op
    job = Network(graph, train_op, loss)
    with pytest.raises(AmbiguousGradientError, match="inside a loop or a conditional"):
        frontier_of(job.context(gradients=[(inner[0], w)]))


def test_a_parameter_without_gradient_is_left_alone():
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(40)
        logits = perceptron(x)
        unused = parameter("unused", [4])
        loss = cross_entropy(logits, y) + l2([unused])
        train_op, raw = optimized(loss, OPTIMIZERS["adam"])
    frontier = frontier_of(Network(graph, train_op, loss, feed, raw).context())
    assert "unused" not in cut_tensors(frontier)
    assert frontier.untouched == ("unused",)


# Names carry no meaning --------------------------------------------------------------------------


def renamed(graph: OpGraph, job: TrainingJob) -> tuple[OpGraph, TrainingJob, dict[str, str]]:
    """The same graph with ops called n0, n1, ..., and the old names of the new ones."""
    new = {name: f"n{number}" for number, name in enumerate(graph.ops)}

    def tensors(old: Iterable[TensorRef]) -> tuple[TensorRef, ...]:
        return tuple(TensorRef(new[t.op], t.index) for t in old)

    def moved(op: Op) -> Op:
        controls = tuple(new[name] for name in op.control_inputs)
        return replace(op, name=new[op.name], inputs=tensors(op.inputs), control_inputs=controls)

    ops = {new[op.name]: moved(op) for op in graph}
    constants = {new[name]: value for name, value in graph.constants.items()}
    variables = tuple(
        replace(v, handle=new[v.handle], initializer=new[v.initializer]) for v in job.variables
    )
    other = replace(
        job, train_op=new[job.train_op], loss=tensors([job.loss])[0], variables=variables
    )
    numbers = {new[name]: each for name, each in graph.numbers.items()}
    return OpGraph(ops, graph.functions, constants, numbers), other, {n: o for o, n in new.items()}


def frontier_without_names(graph: OpGraph, job: TrainingJob) -> dict[str, RawGradient]:
    access, frames = state_access(graph, job), loop_frames(graph)
    given_inputs = worker_inputs(graph, job, access)
    courses = examples(graph, job, given_inputs)
    frontier = gradient_frontier(graph, job, access, given_inputs, frames, courses)
    return {cut.gradient.parameter: (cut.gradient.tensors, cut.consumers) for cut in frontier.cuts}


TWO = ["clip_by_global_norm", "decay"]


@pytest.mark.parametrize(
    ("model", "version", "process"),
    [
        *in_turns([*MODELS[:6], tied], ["v2"], TWO),
        # Each version with one process, the other way round for every second model.
        *[
            (model, version, TWO[(place + number) % 2])
            for place, model in enumerate(WITH_CONTROL_FLOW)
            for number, version in enumerate(["v1", "v2"])
        ],
    ],
)
def test_meaningless_names_give_the_same_cut(model, process, version):
    with control_flow_version(version):
        job = network("rmsprop_centered", process, model=model, decayed_loss=True)
    context = job.context()
    expected = frontier_without_names(context.op_graph, context.job)
    graph, other, old = renamed(context.op_graph, context.job)
    found = {
        name: (
            tuple(TensorRef(old[t.op], t.index) for t in tensors),
            tuple(old[consumer] for consumer in consumers),
        )
        for name, (tensors, consumers) in frontier_without_names(graph, other).items()
    }
    assert found == expected


def in_a_function(*, clipped: bool = False, given: bool = False):
    """One function gives the loss and the gradients."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        x, y, feed = inputs(40)
        weights, bias = parameter("weights", [FEATURES, CLASSES]), parameter("bias", [CLASSES])

        @tf.function
        def differentiated(x, y):
            with tf.GradientTape() as tape:
                loss = cross_entropy(x @ weights + bias, y)
            return loss, tape.gradient(loss, [weights, bias])

        loss, raw = differentiated(x, y)
        gradients = tf.clip_by_global_norm(raw, 0.1)[0] if clipped else raw
        optimizer = tf1.train.GradientDescentOptimizer(0.3)
        train_op = optimizer.apply_gradients(zip(gradients, [weights, bias], strict=True))
    pairs = [(raw[0], weights), (raw[1], bias)] if given else None
    job = Network(graph, train_op, loss, feed, dict.fromkeys(["weights", "bias"]))
    return job, pairs


@pytest.mark.parametrize("clipped", [False, True])
def test_a_function_that_gives_loss_and_gradients_is_ambiguous(clipped):
    job, _ = in_a_function(clipped=clipped)
    with pytest.raises(AmbiguousGradientError, match="gives both the loss and .*gradients="):
        frontier_of(job.context())


@pytest.mark.parametrize("clipped", [False, True])
def test_given_gradients_of_a_function_train_as_on_one_device(clipped):
    job, pairs = in_a_function(clipped=clipped, given=True)
    assert_equals_one_device(job, 2, gradients=pairs)
