"""Every invariant of `check_graph` has a graph that breaks it, and an error that names the node."""

from __future__ import annotations

import pytest

import caramel
from caramel.core.errors import InvariantError
from caramel.modifiers.invariants import check_graph
from caramel.modifiers.pipeline import MODIFIERS, rewrite
from caramel.modifiers.replicate import replicate
from tests.support import networks
from tests.support.networks import network, tf, tf1


@pytest.fixture(scope="module")
def model() -> caramel.ARModel:
    return caramel.ARModel(network().context(), workers=2)


@pytest.fixture
def looping(control_flow) -> caramel.ARModel:
    """A model with a v1 loop in each replica."""
    control_flow(False)

    def loop(x):
        w = networks.parameter("w", [networks.FEATURES, networks.FEATURES])
        _, h = tf.while_loop(lambda i, h: i < 2, lambda i, h: (i + 1, tf.tanh(h @ w)), [0, x])
        return h @ networks.parameter("v", [networks.FEATURES, networks.CLASSES])

    return caramel.ARModel(network(model=loop).context(), workers=2)


@pytest.fixture(scope="module")
def calling() -> caramel.ARModel:
    """A model that calls a library function."""

    @tf.function
    def hidden(x):
        return tf.tanh(x)

    return caramel.ARModel(
        network(model=lambda x: hidden(networks.perceptron(x))).context(), workers=2
    )


def assert_broken(model: caramel.ARModel, change, message: str) -> None:
    """`check_graph` accepts the model's graph, and refuses it after `change`."""
    graph_def = model.graph.as_graph_def()
    check_graph(graph_def, model.plan)
    change(graph_def, {node.name: node for node in graph_def.node})
    with pytest.raises(InvariantError, match=message):
        check_graph(graph_def, model.plan)


# 1. Names


def test_two_nodes_of_one_name(model):
    def change(graph_def, nodes):
        graph_def.node.add().CopyFrom(nodes["worker_1/Tanh"])

    assert_broken(model, change, "several nodes are called 'worker_1/Tanh'")


# 2. Sources


@pytest.mark.parametrize("source", ["worker_1/nothing", "worker_1/nothing:1", "^worker_1/nothing"])
def test_a_source_that_does_not_exist(model, source):
    def change(graph_def, nodes):
        nodes["worker_1/Tanh"].input.append(source)

    assert_broken(model, change, "'worker_1/Tanh' reads 'worker_1/nothing', which does not exist")


def test_a_colocation_with_a_missing_node(model):
    def change(graph_def, nodes):
        nodes["worker_1/Tanh"].attr["_class"].list.s.append(b"loc:@worker_1/nothing")

    assert_broken(model, change, "'worker_1/Tanh' is colocated with 'worker_1/nothing', which is")


# 3. Cycles


def test_a_cycle(model):
    def change(graph_def, nodes):
        nodes["worker_1/BiasAdd"].input.append("^worker_1/Tanh")

    assert_broken(model, change, "cycle: .*worker_1/Tanh")


# 4. Devices


@pytest.mark.parametrize("device", ["", "/device:CPU:0", "/job:worker"])
def test_a_node_without_a_task(model, device):
    def change(graph_def, nodes):
        nodes["worker_1/Tanh"].device = device

    assert_broken(model, change, rf"'worker_1/Tanh' \(Tanh\) has no task: device '{device}'")


def test_a_node_on_the_task_of_another_worker(model):
    def change(graph_def, nodes):
        nodes["worker_1/Tanh"].device = "/job:worker/task:0"

    assert_broken(model, change, "'worker_1/Tanh' is on /job:worker/task:0 but belongs to worker 1")


@pytest.mark.parametrize("name", ["stray", "worker_7/stray", "caramel/stray"])
def test_a_node_that_belongs_to_no_worker(model, name):
    def change(graph_def, nodes):
        graph_def.node.add(name=name, op="NoOp", device="/job:worker/task:0")

    assert_broken(model, change, f"'{name}' is on /job:worker/task:0 but belongs to no worker")


# 5. and 6. Loops


def test_a_control_edge_out_of_a_loop(looping):
    def change(graph_def, nodes):
        nodes["worker_0/matmul"].input.append("^worker_0/while/Tanh")

    assert_broken(
        looping,
        change,
        "'worker_0/while/Tanh', which is in the loop 'worker_0/while/while_context'",
    )


def test_a_control_edge_into_a_loop(looping):
    def change(graph_def, nodes):
        nodes["worker_0/while/Tanh"].input.append("^worker_0/x")

    assert_broken(looping, change, "'worker_0/while/Tanh' waits for .*'worker_0/x', which is in no")


def test_a_data_edge_into_a_loop(looping):
    def change(graph_def, nodes):
        nodes["worker_0/while/matmul"].input[1] = "worker_0/x"

    assert_broken(looping, change, "'worker_0/while/matmul' waits for .*'worker_0/x', which is in")


def test_loops_of_two_workers_with_one_name(looping):
    def change(graph_def, nodes):
        for node in nodes.values():
            if node.op == "Enter":
                node.attr["frame_name"].s = b"while_context"

    assert_broken(looping, change, "'worker_1/.*' enters the loop 'while_context' of worker 0")


# 7. Colocation


def test_a_colocation_over_two_tasks(model):
    def change(graph_def, nodes):
        nodes["worker_1/Tanh"].attr["_class"].list.s.append(b"loc:@worker_0/Tanh")

    assert_broken(
        model, change, "'worker_1/Tanh' on .*task:1.* is colocated with 'worker_0/Tanh' on .*task:0"
    )


# 8. Functions


def test_a_function_that_is_missing(calling):
    def change(graph_def, nodes):
        del graph_def.library.function[:]

    assert_broken(
        calling, change, "PartitionedCall' calls the function '.*hidden_.*', which is missing"
    )


def test_a_function_that_names_a_task(calling):
    def change(graph_def, nodes):
        function = graph_def.library.function[0]
        function.node_def[0].device = "/job:worker/task:0"

    assert_broken(calling, change, "in the function '.*', which all workers share, is on")


# The loop of modifiers


def test_the_error_names_the_modifiers_that_ran_before(model):
    def lose_a_device(graph_def, plan):
        broken = tf1.GraphDef()
        broken.CopyFrom(graph_def)
        next(node for node in broken.node if node.name == "worker_1/Tanh").device = ""
        return broken

    with pytest.raises(
        InvariantError, match=r"'worker_1/Tanh' .* \(after replicate -> lose_a_device\)"
    ):
        rewrite(
            model.context.graph_def,
            model.plan,
            modifiers=(replicate, lose_a_device, *MODIFIERS[1:]),
            check=check_graph,
        )


def test_it_is_named_too_if_a_later_modifier_fails_for_it(model):
    def lose_a_node(graph_def, plan):
        broken = tf1.GraphDef()
        broken.CopyFrom(graph_def)
        broken.node.remove(next(node for node in broken.node if node.name == "worker_1/Tanh"))
        return broken

    def need_it(graph_def, plan):
        return {node.name: graph_def for node in graph_def.node}["worker_1/Tanh"]

    modifiers = (replicate, lose_a_node, need_it)
    with pytest.raises(KeyError, match="worker_1/Tanh"):
        rewrite(model.context.graph_def, model.plan, modifiers=modifiers)
    with pytest.raises(InvariantError, match=r"\(after replicate -> lose_a_node\)"):
        rewrite(model.context.graph_def, model.plan, modifiers=modifiers, check=check_graph)


def test_no_modifier_changes_its_input(model):
    graph_def = model.context.graph_def
    for modifier in MODIFIERS:
        before = graph_def.SerializeToString(deterministic=True)
        changed = modifier(graph_def, model.plan)
        assert graph_def.SerializeToString(deterministic=True) == before, modifier.__name__
        graph_def = changed
