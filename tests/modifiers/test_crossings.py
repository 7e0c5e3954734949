"""What crosses between tasks, and what waits for what."""

from __future__ import annotations

import tensorflow as tf

from caramel.core.names import TensorRef
from caramel.modifiers.crossings import Wiring

tf1 = tf.compat.v1
A, B = "/job:worker/task:0", "/job:worker/task:1"


def wiring(*nodes):
    """A graph of (name, task, inputs) nodes that put out two vectors of three floats."""
    graph_def = tf1.GraphDef()
    for name, task, inputs in nodes:
        node = graph_def.node.add(name=name, op="IdentityN", input=inputs)
        node.device = f"{task}/device:CPU:0"
        node.attr["T"].list.type.extend([tf.float32.as_datatype_enum] * 2)
        for _ in range(2):
            node.attr["_output_shapes"].list.shape.add().dim.add(size=3)
    return Wiring(graph_def, tf.Graph().op_def_for_type)


def test_a_tensor_is_sent_to_a_task_once():
    graph = wiring(("a", A, []), ("b", B, ["a:1"]), ("c", B, ["a:1", "a"]), ("d", A, ["a", "c"]))
    found = [(c.tensor, c.consumer, c.pair, c.bytes) for c in graph.crossings()]
    assert found == [
        (TensorRef("a", 1), "b", (A, B), 12),
        (TensorRef("a", 0), "c", (A, B), 12),
        (TensorRef("c", 0), "d", (B, A), 12),
    ]
    only = graph.crossings(["d"])
    assert [c.source for c in only] == ["c"]


def test_each_reader_of_what_crosses_is_an_edge():
    graph = wiring(("a", A, []), ("b", B, ["a:1"]), ("c", B, ["a:1", "a"]), ("d", A, ["a", "c"]))
    edges = [(str(edge.tensor), edge.consumer) for edge in graph.edges()]
    assert edges == [("a:1", "b"), ("a:1", "c"), ("a:0", "c"), ("c:0", "d")]


def test_a_control_edge_crosses_for_each_that_waits():
    graph = wiring(("a", A, []), ("b", B, ["^a"]), ("c", B, ["^a"]))
    found = [(c.source, c.tensor, c.consumer, c.bytes) for c in graph.crossings()]
    assert found == [("a", None, "b", 0), ("a", None, "c", 0)]
    assert str(graph.crossings()[0]) == "'^a' -> 'b' (0 bytes)"


def test_nothing_crosses_within_a_task():
    assert wiring(("a", A, []), ("b", A, ["a", "^a"])).crossings() == []


def test_of_a_kind_that_nobody_knows_the_size_is_open():
    graph_def = tf1.GraphDef()
    graph_def.node.add(name="a", op="mine", device=A)
    graph_def.node.add(name="b", op="mine", device=B, input=["a:2"])
    (crossing,) = Wiring(graph_def, lambda kind: None).crossings()
    assert crossing.bytes is None


def test_ancestors_are_followed_by_data_and_control():
    graph = wiring(("a", A, []), ("b", B, ["^a"]), ("c", B, ["b:1"]), ("d", B, ["a"]))
    assert graph.ancestors(["c"]) == {"a", "b", "c"}
    assert graph.ancestors([]) == set()
