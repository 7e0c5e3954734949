"""`caramel run --hosts`: workers by ssh, which find each other, and none of which stays behind.

A stand-in for ssh runs the commands on this machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from caramel.cluster.hosts import Host, check_reachable_names, parse_hosts
from caramel.core.errors import ClusterError
from tests.support.commands import called
from tests.support.processes import is_running, started, wait_for

STAND_IN = """#!/bin/sh
echo $$ >> "$(dirname "$0")/pids"
case $1 in
    gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255 ;;
    old) echo '{"caramel": "0.0.1", "port": 5}'; exec cat > /dev/null ;;
esac
echo "Welcome to $1"
exec sh -c "$2"
"""

TRAINS = """
import sys
import tensorflow as tf
import caramel
tf1 = tf.compat.v1
cluster = caramel.Cluster.from_environment()
assert (cluster.size, cluster.task) == (2, None)
assert [task.address for task in cluster.tasks] == sys.argv[1].split(",")
with tf.Graph().as_default() as graph:
    x = tf1.placeholder(tf.float64, [None])
    w = tf1.get_variable("w", (), tf.float64, tf1.zeros_initializer())
    loss = tf.reduce_mean((w - x) ** 2)
    train_op = tf1.train.GradientDescentOptimizer(0.125).minimize(loss)
context = caramel.Context(graph, train_op=train_op, loss=loss)
with caramel.ARModel(context, cluster, planner="plain").session() as session:
    for _ in range(3):
        session.step({x: [1.0, 2.0, 3.0, 6.0]})
    print(session.variables()["w"])
"""


@pytest.fixture
def stand_in(tmp_path):
    path = tmp_path / "stand-in"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return path


def pids(stand_in):
    """Of all workers that were started; the program that was ssh has become the worker."""
    return [int(line) for line in (stand_in.parent / "pids").read_text().split()]


def run(stand_in, hosts, *command):
    options = ["--hosts", hosts, "--ssh", str(stand_in)]
    return [sys.executable, "-m", "caramel", "run", *options, "--", *command]


def test_hosts_have_users_and_ports():
    assert parse_hosts("a, me@b:22,[::1]:7,you@[fe80::1]") == [
        Host("a", "a"),
        Host("me@b", "b", 22),
        Host("::1", "[::1]", 7),
        Host("you@fe80::1", "[fe80::1]"),
    ]
    for wrong in ("", "a,", "a:0", "a:b", "-oProxyCommand", "me@-a", "::1", "a b"):
        with pytest.raises(ClusterError, match="is no host"):
            parse_hosts(wrong)
    check_reachable_names(parse_hosts("127.0.0.1,127.0.0.2"))
    with pytest.raises(ClusterError, match="'localhost' means another machine"):
        check_reachable_names(parse_hosts("a,localhost"))


@pytest.mark.processes
def test_a_program_trains_on_hosts_whose_workers_end_with_it(stand_in):
    command = run(stand_in, "127.0.0.1,me@127.0.0.1", sys.executable, "-c", TRAINS, "{workers}")
    environ = {**os.environ, "TF_CONFIG": "of another launcher"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 1.734375
    first, second, *_ = done.stderr.splitlines()  # then TensorFlow's, of the program
    assert first == "caramel: starting workers by ssh: 127.0.0.1, 127.0.0.1."
    assert second.startswith("caramel: they listen: 127.0.0.1:")
    assert len(pids(stand_in)) == 2
    assert not any(map(is_running, pids(stand_in)))


@pytest.mark.processes
def test_a_worker_that_ends_is_started_again_and_none_outlives_the_command(stand_in):
    script = "echo $TF_CONFIG; echo $$; exec sleep 600"
    with started(*run(stand_in, "127.0.0.1,127.0.0.1", "sh", "-c", script)) as process:
        described = json.loads(process.stdout.readline())
        assert list(described) == ["cluster"]
        program = int(process.stdout.readline())
        first, second = pids(stand_in)  # either may be worker 0: both start at once
        os.kill(second, signal.SIGKILL)
        lines = iter(process.stderr.readline, "")
        told = next(line for line in lines if "has ended" in line)
        worker, end = told.split(" has ended ")
        assert worker in {f"caramel: worker {index} on 127.0.0.1" for index in (0, 1)}
        assert end == "(killed by signal 9); it is started again in 1 s (restart 1 of 5).\n"
        again = f"{worker}: it listens again.\n"
        assert next(line for line in lines if line == again)
        third = pids(stand_in)[2]
        assert is_running(first)
        os.kill(process.pid, signal.SIGKILL)
        assert wait_for(lambda: not any(map(is_running, (first, third, program))))


def test_a_worker_that_hears_nothing_ends():
    code = "from caramel.cluster import joining; joining.SILENT_S = 0.1; joining.join(0)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert "port" in json.loads(process.stdout.readline())
        assert process.wait(timeout=100) == 0


@pytest.mark.parametrize(
    ("hosts", "python", "messages"),
    [
        (
            "gone,b",
            sys.executable,
            ["host 'gone' cannot be reached by", "No route to host"],
        ),
        ("127.0.0.1", "/no/python", ["host '127.0.0.1' has no Python '/no/python'", "--python"]),
        ("gone,old", sys.executable, ["'gone' cannot", "; host 'old' has Caramel 0.0.1, and this"]),
        ("a,a:70000", sys.executable, ["--hosts: 'a:70000' is no host", "expected 1 to 65535"]),
    ],
)
def test_hosts_that_cannot_be_used_are_named(
    hosts, python, messages, stand_in, monkeypatch, capsys, tmp_path
):
    options = ["--hosts", hosts, "--ssh", str(stand_in), "--python", python]
    result = called(monkeypatch, capsys, tmp_path, "run", *options, "--", "echo", "never")
    assert (result.returncode, result.stdout) == (2, "")
    *_, error = result.stderr.splitlines()
    assert error.startswith("caramel: error: ")
    for message in messages:
        assert message in error
    if (tmp_path / "pids").exists():
        assert not any(map(is_running, pids(stand_in)))


def test_what_cannot_start_workers_is_one_clear_error(monkeypatch, capsys, tmp_path):
    def error(*arguments):
        result = called(monkeypatch, capsys, tmp_path, "run", *arguments, "--", "true")
        return result.stderr.splitlines()[-1]

    assert error("--hosts", "a", "--ssh", "/no/ssh").startswith(
        "caramel: error: cannot start '/no/ssh': No such file"
    )
    assert "--ssh is empty" in error("--hosts", "a", "--ssh", "")
    assert error("--ps", "a") == (
        "caramel: error: --ps is for workers that are started by ssh: add --hosts"
    )
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\necho $0: No module named caramel >&2; exit 1\n")
    without.chmod(0o755)
    (tmp_path / "here").write_text('#!/bin/sh\nexec sh -c "$2"\n')
    (tmp_path / "here").chmod(0o755)
    assert f"'{without}' on host 'a' has no Caramel" in error(
        *("--hosts", "a", "--ssh", str(tmp_path / "here"), "--python", str(without))
    )
