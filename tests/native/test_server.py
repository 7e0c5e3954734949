"""TensorFlow's servers and library, used without TensorFlow's Python."""

from __future__ import annotations

import sys

import pytest

from caramel.cluster.processes import free_ports
from caramel.core.errors import InstallationError
from caramel.native import library
from caramel.native.server import start_server, thread_options
from tests.support.networks import tf, tf1


@pytest.fixture(name="given")
def fixture_given(monkeypatch):
    """What TensorFlow's library is given: no server is started."""
    given = []

    class Library:
        def TF_NewServer(self, content, length, status):  # noqa: N802
            given.append(content[:length])

        def TF_ServerStart(self, server, status):  # noqa: N802
            pass

        def TF_ServerTarget(self, server):  # noqa: N802
            return b"grpc://here:1"

    monkeypatch.setattr("caramel.native.server._functions", Library)
    return given


@pytest.mark.parametrize(
    ("jobs", "job", "index"),
    [
        ({"worker": ["127.0.0.1:1234"]}, "worker", 0),
        ({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, "worker", 1),
        ({"worker": [f"host-{n}.some.where.example:{n}" for n in range(300)]}, "worker", 299),
        ({"wörker": ["ä.example:1"]}, "wörker", 0),
    ],
)
def test_a_server_is_described_as_tensorflow_does_it(jobs, job, index, given):
    config = tf1.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
    assert start_server(jobs, job, index, config=config.SerializeToString()) == "grpc://here:1"
    assert tf.train.ServerDef.FromString(given[0]) == tf.train.ServerDef(
        cluster=tf.train.ClusterSpec(jobs).as_cluster_def(),
        job_name=job,
        task_index=index,
        default_session_config=config,
        protocol="grpc",
    )


def test_numbers_of_threads_are_those_of_a_config():
    options = thread_options(intra_op=3, inter_op=2000)
    expected = tf1.ConfigProto(intra_op_parallelism_threads=3, inter_op_parallelism_threads=2000)
    assert tf1.ConfigProto.FromString(options) == expected
    assert tf1.ConfigProto.FromString(thread_options()) == tf1.ConfigProto()


@pytest.mark.parametrize(("asked", "got"), [(0, 2), (5, 5)])
def test_of_two_configs_the_second_holds_in_what_it_says(asked, got):
    users = tf1.ConfigProto(inter_op_parallelism_threads=asked).SerializeToString()
    for second in (users, thread_options(intra_op=0, inter_op=asked)):
        both = tf1.ConfigProto.FromString(thread_options(inter_op=2) + second)
        assert both == tf1.ConfigProto(inter_op_parallelism_threads=got)


def test_a_server_runs_what_a_session_asks_for():
    target = start_server({"worker": [f"127.0.0.1:{free_ports(1)[0]}"]}, "worker", 0)
    with tf.Graph().as_default():
        six = tf.constant(2.0) * 3.0
        with tf1.Session(target) as session:
            assert session.run(six) == 6.0


def test_what_tensorflow_says_is_in_the_error():
    with pytest.raises(library.StatusError, match='Job "worker" was not defined') as raised:
        start_server({"chief": ["127.0.0.1:1"]}, "worker", 0)
    assert raised.value.code == tf.errors.INTERNAL


# The library ------------------------------------------------------------------------------------


@pytest.fixture(name="searched")
def fixture_searched(monkeypatch):
    """The library is searched anew, in what the test sets."""
    cached = (library.path, library._loaded)
    for each in cached:
        each.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    for each in cached:
        each.cache_clear()


def test_that_tensorflow_is_not_installed_is_one_clear_error(searched):
    searched.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(InstallationError, match="TensorFlow is not installed. Install exactly"):
        library.functions({})


def test_a_tensorflow_without_its_library_is_one_clear_error(searched):
    searched.setattr(library, "_LIBRARIES", ("libtensorflow.so.7",))
    with pytest.raises(InstallationError, match=r"none of libtensorflow.so.7 is in '.*tensorflow'"):
        library.functions({})


def test_plugins_are_found_where_tensorflow_looks_for_them(monkeypatch, tmp_path):
    monkeypatch.delenv("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not library.has_plugins()
    (tmp_path / "tensorflow-plugins").mkdir()
    assert library.has_plugins()
    monkeypatch.setattr(sys, "path", [])
    assert not library.has_plugins()
    monkeypatch.setenv("TF_PLUGGABLE_DEVICE_LIBRARY_PATH", "/some/where.so")
    assert library.has_plugins()
