"""SIGTERM: the step is finished, a checkpoint is written, the program ends with code 143."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import caramel
from caramel.core.errors import PlanError
from tests.support.networks import Network, inputs, network, parameter, tf, tf1


def told_to_end(value):
    """As if the machine were to go away in the middle of a step."""
    os.kill(os.getpid(), signal.SIGTERM)
    return value


def test_the_step_is_finished_and_saved_and_handlers_are_put_back(tmp_path, caplog):
    with tf.Graph().as_default() as graph:
        x, _, feed = inputs(8)
        told = tf1.placeholder_with_default(False, [], name="told")
        w = parameter("w", [x.shape[1], 1])
        loss = tf.reduce_mean((x @ w) ** 2)
        loss = tf.cond(
            told,
            lambda: loss + tf.numpy_function(told_to_end, [0 * loss], loss.dtype),
            lambda: loss,
        )
        loss = tf.reshape(loss, [])
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    del feed
    batch = {"x:0": np.random.RandomState(0).rand(8, int(x.shape[1]))}
    context = Network(graph, train_op, loss).context()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    model = caramel.ARModel(context, 1)
    with model.session() as session:
        start = session.variables()
        for _ in range(2):
            session.step(batch)
        twice = session.variables()
    with model.session(save_on_sigterm=tmp_path) as session:
        session.assign(start)
        session.step(batch)
        with pytest.raises(SystemExit) as ended:
            session.step({**batch, "told:0": True})
        assert ended.value.code == 143
        assert session.checkpoints == (str(tmp_path / "preempted"),)
        session.restore(tmp_path)
        for name, value in session.variables().items():
            np.testing.assert_allclose(value, twice[name], rtol=1e-12)
        assert session.steps_done == 2
    assert f"checkpoint '{tmp_path / 'preempted'}' is written" in caplog.text
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_program_is_called_in_place_of_the_exit(tmp_path):
    called = []
    before = signal.signal(signal.SIGTERM, lambda *_: called.append("mine"))
    try:
        model = caramel.ARModel(network().context(), 1)
        with model.session(save_on_sigterm=tmp_path / "m") as session:
            os.kill(os.getpid(), signal.SIGTERM)
            assert (called, session.checkpoints) == (["mine"], (str(tmp_path / "m"),))
        os.kill(os.getpid(), signal.SIGTERM)
        assert called == ["mine", "mine"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_directory_may_be_made_later_and_that_of_resume_need_not_be_there(tmp_path):
    model, before = caramel.ARModel(network().context(), 1), signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        for name in ("resumed", "saved"):
            path = tmp_path / name
            resume = path if name == "resumed" else None
            with model.session(resume=resume, save_on_sigterm=path) as session:
                if resume is None:
                    session.save(path / "model")
                os.kill(os.getpid(), signal.SIGTERM)
                assert session.checkpoints[-1] == str(path / "preempted")
        with model.session(resume=tmp_path / "resumed") as session:
            assert session.resumed == str(tmp_path / "resumed" / "preempted")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_where_signals_cannot_be_handled_it_is_refused(tmp_path):
    model, errors = caramel.ARModel(network().context(), 1), []

    def opened():
        try:
            model.session(save_on_sigterm=tmp_path)
        except PlanError as error:
            errors.append(str(error))

    thread = threading.Thread(target=opened)
    thread.start()
    thread.join()
    assert "works only where the session is opened in the main thread" in errors[0]
    for wrong in ("", 5, True):
        with pytest.raises(PlanError, match="save_on_sigterm must be the path of a checkpoint"):
            model.session(save_on_sigterm=wrong)
