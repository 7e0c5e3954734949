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

from caramel.cluster.by_ssh import SshWorkers, Start
from caramel.cluster.hosts import Host, check_reachable_names, parse_hosts
from caramel.core.errors import ClusterError
from caramel.core.version import __version__
from tests.support import forking
from tests.support.commands import called
from tests.support.processes import is_running, started, wait_for

STAND_IN = """#!/bin/sh
echo $$ >> "$(dirname "$0")/pids"
case $1 in
    slow) exec sleep 600 ;;
    gone) echo "ssh: connect to host gone port 22: No route to host" >&2; exit 255 ;;
    old) echo '{"caramel": "0.0.1", "port": 5}'; exec cat > /dev/null ;;
esac
echo "Welcome to $1"
exec sh -c "$2"
"""

TRAINS_ONCE = """
import os, sys
if os.path.exists(sys.argv[2]):
    sys.exit(0)
open(sys.argv[2], "w").close()
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
sys.exit(1)
"""

SPEAKS = f"""
import json, socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(json.dumps({{"caramel": "{__version__}", "port": server.getsockname()[1]}}), flush=True)
    while not sys.stdin.readline().strip():
        pass
    print("caramel: it is slow.", flush=True)
    print("caramel worker listening on it", flush=True)
    sys.stdin.read()
"""
SOON = """
from caramel.cluster import by_ssh, piped
by_ssh._SAY_EVERY_S, piped._GRACE_S = 0.1, 1000.0
from caramel.cli.main import main
main()
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
    program = [sys.executable, "-c", TRAINS_ONCE, "{workers}", str(stand_in) + ".ran"]
    command = run(stand_in, "127.0.0.1,me@127.0.0.1", *program)
    done = forking.run(
        command,
        forks=True,
        env={**os.environ, "TF_CONFIG": "of another launcher"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 1.734375
    # The rest is TensorFlow's, of the program, and perhaps what to change on this machine.
    said = [line for line in done.stderr.splitlines() if line.startswith("caramel: ")]
    assert said[0] == "caramel: starting workers by ssh: 127.0.0.1, 127.0.0.1."
    assert any(line.startswith("caramel: they listen: 127.0.0.1:") for line in said)
    # It has opened a session, so it may go on.
    name = os.path.basename(sys.executable)
    again = f"caramel: {name} ended (exited with code 1); it is started again in 1 s"
    assert said[-1] == f"{again} (restart 1 of 5)."
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


def test_a_program_that_fails_before_it_opens_a_session_is_not_started_again(
    stand_in, monkeypatch, capfd, tmp_path
):
    program = ["sh", "-c", "echo once; exit 3"]
    options = ["--hosts", "127.0.0.1", "--ssh", str(stand_in)]
    result = called(monkeypatch, capfd, tmp_path, "run", *options, "--", *program)
    assert (result.returncode, result.stdout) == (3, "once\n")
    assert result.stderr.splitlines()[-1] == (
        "caramel: sh ended (exited with code 3) before it opened a session; "
        "it is not started again."
    )


@pytest.mark.processes
def test_addresses_of_workers_and_servers_are_put_into_arguments(
    stand_in, monkeypatch, capfd, tmp_path
):
    options = ["--hosts", "127.0.0.1,127.0.0.1", "--ps", "127.0.0.1", "--ssh", str(stand_in)]
    program = ["sh", "-c", 'echo "$TF_CONFIG"; echo "$@"', "sh", "{workers}", "--at={servers}"]
    result = called(monkeypatch, capfd, tmp_path, "run", *options, "--", *program)
    described, given = result.stdout.splitlines()
    jobs = json.loads(described)["cluster"]
    assert given == f"{','.join(jobs['worker'])} --at={jobs['ps'][0]}"
    # Without servers nothing stands for them.
    options = ["--hosts", "127.0.0.1", "--ssh", str(stand_in)]
    result = called(monkeypatch, capfd, tmp_path, "run", *options, "--", "echo", "{servers}")
    assert result.stdout == "{servers}\n"


def test_what_workers_say_of_their_machines_is_said_once(tmp_path):
    worker = tmp_path / "worker"
    worker.write_text(SPEAKS)
    said = []
    ssh = [sys.executable, str(worker)]
    start = Start(ssh=ssh, python="python", environment={}, restarts=0, say=said.append)
    with SshWorkers({"worker": parse_hosts("127.0.0.1,127.0.0.1")}, start) as cluster:
        assert cluster.size == 2
    assert said == ["worker 0 on 127.0.0.1, worker 1 on 127.0.0.1: it is slow"]


@pytest.mark.processes
def test_a_host_that_does_not_answer_is_named_and_not_waited_for_after_ctrl_c(stand_in, tmp_path):
    program = [sys.executable, "-c", SOON, "run", "--hosts", "slow", "--ssh", str(stand_in), "true"]
    with started(*program) as process:
        assert "starting workers" in process.stderr.readline()
        assert process.stderr.readline() == "caramel: waiting for the workers of slow.\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=100) == 130
    assert wait_for(lambda: not any(map(is_running, pids(stand_in))))


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
        # A name that nobody needs to be asked about to know that it is none.
        ("of..ssh", sys.executable, ["ssh reaches host 'of..ssh'", "name it by its address"]),
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
    without.write_text("#!/bin/sh\necho $0: No module named typer >&2; exit 1\n")
    without.chmod(0o755)
    (tmp_path / "here").write_text('#!/bin/sh\nexec sh -c "$2"\n')
    (tmp_path / "here").chmod(0o755)
    assert f"'{without}' on host 'a' has no module 'typer': install Caramel there" in error(
        *("--hosts", "a", "--ssh", str(tmp_path / "here"), "--python", str(without))
    )
