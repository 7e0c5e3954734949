"""Ops that TensorFlow may compute as one are one for every control edge of a plan."""

from __future__ import annotations

from itertools import permutations

import pytest

import caramel
from caramel.analyzers.fusions import find_cycle, fused_ops, fusions_among, opened
from caramel.cluster.onednn_check import advice
from caramel.core.decision import Edge
from caramel.core.errors import InvariantError, PlanError
from caramel.core.facts import Fusions
from caramel.core.graph_reader import read_graph
from caramel.core.names import in_replica
from caramel.modifiers.invariants import check_graph
from caramel.modifiers.pipeline import rewrite
from tests.support import convolving
from tests.support.graphs import session_config, traced_step
from tests.support.networks import network, slow_facts, tf, tf1
from tests.support.orders import step


def layers(**changed: str):
    """Two layers with a bias each; the second one's gradients are computed first."""
    ops = {
        "x": "Placeholder",
        "y": "Tanh x",
        "loss": "Mean y",
        "of_y": "TanhGrad y",
        "shape_2": "Shape y",
        "filter_2": "Conv2DBackpropFilter y shape_2 of_y",
        "bias_2": "BiasAddGrad of_y",
        "of_x": "Conv2DBackpropInput of_y",
        "shape_1": "Shape x",
        "filter_1": "Conv2DBackpropFilter x shape_1 of_x",
        "bias_1": "BiasAddGrad of_x",
        "train": "NoOp ^filter_1 ^bias_1 ^filter_2 ^bias_2",
    }
    gradients = {name: name for name in ("filter_1", "bias_1", "filter_2", "bias_2")}
    named = {f"p_{name}": op for name, op in gradients.items()}
    return step(named, **(ops | changed))


PAIRS = (("filter_2", "bias_2"), ("filter_1", "bias_1"))


def fused(job) -> tuple[tuple[str, ...], ...]:
    return fused_ops(job.graph, job.job).groups


# Which ops ---------------------------------------------------------------------------------------


def test_gradients_of_a_filter_and_a_bias_that_read_one_op_are_one():
    assert fused(layers()) == PAIRS


def test_an_op_between_keeps_them_apart():
    between = layers(tuple="Identity of_y", filter_2="Conv2DBackpropFilter y shape_2 tuple")
    assert fused(between) == PAIRS[1:]


def test_what_the_graph_itself_lets_wait_for_each_other_is_apart():
    assert fused(layers(shape_2="Shape y ^bias_2")) == PAIRS[1:]


def test_pairs_can_wait_for_each_other():
    job = layers()
    found = fused_ops(job.graph, job.job)
    around = [Edge("bias_2", "shape_1"), Edge("bias_1", "filter_2")]
    assert find_cycle(job.graph, found, around) is not None
    for edge in around:
        assert find_cycle(job.graph, found, [edge]) is None


def test_a_cycle_that_is_there_anyway_is_none_of_theirs():
    job = layers()
    cycle = [Edge("filter_1", "of_y"), Edge("bias_2", "shape_2")]
    found = fused_ops(job.graph, job.job)
    assert find_cycle(job.graph, found, cycle) is None
    assert find_cycle(job.graph, found, cycle[1:]) == ("filter_2", "shape_2", "filter_2")


def test_a_convolution_with_its_bias_matters_only_if_others_wait_for_it():
    job = step(
        {"w": "out", "b": "out"},
        padded="Pad x",
        x="Placeholder",
        filter="ReadVariableOp w",
        bias="ReadVariableOp b",
        convolved="Conv2D padded filter",
        biased="BiasAdd convolved bias",
        loss="Mean biased",
        out="Mul biased",
        train="NoOp ^out",
    )
    found = fused_ops(job.graph, job.job)
    assert found.groups == (("padded", "convolved", "biased"),)
    assert opened(job.graph, found).groups == ()
    assert find_cycle(job.graph, found, [Edge("convolved", "out")]) is None
    assert find_cycle(job.graph, found, [Edge("convolved", "bias")]) == ("padded", "bias", "padded")


@pytest.mark.parametrize(
    "changed", [{"loss": "Mean biased convolved"}, {"biased": "AddV2 convolved bias"}]
)
def test_what_is_read_twice_or_by_another_kind_of_op_is_apart(changed):
    ops = {"convolved": "Conv2D", "biased": "BiasAdd convolved bias", "loss": "Mean biased"}
    assert fused(step({"b": "loss"}, bias="ReadVariableOp b", train="NoOp ^loss", **ops))
    assert not fused(
        step({"b": "loss"}, bias="ReadVariableOp b", train="NoOp ^loss", **(ops | changed))
    )


def test_onednn_does_not_merge_float64():
    context = convolving.job(dtype=tf.float64).context()
    assert fused_ops(context.op_graph, context.job).groups == ()


def test_usual_networks_have_no_ops_that_matter():
    context = convolving.job(convolving.usual).context()
    found = fused_ops(context.op_graph, context.job)
    assert found.groups  # convolutions with their biases
    assert opened(context.op_graph, found).groups == ()


# What TensorFlow does ----------------------------------------------------------------------------


def candidates() -> dict[str, list[str]]:
    """For each case the ops of a graph that might be merged, by the names of its fetches."""
    x = tf1.placeholder(tf.float32, [2, 6, 6, 4], name="x")
    w = tf1.get_variable("w", [3, 3, 4, 4], use_resource=True)
    b = tf1.get_variable("b", [4], use_resource=True)
    alike = {"strides": [1] * 4, "padding": "SAME"}
    filters = {"filter_sizes": [3, 3, 4, 4], **alike}

    def convolved(value, padding="SAME"):
        return tf.raw_ops.Conv2D(
            input=value, filter=w.read_value(), strides=[1] * 4, padding=padding
        )

    def both(kind, shape):
        gradient, y = tf.tanh(x), tf.nn.relu(x)
        own = filters | {"filter_sizes": shape}
        return kind(input=y, out_backprop=gradient, **own), tf.raw_ops.BiasAddGrad(
            out_backprop=gradient
        )

    five, matrix = tf.reshape(x, [2, 6, 6, 2, 2]), tf.reshape(x, [-1, 4])
    of_five = tf.tanh(five)
    cube = tf.raw_ops.Conv3DBackpropFilterV2(
        input=five,
        filter_sizes=[3, 3, 3, 2, 2],
        out_backprop=of_five,
        strides=[1] * 5,
        padding="SAME",
    )
    of_matrix = tf.tanh(matrix)
    read_twice = convolved(x)
    return {
        "bias": [tf.nn.bias_add(convolved(x), b)],
        "activation": [tf.nn.relu(tf.nn.bias_add(convolved(x), b))],
        "padded": [convolved(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), "VALID")],
        "filter": list(both(tf.raw_ops.Conv2DBackpropFilter, [3, 3, 4, 4])),
        "depthwise": list(both(tf.raw_ops.DepthwiseConv2dNativeBackpropFilter, [3, 3, 4, 1])),
        "cube": [cube, tf.raw_ops.BiasAddGrad(out_backprop=of_five)],
        "matrix": [
            tf.matmul(matrix, of_matrix, transpose_a=True),
            tf.raw_ops.BiasAddGrad(out_backprop=of_matrix),
        ],
        "product": [tf.nn.relu(tf.nn.bias_add(matrix @ tf.ones([4, 4]), b))],
        "norm": [tf.nn.relu(tf1.nn.fused_batch_norm(x, b, b)[0])],
        "added": [tf.nn.relu(convolved(x) + b)],
        "twice": [tf.nn.bias_add(read_twice, b), tf.tanh(read_twice)],
        "transposed": [tf.transpose(convolved(tf.transpose(x, [0, 2, 1, 3])), [0, 2, 1, 3])],
    }  # fmt: skip


@pytest.mark.onednn
@pytest.mark.skipif(advice({}) is not None, reason="TensorFlow uses oneDNN by itself only there")
def test_exactly_what_tensorflow_merges_is_found():
    with tf.Graph().as_default() as graph:
        cases = candidates()
        initializer = tf1.global_variables_initializer()
    config = session_config()
    config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    definition = graph.as_graph_def(add_shapes=True)
    ops = read_graph(
        definition, {node.op: graph.op_def_for_type(node.op) for node in definition.node}
    )
    options = tf1.RunOptions(output_partition_graphs=True)
    with tf1.Session(graph=graph, config=config) as session:
        session.run(initializer)
        for case, fetches in cases.items():
            told = tf1.RunMetadata()
            feed = {"x:0": [[[[1.0] * 4] * 6] * 6] * 2}
            session.run(fetches, feed, options=options, run_metadata=told)
            left = {node.name for part in told.partition_graphs for node in part.node}
            names = ops.ancestors([tensor.op.name for tensor in fetches])
            merged = {name for name in names - {"x"} if name not in left}
            found = fusions_among(ops, names).groups
            assert len(merged) == sum(len(group) - 1 for group in found), (case, merged)
            assert all(merged & set(group) for group in found), (case, merged)


# Planned edges -----------------------------------------------------------------------------------


def test_every_order_is_enforced_without_an_edge_into_or_out_of_half_a_pair():
    job = layers()
    for order in permutations(["p_filter_1", "p_bias_1", "p_filter_2", "p_bias_2"]):
        try:
            edges = job.edges(*order)
        except PlanError:  # the first layer's gradients are computed from those of the second
            continue
        found = fused_ops(job.graph, job.job)
        assert find_cycle(job.graph, found, edges) is None
        for pair in PAIRS:
            before = [{edge.before for edge in edges if edge.after == name} for name in pair]
            after = [{edge.after for edge in edges if edge.before == name} for name in pair]
            assert before[0] == before[1]
            assert after[0] == after[1]


def test_what_comes_after_a_pair_waits_for_both():
    job = step(
        {"w": "filter", "b": "bias", "a": "grad_a"},
        of_y="Mul",
        shape="Shape",
        filter="Conv2DBackpropFilter of_y shape of_y",
        bias="BiasAddGrad of_y",
        grad_a="Mul",
        loss="Mean",
        train="NoOp ^filter ^bias ^grad_a",
    )
    behind = (Edge("bias", "grad_a"), Edge("filter", "grad_a"))
    assert set(job.edges("b", "w", "a")) == set(behind)
    assert set(job.edges("w", "b", "a")) == set(behind)
    assert set(job.edges("a", "b", "w")) == {Edge("grad_a", "of_y"), Edge("grad_a", "shape")}


def test_a_pair_whose_gradient_is_there_waits_as_a_whole():
    job = step(
        {"c": "of_y", "w": "filter", "b": "bias"},
        of_y="Mul",
        shape="Shape",
        filter="Conv2DBackpropFilter of_y shape of_y",
        bias="BiasAddGrad of_y ^other",
        other="Mul",
        loss="Mean",
        train="NoOp ^filter ^bias",
    )
    after = {edge.after for edge in job.edges("c", "b", "w")}
    assert after == {"shape", "other"}


@pytest.mark.onednn
@pytest.mark.skipif(advice({}) is not None, reason="TensorFlow uses oneDNN by itself only there")
def test_with_planned_edges_tensorflow_computes_pairs_as_one():
    job = convolving.job()
    context = job.context()
    model = caramel.ARModel(context, workers=2, planner="paper", analyzers=slow_facts(2))
    assert model.plan.decision.edges
    tasks = traced_step(model, job.feed).tasks
    for number in range(3):
        assert in_replica(1, convolving.gradient_of(context, f"w{number}")) in tasks
        assert in_replica(1, convolving.gradient_of(context, f"b{number}")) not in tasks


# Given edges -------------------------------------------------------------------------------------


def model_with(job, *edges: Edge, **options):
    context = job.context()
    plan = caramel.ARModel(context, workers=2).plan
    return caramel.ARModel(context, workers=2, plan=plan.deciding(edges=edges), **options)


def closing(context) -> Edge:
    """From the gradient of a bias to what only the gradient of its filter waits for."""
    return Edge(convolving.gradient_of(context, "b1"), convolving.shape_of_filter(context, "w1"))


def test_a_given_edge_that_lets_a_pair_wait_for_itself_is_refused():
    job = convolving.job()
    edge = closing(job.context())
    with pytest.raises(PlanError, match=rf"'{edge.before}' -> '{edge.after}', a step would never"):
        model_with(job, edge)
    model = caramel.ARModel(job.context(), workers=2)
    for plan in (model.plan, caramel.Plan.from_json(model.plan.to_json())):
        with pytest.raises(PlanError, match=r"\(Conv2DBackpropFilter\) with .*\(BiasAddGrad\)"):
            model.add_variant(plan.deciding(edges=(edge,)), "stuck")


def test_a_cycle_that_is_there_anyway_is_called_so():
    job = convolving.job()
    context = job.context()
    edge = Edge(convolving.gradient_of(context, "w1"), convolving.shape_of_filter(context, "w2"))
    with pytest.raises(PlanError, match="do not fit the graph: the graph has a cycle"):
        model_with(job, edge)


def test_a_convolution_that_its_own_bias_waits_for_is_refused():
    job = convolving.job(convolving.usual)
    graph = job.context().op_graph
    added = next(op for op in graph if op.kind == "BiasAdd")
    convolved, bias = (tensor.op for tensor in added.inputs)
    with pytest.raises(PlanError, match=r"\(Conv2D\) with .*\(BiasAdd\)"):
        model_with(job, Edge(convolved, bias))


def test_edges_that_end_the_workers_processes_are_refused():
    job = convolving.job(convolving.usual)
    graph = job.context().op_graph
    added = next(op for op in graph if op.kind == "BiasAdd")
    convolved = added.inputs[0].op
    twice = [Edge("w/Read/ReadVariableOp", name) for name in (convolved, added.name)]
    with pytest.raises(PlanError, match=f"leave out the edges to '{added.name}'"):
        model_with(job, *twice)


def test_an_edge_that_keeps_a_pair_apart_is_told(caplog):
    job = convolving.job()
    context = job.context()
    bias, weights = (convolving.gradient_of(context, name) for name in ("b1", "w1"))
    model_with(job, Edge(bias, weights))
    assert f"'{bias}' -> '{weights}', keeps TensorFlow from computing" in caplog.text
    assert "may make steps longer" in caplog.text


def test_planned_edges_keep_no_pair_apart(caplog):
    context = convolving.job().context()
    model = caramel.ARModel(context, workers=2, planner="paper", analyzers=slow_facts(2))
    assert model.plan.decision.edges
    model.add_variant(model.plan, "again")
    assert "keeps TensorFlow" not in caplog.text


def test_the_check_of_graphs_sees_the_cycle():
    context = convolving.job().context()
    model = caramel.ARModel(context, workers=2)
    edge = closing(context)
    plan = model.plan.deciding(edges=(edge,))
    check_graph(rewrite(context.graph_def, model.plan).graph_def, model.plan)
    with pytest.raises(InvariantError, match=f"as one: .*{in_replica(0, edge.after)}.*serialize"):
        rewrite(context.graph_def, plan, check=check_graph)


def test_groups_that_nobody_finds_change_no_plan(monkeypatch):
    def planned():
        context = network("adam", model=convolving.usual, dtype=tf.float32).context()
        return caramel.ARModel(context, workers=2, planner="paper", analyzers=slow_facts(2)).plan

    before = planned()
    monkeypatch.setattr("caramel.analyzers.units.fusions_among", lambda *_: Fusions())
    assert planned() == before
    assert before.decision.edges
