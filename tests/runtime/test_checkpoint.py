"""Checkpoints are plain TensorFlow ones with the user's names, and the last one is never lost."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import CheckpointError
from caramel.runtime import checkpoint
from caramel.runtime.checkpoint import SavedTensor, write_checkpoint
from tests.support import forking, networks
from tests.support.networks import parameter

tf1 = tf.compat.v1


@pytest.fixture(scope="module")
def job():
    return networks.built_network("adam", "clip_by_global_norm", number=12)


@pytest.fixture(scope="module")
def model(job):
    return caramel.ARModel(job.context(), workers=2)


@pytest.fixture
def session(model):
    with model.session() as session:
        yield session


def single_device_values(job, path):
    with job.graph.as_default(), tf1.Session(graph=job.graph) as single:
        variables = {v.op.name: v for v in tf1.global_variables()}
        # A saver of a copy of the graph: the user's graph stays as it is.
        tf1.train.Saver(variables).restore(single, path)
        return single.run(variables)


def test_the_single_device_graph_restores_what_caramel_saved(job, session, tmp_path):
    for _ in range(3):
        session.step(job.feed)
    path = session.save(tmp_path / "model.ckpt")
    restored = single_device_values(job, path)
    expected = session.variables()
    assert set(restored) == set(expected)
    assert {"w1/Adam", "beta1_power", "global_step"} <= set(restored)
    for name, value in restored.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_caramel_restores_what_the_single_device_graph_saved(session, tmp_path):
    job = networks.built_network("adam", "clip_by_global_norm", number=12)
    with job.graph.as_default(), tf1.Session(graph=job.graph) as single:
        single.run(tf1.global_variables_initializer())
        for _ in range(4):
            single.run(job.train_op, job.feed)
        path = tf1.train.Saver().save(single, str(tmp_path / "single.ckpt"))
        expected = single.run({v.op.name: v for v in tf1.global_variables()})
        single.run(job.train_op, job.feed)
        after = single.run({v.op.name: v for v in tf1.global_variables()})
    session.restore(path)
    for worker in range(2):
        values = session.variables(worker=worker)
        for name in expected:
            np.testing.assert_array_equal(values[name], expected[name], err_msg=name)
    session.step(job.feed)
    assert networks.relative_error(session.variables(), after) < 1e-12


def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_happened(job, model, tmp_path):
    with model.session() as undisturbed:
        for _ in range(3):
            undisturbed.step(job.feed)
        path = undisturbed.save(tmp_path / "model.ckpt")
        for _ in range(3):
            undisturbed.step(job.feed)
        expected = undisturbed.variables()
    with model.session() as restarted:
        restarted.restore(path)
        for _ in range(3):
            restarted.step(job.feed)
        for name, value in restarted.variables().items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_directory_stands_for_its_latest_checkpoint(job, session, tmp_path):
    session.save(tmp_path / "model.ckpt", global_step=1)
    session.step(job.feed)
    path = session.save(tmp_path / "model.ckpt", global_step=2)
    expected = session.variables()["w1"]
    assert path.endswith("model.ckpt-2")
    assert tf.train.latest_checkpoint(str(tmp_path)) == path
    assert len(tf.train.get_checkpoint_state(str(tmp_path)).all_model_checkpoint_paths) == 2
    session.step(job.feed)
    session.restore(tmp_path)
    np.testing.assert_array_equal(session.variables()["w1"], expected)


def test_a_checkpoint_holds_the_users_names_and_nothing_else(job, session, tmp_path):
    path = session.save(tmp_path / "model.ckpt")
    with job.graph.as_default():
        assert set(tf.train.load_checkpoint(path).get_variable_to_shape_map()) == {
            v.op.name for v in tf1.global_variables()
        }


def test_what_does_not_fit_is_refused_and_leaves_the_variables(job, session, tmp_path):
    before = session.variables()
    with pytest.raises(CheckpointError, match=r"there is no checkpoint '.*nowhere'"):
        session.restore(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        session.restore(tmp_path)
    other = write_checkpoint(tmp_path / "other", [SavedTensor("w1", "", np.zeros((6, 5)))])
    with pytest.raises(CheckpointError, match="lacks .* of the graph's .* variables: .*'b1'"):
        session.restore(other)
    values = {**before, "w2": np.zeros((9, 9))}
    wrong = write_checkpoint(
        tmp_path / "wrong", [SavedTensor(name, "", value) for name, value in values.items()]
    )
    with pytest.raises(CheckpointError, match=r"'w2' as float64 of shape \(9, 9\)"):
        session.restore(wrong)
    for name, value in session.variables().items():
        np.testing.assert_array_equal(value, before[name])


def test_partitioned_variables_are_saved_under_the_name_of_the_whole(tmp_path):
    def build():
        with tf.Graph().as_default() as graph:
            tf1.set_random_seed(1)
            x, y, feed = networks.inputs(12)
            with tf1.variable_scope("", partitioner=tf1.fixed_size_partitioner(2)):
                w = tf1.get_variable("w", [6, 3], tf.float64, use_resource=True)
            loss = networks.cross_entropy(x @ tf.convert_to_tensor(w), y)
            train_op, raw = networks.optimized(loss, networks.OPTIMIZERS["momentum"])
        return networks.Network(graph, train_op, loss, feed, raw)

    job = build()
    with caramel.ARModel(job.context(), workers=2).session() as session:
        session.step(job.feed)
        path = session.save(tmp_path / "model.ckpt")
        values = session.variables()
        assert tf.train.load_checkpoint(path).get_variable_to_shape_map()["w"] == [6, 3]
        session.step(job.feed)
        session.restore(path)
        for name, value in session.variables().items():
            np.testing.assert_array_equal(value, values[name])
    fresh = build()
    with fresh.graph.as_default(), tf1.Session(graph=fresh.graph) as single:
        tf1.train.Saver().restore(single, path)
        parts = [single.run(v) for v in tf1.trainable_variables()]
    np.testing.assert_array_equal(np.concatenate(parts), tf.train.load_variable(path, "w"))


# Interruptions -----------------------------------------------------------------------------------


def saved(value):
    return [SavedTensor("a", "", np.full(4, value)), SavedTensor("b", "", np.full(3, value))]


def loaded(path):
    reader = tf.train.load_checkpoint(str(path))
    names = reader.get_variable_to_shape_map()
    return {float(x) for name in names for x in np.ravel(reader.get_tensor(name))}


class Interrupted(BaseException):
    pass


def one_scalar(value):
    return [SavedTensor("a", "", np.float64(value))]


@pytest.mark.parametrize("saved", [saved, one_scalar])
@pytest.mark.parametrize("calls", range(6))
def test_saving_that_is_interrupted_at_any_file_leaves_a_whole_checkpoint(
    tmp_path, monkeypatch, calls, saved
):
    path = tmp_path / "model.ckpt"
    write_checkpoint(path, saved(1))
    remaining = iter([True] * calls)
    for name in ("replace", "unlink"):
        real = getattr(os, name)

        def interrupted(*arguments, real=real, **options):
            if next(remaining, None) is None:
                raise Interrupted
            return real(*arguments, **options)

        monkeypatch.setattr(checkpoint.os, name, interrupted)
    with contextlib.suppress(Interrupted):
        write_checkpoint(path, saved(2))
    monkeypatch.undo()
    assert loaded(path) in ({1.0}, {2.0})
    write_checkpoint(path, saved(3))
    assert loaded(path) == {3.0}
    assert len(list(tmp_path.glob("model.ckpt.data-*"))) <= 2


def test_saving_again_and_again_leaves_one_checkpoint(tmp_path):
    path = tmp_path / "model.ckpt"
    for value in range(4):
        write_checkpoint(path, saved(value))
        assert loaded(path) == {float(value)}
    assert not list(tmp_path.glob(".model.ckpt.saving-*"))


@pytest.mark.parametrize("shape", [(), (1,), (2,), (5, 3)])
def test_a_single_variable_is_saved_too(tmp_path, shape):
    for value in range(4):
        whole = value + np.arange(np.prod(shape, dtype=int)).reshape(shape)
        write_checkpoint(tmp_path / "one", [SavedTensor("a", "", whole)])
        loaded = tf.train.load_variable(str(tmp_path / "one"), "a")
        np.testing.assert_array_equal(loaded, whole)


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_data_file_is_refused_and_leaves_the_variables(session, tmp_path, damage):
    path = session.save(tmp_path / "model")
    (data,) = tmp_path.glob("model.data-*")
    content = bytearray(data.read_bytes())
    if damage == "truncated":
        data.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        content[10] ^= 0xFF
        data.write_bytes(content)
    else:
        data.unlink()
    before = session.variables()
    with pytest.raises(CheckpointError, match="is a data file missing or damaged"):
        session.restore(path)
    for name, value in session.variables().items():
        np.testing.assert_array_equal(value, before[name])


def test_a_directory_that_cannot_be_written_gives_one_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write checkpoint"):
        write_checkpoint(tmp_path / "file" / "model.ckpt", saved(1))


@pytest.mark.slow
def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "model.ckpt"
    write_checkpoint(path, saved(0))
    program = textwrap.dedent(
        """
        import sys, numpy as np
        from caramel.runtime.checkpoint import SavedTensor, write_checkpoint
        print("ready", flush=True)
        for value in range(1, 10**6):
            write_checkpoint(sys.argv[1], [SavedTensor(n, "", np.full(10**5, value)) for n in "ab"])
            print(value, flush=True)
        """
    )
    with forking.Popen(
        [sys.executable, "-c", program, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        lines = [process.stdout.readline() for _ in range(5)]
        process.kill()
    assert lines[0].strip() == "ready"
    assert len(loaded(path)) == 1
    write_checkpoint(path, saved(7))
    assert loaded(path) == {7.0}
    assert not list(tmp_path.glob(".model.ckpt.saving-*"))
    shutil.rmtree(tmp_path)


def test_local_state_is_saved_as_its_mean(tmp_path):
    with tf.Graph().as_default() as graph:
        x, y, feed = networks.inputs(12)
        w = parameter("w", [6, 3])
        mean = tf1.get_variable("mean", [], tf.float64, tf1.zeros_initializer(), trainable=False)
        loss = networks.cross_entropy(x @ w, y)
        with tf.control_dependencies([mean.assign(tf.reduce_mean(x))]):
            train_op, raw = networks.optimized(loss, networks.OPTIMIZERS["gradient_descent"])
    job = networks.Network(graph, train_op, loss, feed, raw)
    with caramel.ARModel(job.context(), workers=3).session() as session:
        session.step(feed)
        path = session.save(tmp_path / "model.ckpt")
        assert tf.train.load_variable(path, "mean") == pytest.approx(np.mean(feed["x:0"]))
        session.restore(path)
        values = [float(session.variables(worker=w)["mean"]) for w in range(3)]
    assert values == [pytest.approx(np.mean(feed["x:0"]))] * 3
