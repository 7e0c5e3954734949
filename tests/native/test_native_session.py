"""Sessions by TensorFlow's C API give and take what `tf.compat.v1.Session` does."""

from __future__ import annotations

import gc
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from caramel.cluster.servers import embedded_servers
from caramel.core.errors import GraphError, SessionError
from caramel.core.names import TensorRef
from caramel.native import session as c_api
from caramel.native.session import GraphCall, GraphSession
from caramel.runtime.execution.distributed_graph import DistributedGraph
from tests.support.networks import tf, tf1

LONG = "a string that does not fit into the 24 bytes of its place, " * 3

VALUES = {
    "float32": np.arange(12, dtype=np.float32).reshape(3, 4),
    "float64": np.array(1.5),
    "half": np.array([0.5, -2], np.float16),
    "bfloat16": np.array([[1.5], [2.5]], ml_dtypes.bfloat16),
    "int8": np.array([-1, 2], np.int8),
    "int64": np.array(2**40),
    "uint64": np.array([2**63], np.uint64),
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j], np.complex64),
    "string": np.array([[b"", b"zero \0 zero"], [LONG.encode(), "ö".encode()]], object),
}


@pytest.fixture(name="opened")
def fixture_opened():
    """Opens sessions; they are closed in the end."""
    sessions = []

    def opened(build=lambda: None):
        graph = tf.Graph()
        with graph.as_default():
            build()
        sessions.append(GraphSession(embedded_servers(1).target, tf1.ConfigProto()))
        sessions[-1].extend(graph.as_graph_def().SerializeToString())
        return sessions[-1]

    yield opened
    for session in sessions:
        session.close()


def echo(dtype):
    tf.identity(tf1.placeholder(dtype, name="x"), name="y")


def same(session):
    return GraphCall(session, [TensorRef("y")], [], [TensorRef("x")])


@pytest.mark.parametrize("dtype", VALUES)
def test_values_come_back_as_they_were_fed(dtype, opened):
    value = VALUES[dtype]
    (got,) = same(opened(lambda: echo(dtype)))([value])
    np.testing.assert_array_equal(got, value)
    assert got.dtype == value.dtype
    assert got.shape == value.shape


@pytest.mark.parametrize(("dtype", "empty"), [("float32", (0, 3)), ("string", (2, 0))])
def test_empty_values_keep_their_shape(dtype, empty, opened):
    (got,) = same(opened(lambda: echo(dtype)))(
        [np.zeros(empty, object if dtype == "string" else dtype)]
    )
    assert got.shape == empty


def test_a_scalar_is_one_of_numpys_and_a_string_is_bytes(opened):
    (number,) = same(opened(lambda: echo("float32")))([2])
    assert isinstance(number, np.float32)
    assert number == 2
    assert same(opened(lambda: echo("string")))(["text"]) == [b"text"]


def test_what_is_not_contiguous_is_fed_in_its_order(opened):
    value = np.arange(12.0).reshape(3, 4).T[::2]
    (got,) = same(opened(lambda: echo("float64")))([value])
    np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("dtype", ["float32", "string"])
def test_what_was_fed_may_be_changed_though_the_graph_keeps_it(dtype, opened):
    value = VALUES[dtype].copy()

    def build():
        with tf1.variable_scope("", use_resource=True):
            variable = tf1.get_variable(f"of_{dtype}", value.shape, dtype, trainable=False)
        variable.assign(tf1.placeholder(dtype, value.shape, name="x"), name="set")
        tf.identity(variable, name="y")

    session = opened(build)
    GraphCall(session, [], ["set"], [TensorRef("x")])([value])
    value[:] = value[0, 0]
    gc.collect()
    (kept,) = GraphCall(session, [TensorRef("y")], [], [])()
    np.testing.assert_array_equal(kept, VALUES[dtype])


def test_the_error_of_an_op_names_it_and_has_its_class(opened):
    def build():
        x = tf1.placeholder("float32", name="x")
        tf.group(tf.debugging.Assert(x > 0, ["not positive"]), name="check")
        tf.identity(tf.reshape(x, [3, 3]), name="y")

    session = opened(build)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Reshape"):
        same(session)([np.zeros(4)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="not positive"):
        GraphCall(session, [], ["check"], [TensorRef("x")])([-1])


def test_names_that_the_graph_lacks_are_told(opened):
    session = opened(lambda: echo("float32"))
    with pytest.raises(SessionError, match="no op 'z'"):
        GraphCall(session, [], ["z"], [])
    with pytest.raises(SessionError, match="no tensor 'y:1'"):
        GraphCall(session, [TensorRef("y", 1)], [], [])


def test_a_graph_grows_under_a_prefix_and_what_it_had_stays_as_it_was(opened):
    session = opened(lambda: echo("float32"))
    first = same(session)
    assert first([1]) == [1]
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder("float32", name="x")
        tf.add(x, 1, name="y")
    session.extend(graph.as_graph_def().SerializeToString(), "more")
    session.place()
    second = GraphCall(session, [TensorRef("more/y")], [], [TensorRef("more/x")])
    assert (first([1]), second([1])) == ([1], [2])


def test_a_graph_that_is_refused_leaves_the_session_as_it_was(opened):
    session = opened(lambda: echo("float32"))
    broken = tf1.GraphDef(node=[{"name": "broken", "op": "Identity", "input": ["nothing"]}])
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing"):
        session.extend(broken.SerializeToString())
    assert same(session)([1]) == [1]


def test_a_traced_call_tells_what_ran(opened):
    session = opened(lambda: echo("float32"))
    metadata = tf1.RunMetadata()
    assert same(session)([1], metadata) == [1]
    nodes = {node.node_name for d in metadata.step_stats.dev_stats for node in d.node_stats}
    assert "y" in nodes


def test_calls_of_two_threads_run_at_the_same_time(opened):
    """Each waits for what the other one gives."""

    def build():
        for own in "ab":
            queue = tf.queue.FIFOQueue(1, tf.int32, shapes=[()], shared_name=own, name=own)
            tf.group(queue.enqueue(7), name=f"give_{own}")
            tf.identity(queue.dequeue(), name=f"take_{own}")

    session = opened(build)
    taken = {}

    def take_then_give(take, give):
        taken[take] = GraphCall(session, [TensorRef(f"take_{take}")], [], [])()
        GraphCall(session, [], [f"give_{give}"], [])()

    thread = threading.Thread(target=take_then_give, args=("a", "b"))
    thread.start()
    GraphCall(session, [], ["give_a"], [])()
    taken["b"] = GraphCall(session, [TensorRef("take_b")], [], [])()
    thread.join()
    assert taken == {"a": [7], "b": [7]}


def test_a_session_that_is_closed_again_stays_closed(opened):
    session = opened()
    session.close()
    session.close()


def waiting():
    """An op that waits for ever."""
    queue = tf.queue.FIFOQueue(1, tf.int32, shapes=[()])
    tf.identity(queue.dequeue(), name="y")


def test_closing_cancels_the_calls_under_way_and_waits_for_them(opened, monkeypatch):
    session, events = opened(waiting), []
    call, library = GraphCall(session, [TensorRef("y")], [], []), c_api._library()
    delete, run = library.TF_DeleteSession, library.TF_SessionRun

    def slow(*given):
        run(*given)
        time.sleep(0.5)
        events.append("returned")

    monkeypatch.setattr(library, "TF_SessionRun", slow)
    monkeypatch.setattr(
        library, "TF_DeleteSession", lambda *given: events.append("deleted") or delete(*given)
    )

    def make():
        with pytest.raises(tf.errors.CancelledError):
            call()
        events.append("cancelled")

    thread = threading.Thread(target=make)
    thread.start()
    time.sleep(0.5)
    session.close()
    thread.join()
    assert events.index("returned") < events.index("deleted")
    assert "cancelled" in events


def test_a_closed_session_is_not_used_any_more(opened):
    session = opened(lambda: echo("float32"))
    call = same(session)
    session.close()
    for use in (lambda: call([1]), lambda: same(session), session.devices, session.place):
        with pytest.raises(SessionError, match="the session is closed"):
            use()


def test_a_target_that_no_session_serves_is_refused():
    with pytest.raises(tf.errors.NotFoundError, match="nowhere"):
        GraphSession("nowhere://", tf1.ConfigProto())


def test_a_graph_that_no_message_can_carry_is_refused(monkeypatch):
    graph = DistributedGraph()
    graph.add(tf1.GraphDef(node=[{"name": "small", "op": "NoOp"}]))
    monkeypatch.setattr("caramel.runtime.execution.distributed_graph._MOST_BYTES", 100)
    with pytest.raises(GraphError, match="can send 100 B; every worker has a copy"):
        graph.add(tf1.GraphDef(node=[{"name": "x" * 100, "op": "NoOp"}]), 1)
    assert graph.size == (1, len(graph.parts[0].graph_def))
    assert "small" in graph


def test_a_session_that_is_left_over_when_modules_are_gone_says_nothing(opened, monkeypatch):
    session = opened()
    session.close()
    monkeypatch.setattr(c_api, "sys", None)
    session.__del__()
