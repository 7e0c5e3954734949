"""The op graph: what it reads from a GraphDef, without TensorFlow's own classes."""

from __future__ import annotations

import pytest

from caramel.core.dtypes import dtype_bytes, dtype_name, dtype_number
from caramel.core.errors import InvariantError
from caramel.core.graph import ARGUMENT, OpGraph, TensorSpec
from caramel.core.graph_reader import called_functions, read_graph
from caramel.core.names import TensorRef
from tests.support import networks
from tests.support.networks import tf, tf1


def read(graph: tf.Graph) -> OpGraph:
    definitions = {op.type: op.op_def for op in graph.get_operations()}
    return read_graph(graph.as_graph_def(add_shapes=True), definitions)


def of_nodes(*nodes: tuple[str, str, list[str]]) -> OpGraph:
    """A graph of (name, kind, inputs), without op definitions."""
    graph_def = tf1.GraphDef()
    for name, kind, inputs in nodes:
        graph_def.node.add(name=name, op=kind).input.extend(inputs)
    return read_graph(graph_def, {})


# Reading ----------------------------------------------------------------------------------------


def test_names_of_dtypes_are_tensorflows():
    for number in [*range(1, 24)]:
        dtype = tf.as_dtype(number)
        assert dtype_name(number) == dtype.name
        assert dtype_number(dtype.name) == number
        if dtype.name not in ("string", "resource", "variant"):
            assert dtype_bytes(dtype.name) == dtype.size, dtype.name
    assert dtype_name(tf.as_dtype(101).as_datatype_enum) == "float32_ref"
    assert dtype_name(99) == "unknown"


def test_an_op_knows_its_inputs_device_and_outputs():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [3, 4], name="x")
        with tf.device("/cpu:0"), tf.control_dependencies([tf.no_op("before")]):
            tf.matmul(x, x, transpose_b=True, name="product")
    product = read(graph)["product"]
    assert product.kind == "MatMul"
    assert product.device == "/device:CPU:0"
    assert product.inputs == (TensorRef("x"), TensorRef("x"))
    assert product.control_inputs == ("before",)
    assert product.outputs == (TensorSpec("float32", (3, 3)),)
    assert product.output_bytes == (36,)
    assert list(product.sources) == ["x", "x", "before"]


def test_several_outputs_of_one_op():
    with tf.Graph().as_default() as graph:
        tf.split(tf.zeros([6], tf.float64), [1, 2, 3], name="pieces")
        tf.unstack(tf.zeros([2, 5], tf.float16), name="rows")
        tf.unique(tf.constant([1, 1, 2]), name="unique")
    ops = read(graph)
    assert ops["pieces"].output_bytes == (8, 16, 24)
    assert [spec.dtype for spec in ops["rows"].outputs] == ["float16", "float16"]
    assert ops["unique"].outputs == (TensorSpec("int32", (None,)), TensorSpec("int32", (3,)))
    assert ops.spec(TensorRef("pieces", 2)) == TensorSpec("float64", (3,))
    assert ops.spec(TensorRef("pieces", 9)) == TensorSpec("unknown", None)


def test_outputs_with_a_list_of_types():
    with tf.Graph().as_default() as graph:
        tf1.py_func(lambda: 0, [], [tf.int64, tf.string, tf.bool], name="python")
        tf.identity_n([tf.zeros([2]), tf.zeros([], tf.int8)], name="both")
    ops = read(graph)
    assert [spec.dtype for spec in ops["python"].outputs] == ["int64", "string", "bool"]
    assert ops["python"].output_bytes == (None, None, None)
    assert ops["python"].stateful
    assert not ops["both"].stateful
    assert ops["both"].output_bytes == (8, 1)


@pytest.mark.parametrize(
    ("shape", "elements", "size"),
    [(None, None, None), ((None, 3), None, None), ((), 1, 4), ((0, 5), 0, 0), ((2, 3), 6, 24)],
)
def test_sizes_may_be_unknown(shape, elements, size):
    with tf.Graph().as_default() as graph:
        tf1.placeholder(tf.float32, shape, name="x")
    spec = read(graph)["x"].outputs[0]
    assert spec.shape == shape
    assert spec.elements == elements
    assert spec.bytes == size


def test_handles_and_strings_have_no_size():
    with tf.Graph().as_default() as graph:
        tf1.get_variable("v", [4], use_resource=True)
        tf.constant("text", name="text")
    ops = read(graph)
    assert ops["v"].outputs[0].dtype == "resource"
    assert ops["v"].output_bytes == ops["text"].output_bytes == (None,)


def test_a_kind_without_definition_has_no_known_outputs():
    graph = of_nodes(("a", "SomethingNew", []))
    assert graph["a"].outputs == ()
    assert graph.spec(TensorRef("a")) == TensorSpec("unknown", None)


def test_functions_and_what_they_call(control_flow):
    control_flow(True)

    @tf.function
    def inner(x):
        return tf.tanh(x)

    @tf.function
    def outer(x):
        return inner(x) + tf.cast(tf.constant(7), x.dtype)

    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [2], name="x")
        outer(x)
        tf.cond(tf.reduce_sum(x) > 0, lambda: x, lambda: -x, name="choice")
    ops = read(graph)
    (call,) = [op for op in ops if "outer" in "".join(op.functions)]
    function = ops.functions[call.functions[0]]
    assert function.arguments == ("x",)
    (nested,) = [op for op in function.body if op.functions]
    called = ops.functions[nested.functions[0]].body
    assert [op.kind for op in called][:2] == [ARGUMENT, "Tanh"]
    assert nested.inputs == (TensorRef("x"),)
    assert 7 in function.body.constants.values()
    choice = next(op for op in ops if op.kind in ("If", "StatelessIf"))
    assert len(choice.functions) == 2
    assert set(choice.functions) <= set(ops.functions)
    node = next(n for n in graph.as_graph_def().node if n.name == choice.name)
    assert tuple(called_functions(node)) == choice.functions


def test_constants_that_are_one_integer():
    with tf.Graph().as_default() as graph:
        tf.constant(3, name="three")
        tf.constant(0, tf.int64, name="zero")
        tf.constant([3], name="vector")
        tf.constant(3.0, name="float")
    assert read(graph).constants == {"three": 3, "zero": 0}


def test_reading_leaves_the_graph_def_alone():
    graph_def = networks.network("adam").graph.as_graph_def(add_shapes=True)
    before = graph_def.SerializeToString(deterministic=True)
    read_graph(graph_def, {})
    assert graph_def.SerializeToString(deterministic=True) == before


# Walking ----------------------------------------------------------------------------------------

DIAMOND = (
    ("source", "Const", []),
    ("left", "Neg", ["source"]),
    ("right", "Neg", ["source", "^left"]),
    ("both", "AddV2", ["left", "right:0"]),
    ("alone", "NoOp", []),
)


def test_the_graph_is_a_mapping_in_the_order_of_definition():
    graph = of_nodes(*DIAMOND)
    assert [op.name for op in graph] == ["source", "left", "right", "both", "alone"]
    assert len(graph) == 5
    assert "both" in graph
    assert "neither" not in graph


def test_ancestors_follow_data_and_control():
    graph = of_nodes(*DIAMOND)
    assert graph.ancestors(["both"]) == {"source", "left", "right", "both"}
    assert graph.ancestors(["right"]) == {"source", "left", "right"}
    assert graph.ancestors(["both"], stop=frozenset({"left", "right"})) == {"left", "right", "both"}
    assert graph.ancestors([]) == set()


def test_consumers_are_listed_once_each():
    graph = of_nodes(("a", "Const", []), ("b", "AddV2", ["a", "a", "^a"]), ("c", "NoOp", ["^a"]))
    assert graph.consumers == {"a": ("b", "c"), "b": (), "c": ()}


def test_a_missing_source_is_named():
    graph = of_nodes(("a", "Neg", ["nowhere"]))
    with pytest.raises(InvariantError, match="'a' reads 'nowhere', which does not exist"):
        _ = graph.consumers


def test_topological_order_breaks_ties_by_definition():
    graph = of_nodes(
        ("d", "AddV2", ["c", "a"]), ("c", "Neg", ["b"]), ("b", "Const", []), ("a", "Const", [])
    )
    assert graph.topological_order() == ("b", "c", "a", "d")


def test_topological_order_of_a_loop(control_flow):
    control_flow(False)
    with tf.Graph().as_default() as tf_graph:
        tf.while_loop(lambda i, j: i < 3, lambda i, j: (i + 1, j * 2), [0, 1])
    graph = read(tf_graph)
    order = graph.topological_order()
    place = {name: index for index, name in enumerate(order)}
    assert sorted(order) == sorted(graph.ops)
    for op in graph:
        for source in op.sources:
            assert place[source] < place[op.name] or graph[source].kind == "NextIteration"


def test_a_cycle_is_named_from_op_to_op():
    graph = of_nodes(
        ("start", "Const", []),
        ("a", "AddV2", ["start", "c"]),
        ("b", "Neg", ["a"]),
        ("c", "Neg", ["b"]),
        ("after", "Neg", ["c"]),
    )
    with pytest.raises(InvariantError, match="has a cycle: a -> b -> c -> a"):
        graph.topological_order()


def test_a_cycle_of_control_edges_is_named():
    with pytest.raises(InvariantError, match="cycle: a -> b -> a"):
        of_nodes(("a", "NoOp", ["^b"]), ("b", "NoOp", ["^a"])).topological_order()
