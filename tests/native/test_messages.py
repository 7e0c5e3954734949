"""TensorFlow does not tell of each server that starts, each session that opens, and each step."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from caramel.cluster.servers import embedded_servers
from caramel.native import messages
from caramel.native.session import GraphSession
from tests.support.commands import ROOT

PROGRAM = """
import sys
import tensorflow as tf
import caramel

def trained(printed, stream, steps=0):
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        w = tf.compat.v1.get_variable("w", [], use_resource=True)
        with tf.control_dependencies([tf.print(printed, output_stream=stream)]):
            loss = tf.reduce_mean(tf.square(w - x))
        train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    print("begins:", printed, file=sys.stderr, flush=True)
    with caramel.ARModel(context, workers=2).session() as session:
        session.trace(2, {"x:0": [1.0, 2.0]})
        for _ in range(steps):
            session.step({"x:0": [1.0, 2.0]})

trained("an error", sys.stderr, steps=300)
trained("to the log", tf.compat.v1.logging.WARN)
"""
NEWS = (
    *("Started server", "ListDevices", "cuInit", "Scanning", "MLIR", "Coordination", "GPU trace"),
    "endezvous",  # of each step in which a server was faster than its own threads
)


def test_a_program_shows_what_it_writes_itself_and_no_news_of_servers_sessions_and_steps():
    environment = {each: os.environ[each] for each in os.environ if each != messages.LOG_LEVEL}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    loading, own, logged = re.split("begins: .*\n", done.stderr)
    assert "\nI0000" in loading  # the level was TensorFlow's own: all is written
    assert "an error" in own
    assert [news for news in NEWS if news in own] == []
    assert "to the log" in logged  # nothing is hidden that an op may have written


@pytest.fixture
def setting(monkeypatch):
    monkeypatch.delenv(messages.LOG_LEVEL, raising=False)
    found = messages._setting()
    assert found is not None, "this TensorFlow has no such functions: nothing is hidden"
    before = found.level()
    found.set_level(0)
    monkeypatch.setattr(messages, "_graphs_write", False)
    yield found
    found.set_level(before)


def test_the_highest_severity_of_all_contexts_counts_and_the_first_is_put_back(setting):
    first, second = messages.at_least(messages.FATAL), messages.at_least(messages.ERRORS)
    first.__enter__()
    second.__enter__()
    assert setting.level() == messages.FATAL
    first.__exit__(None, None, None)  # as of two threads
    assert setting.level() == messages.ERRORS
    second.__exit__(None, None, None)
    assert setting.level() == 0


def test_it_is_never_lowered(setting):
    setting.set_level(messages.FATAL)
    with messages.at_least(messages.ERRORS):
        assert setting.level() == messages.FATAL
    assert setting.level() == messages.FATAL


def test_what_the_user_has_set_holds(setting, monkeypatch):
    monkeypatch.setenv(messages.LOG_LEVEL, "0")
    with messages.at_least(messages.FATAL):
        assert setting.level() == 0


def test_another_library_changes_nothing(setting, monkeypatch):
    monkeypatch.setattr(messages, "_setting", lambda: None)
    with messages.at_least(messages.FATAL):
        assert setting.level() == 0


def opened_session():
    return GraphSession(embedded_servers(1).target, tf.compat.v1.ConfigProto())


def test_steps_of_this_process_are_not_told_of_until_all_sessions_are_closed(setting):
    first, second = opened_session(), opened_session()
    assert setting.level() == messages.ERRORS
    first.close()
    assert setting.level() == messages.ERRORS
    second.close()
    second.close()
    assert setting.level() == 0


def test_an_op_that_may_write_to_the_log_is_heard_in_all_sessions_from_then_on(setting):
    with tf.Graph().as_default() as graph:
        tf.print("to the log", output_stream=tf.compat.v1.logging.WARN)
    first, second = opened_session(), opened_session()
    second.extend(graph.as_graph_def().SerializeToString())
    assert setting.level() == 0
    with messages.at_least(messages.FATAL):
        assert setting.level() == messages.FATAL
    first.close()
    second.close()
    opened_session().close()
    assert setting.level() == 0


def test_a_process_without_servers_of_its_own_hides_no_warnings(setting, monkeypatch):
    monkeypatch.setattr(messages, "_serves", False)
    with messages.of_no_cleanup():
        assert setting.level() == 0
