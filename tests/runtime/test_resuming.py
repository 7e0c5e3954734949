"""A program that was started again goes on where its newest whole checkpoint is."""

from __future__ import annotations

import logging
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import CheckpointError, DamagedCheckpointError, PlanError
from caramel.runtime.checkpoint import SavedTensor, write_checkpoint
from caramel.runtime.resuming import checkpoints
from caramel.runtime.writer import BackgroundWriter
from tests.support.networks import network
from tests.support.pipelines import X, Y, job, numbers

EPOCH = 10  # steps of two workers with two examples each


def expected(w, batches):
    """The parameters after steps on these examples, by NumPy."""
    momentum = np.zeros_like(w)
    for ids in batches:
        x, y = X[ids], Y[ids]
        gradient = 2 / len(ids) * x.T @ (x @ w[:, 0] - y)
        momentum = float(np.float32(0.9)) * momentum + gradient[:, None]
        w = w - float(np.float32(0.05)) * momentum  # as TensorFlow has these numbers
    return w


def test_a_program_goes_on_where_it_was_also_in_the_middle_of_a_shuffled_pipeline(tmp_path):
    made = job(lambda: numbers(40).shuffle(40).batch(2))
    model = made.model(2)
    folder, batches = tmp_path / "new" / "checkpoints", []

    def train(until, save_at=()):
        with model.session(resume=folder) as session:
            del batches[session.steps_done :]
            if session.resumed is None:
                begin.append(session.variables()["w"])
            session.run(made.iterator.initializer)
            while session.steps_done < until:
                batches.append(session.step(fetches={"ids": made.ids})["ids"])
                if session.steps_done in save_at:
                    session.save(folder / "m", global_step=session.steps_done, wait=False)
            found.append(session.variables()["w"])
            if until < EPOCH:
                return
            with pytest.raises(tf.errors.OutOfRangeError):
                session.step()
            session.save(folder / "m", global_step=session.steps_done)

    begin, found = [], []
    train(5, save_at=(2, 3))
    assert tf.train.latest_checkpoint(str(folder)).endswith("m-3")
    train(7, save_at=(6,))
    train(EPOCH)
    assert len(begin) == 1
    assert sorted(np.ravel(batches).tolist()) == list(range(40))
    np.testing.assert_allclose(found[-1], expected(begin[0], batches), rtol=1e-12)
    # The epoch is over: the next one begins anew.
    with model.session(resume=folder) as session:
        session.run(made.iterator.initializer)
        assert session.steps_done == EPOCH
        for _ in range(EPOCH):
            batches.append(session.step(fetches={"ids": made.ids})["ids"])
        assert sorted(np.ravel(batches[EPOCH:]).tolist()) == list(range(40))
        np.testing.assert_allclose(
            session.variables()["w"], expected(begin[0], batches), rtol=1e-12
        )


def test_with_other_workers_pipelines_begin_anew_and_the_log_says_so(tmp_path, caplog):
    made = job(lambda: numbers(40).batch(2))
    with made.model(2).session(resume=tmp_path) as session:
        session.run(made.iterator.initializer)
        session.step()
        session.save(tmp_path / "m")
    with made.model(1).session(resume=tmp_path) as session:
        session.run(made.iterator.initializer)
        assert np.ravel(session.step(fetches={"ids": made.ids})["ids"]).tolist() == [0, 1]
    assert "begin anew: there were 2 workers when the checkpoint was written, and are 1" in (
        caplog.text
    )


def test_torn_checkpoints_are_passed_over(tmp_path, caplog):
    made = network()
    model = caramel.ARModel(made.context(), 1)
    with model.session(resume=tmp_path) as session:
        assert (session.resumed, session.steps_done) == (None, 0)
        paths, kept = [], []
        for _ in range(3):
            session.step(made.feed)
            paths.append(session.save(tmp_path / "m", global_step=session.steps_done))
            kept.append(session.variables())
    tear(f"{paths[2]}.data-00000-of-00001")
    os.unlink(f"{paths[1]}.progress-00000-of-00001")
    tear(f"{paths[1]}.index")
    with caplog.at_level(logging.WARNING), model.session(resume=tmp_path) as session:
        assert (session.resumed, session.steps_done) == (paths[0], 1)
        for name, value in session.variables().items():
            np.testing.assert_array_equal(value, kept[0][name])
    assert caplog.text.count("the one before is taken") == 2
    tear(f"{paths[0]}.progress-00000-of-00001")
    with pytest.raises(
        DamagedCheckpointError, match="none of the checkpoints in .* is whole; move"
    ):
        model.session(resume=tmp_path)


def tear(file):
    with open(file, "r+b") as torn:
        torn.truncate(os.path.getsize(file) // 2)


def test_what_is_no_directory_of_this_job_is_refused(tmp_path):
    model = caramel.ARModel(network().context(), 1)
    path = write_checkpoint(tmp_path / "of" / "another", [SavedTensor("a", "", np.zeros(2))])
    with pytest.raises(CheckpointError, match="lacks"):
        model.session(resume=tmp_path / "of")
    for wrong in (path, f"{path}.index", "", 5):
        with pytest.raises(CheckpointError, match="resume (is|must be)"):
            model.session(resume=wrong)


def test_the_newest_are_those_that_were_entered_last_or_not_any_more(tmp_path):
    assert checkpoints(tmp_path) == []
    for name in ("b", "a", "c"):
        write_checkpoint(tmp_path / name, [SavedTensor("a", "", np.zeros(2))])
        os.utime(tmp_path / f"{name}.index", (100, 100))  # as if they had been copied
    names = [os.path.basename(path) for path in checkpoints(tmp_path)]
    assert names == ["b", "a", "c"]
    state = (tmp_path / "checkpoint").read_text()
    write_checkpoint(tmp_path / "0", [SavedTensor("a", "", np.zeros(2))])
    (tmp_path / "checkpoint").write_text(state)  # as if it had ended there
    assert [os.path.basename(path) for path in checkpoints(tmp_path)] == [*names, "0"]
    (tmp_path / "checkpoint").unlink()
    assert os.path.basename(checkpoints(tmp_path)[-1]) == "0"
    assert len(checkpoints(tmp_path)) == 4


def test_without_its_own_word_the_global_step_counts(tmp_path):
    made = network()
    model = caramel.ARModel(made.context(), 1)
    with model.session() as session:
        session.step(made.feed)
        session.save(tmp_path / "m")
    assert not any("progress" in name for name in os.listdir(tmp_path))
    with model.session(resume=tmp_path) as session:
        has_step = "global_step" in session.variables()
        assert session.steps_done == (1 if has_step else 0)


# Beside training --------------------------------------------------------------------------------


def test_a_writer_does_one_thing_after_the_other_and_tells_each_error_once():
    writer, done, go = BackgroundWriter(), [], threading.Event()

    def slow():
        assert go.wait(60)
        done.append("slow")

    writer.start(slow)
    writer.check()
    assert done == []
    go.set()
    writer.start(lambda: done.append(1 / 0))
    assert done == ["slow"]
    with pytest.raises(ZeroDivisionError):
        writer.wait()
    writer.wait()
    writer.check()


def test_what_is_written_beside_steps_is_what_was_there_then(tmp_path):
    made = network()
    with caramel.ARModel(made.context(), 2).session() as session:
        session.step(made.feed)
        then = session.variables()
        path = session.save(tmp_path / "m", wait=False)
        for _ in range(3):
            session.step(made.feed)
        session.restore(path)
        for name, value in session.variables().items():
            np.testing.assert_array_equal(value, then[name])
        assert session.checkpoints == (path,)
        (tmp_path / "file").write_text("")
        session.save(tmp_path / "file" / "m", wait=False)
        session._checkpoints._writer._thread.join()
        with pytest.raises(CheckpointError, match="cannot write checkpoint"):
            session.step(made.feed)
        session.step(made.feed)
        session.save(tmp_path / "file" / "m", wait=False)
        with pytest.raises(CheckpointError, match="cannot write checkpoint"):
            session.close()
        assert session.checkpoints == (path,)


def test_resuming_and_the_variables_of_another_session_exclude_each_other(tmp_path):
    model = caramel.PSModel(network().context(), 1, 1)
    with (
        model.session() as session,
        pytest.raises(PlanError, match="give variables or resume, not both"),
    ):
        model.session(variables=session, resume=tmp_path)
