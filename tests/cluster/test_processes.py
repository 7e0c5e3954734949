"""Worker processes: how they start, what they say, and that they always end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from caramel.cluster import processes
from caramel.cluster.cluster import Cluster
from caramel.cluster.processes import ProcessGroup, describe_exit, free_ports, parent_has_gone
from tests.support import forking
from tests.support.processes import WORKER, is_running, started, wait_for

pytestmark = pytest.mark.processes


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


# Groups -----------------------------------------------------------------------------------------


def test_a_group_ends_its_children_when_closed():
    group = ProcessGroup([python("import time; time.sleep(60)")] * 2)
    pids = [group.pid(0), group.pid(1)]
    assert [group.exit_code(0), group.exit_code(1)] == [None, None]
    group.close()
    assert [group.exit_code(0), group.exit_code(1)] == [-signal.SIGTERM] * 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)  # not even as zombies
    group.close()


def test_a_child_that_ignores_sigterm_is_killed_after_a_grace():
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("deaf", flush=True)
        time.sleep(60)
    """
    group = ProcessGroup([python(code)], grace_s=0.2)
    assert wait_for(lambda: group.output(0) == "deaf\n")
    group.close()
    assert group.exit_code(0) == -signal.SIGKILL


def test_a_group_that_nobody_uses_any_more_ends():
    group = ProcessGroup([python("import time; time.sleep(60)")])
    pid = group.pid(0)
    del group
    assert wait_for(lambda: not is_running(pid))


def test_a_group_ends_with_its_interpreter():
    code = """
        import sys
        from caramel.cluster.processes import ProcessGroup
        group = ProcessGroup([[sys.executable, "-c", "import time; time.sleep(60)"]])
        print(group.pid(0))
    """
    result = subprocess.run(python(code), capture_output=True, text=True, timeout=100, check=True)
    assert wait_for(lambda: not is_running(int(result.stdout)))


def test_a_fork_of_the_owner_does_not_end_the_children():
    code = """
        import os, sys
        from caramel.cluster.processes import ProcessGroup
        group = ProcessGroup([[sys.executable, "-c", "import time; time.sleep(60)"]])
        child = os.fork()
        if child == 0:
            sys.exit(0)  # runs what is registered for the interpreter's exit
        os.waitpid(child, 0)
        print(group.exit_code(0))
    """
    result = subprocess.run(python(code), capture_output=True, text=True, timeout=100, check=True)
    assert result.stdout == "None\n"


def test_a_program_that_does_not_exist_leaves_no_process():
    with pytest.raises(FileNotFoundError):
        ProcessGroup([python("import time; time.sleep(60)"), ["/no/such/program"]])


def test_output_never_blocks_a_child_and_its_end_can_be_read():
    code = """
        import sys
        for number in range(200_000):
            print(number)
            print("error", number, file=sys.stderr)
    """
    group = ProcessGroup([python(code)])
    assert wait_for(lambda: group.exit_code(0) is not None)
    assert group.output(0).endswith("\n199999\n")
    assert group.errors_tail(0, lines=2) == "error 199998\nerror 199999"
    group.close()
    assert group.errors_tail(0) == ""


def test_exits_are_described_in_words():
    assert describe_exit(None) == "running"
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-9) == "killed by signal 9"


def test_free_ports_are_different_and_can_be_used():
    ports = free_ports(5)
    assert len(set(ports)) == 5
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_process_knows_whether_it_has_lost_its_parent():
    assert not parent_has_gone(None)
    assert not parent_has_gone(os.getppid())
    assert parent_has_gone(os.getpid())


# Workers ----------------------------------------------------------------------------------------


def test_local_workers_and_servers_end_soon_after_their_client_is_killed():
    code = """
        import time
        from caramel.cluster.cluster import Cluster
        cluster = Cluster.local(1, parameter_servers=1)
        print([cluster.describe(number) for number in range(2)], flush=True)
        time.sleep(60)
    """
    with started(*python(code)) as client:
        pids = [int(pid) for pid in re.findall(r"pid (\d+)", client.stdout.readline())]
        assert [is_running(pid) for pid in pids] == [True, True]
        client.kill()
        assert wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_worker_stays_as_long_as_its_parent():
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [*WORKER, "--cluster", address, "--task", "0", "--parent-pid", str(os.getpid())]
    with started(*command) as worker:
        assert processes.LISTENING in worker.stdout.readline()
        time.sleep(3 * processes.PARENT_POLL_S)
        assert worker.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_quietly_when_it_is_asked_to(number):
    ports = free_ports(2)
    addresses = f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}"
    with started(*WORKER, "--cluster", addresses, "--task", "1") as worker:
        line = worker.stdout.readline()
        assert line == f"caramel worker 1 of 2 listening on 127.0.0.1:{ports[1]}\n"
        worker.send_signal(number)
        output, errors = worker.communicate(timeout=60)
    assert (worker.returncode, output, errors) == (0, "", "")


def test_a_parameter_server_says_where_it_listens():
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    command = [*WORKER, "--cluster", addresses[0], "--ps", addresses[1], "--job", "ps"]
    with started(*command, "--task", "0") as server:
        line = server.stdout.readline()
        assert line == f"caramel parameter server 0 of 1 listening on {addresses[1]}\n"
        server.send_signal(signal.SIGTERM)
        output, errors = server.communicate(timeout=60)
    assert (server.returncode, output, errors) == (0, "", "")


def test_a_worker_ends_quietly_while_it_starts():
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with started(*WORKER, "--cluster", address, "--task", "0") as worker:
        maps = Path(f"/proc/{worker.pid}/maps")
        assert wait_for(lambda: "tensorflow" in maps.read_text())
        worker.send_signal(signal.SIGINT)
        output, errors = worker.communicate(timeout=60)
    assert (worker.returncode, errors) == (0, "")
    assert output in ("", f"caramel worker 0 of 1 listening on {address}\n")  # it starts quickly


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset (util-linux)")
@pytest.mark.parametrize(("options", "threads"), [((), 2), (("--inter-op-threads", "3"), 3)])
def test_a_worker_of_one_processor_has_two_threads_for_ops_or_what_is_asked(options, threads):
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = ["taskset", "-c", "0", *WORKER, "--cluster", address, "--task", "0", *options]
    with started(*command) as worker:
        assert processes.LISTENING in worker.stdout.readline()
        tasks = Path(f"/proc/{worker.pid}/task").iterdir()
        names = [(task / "comm").read_text().strip() for task in tasks]
        assert names.count("tf_Compute") == threads


@pytest.mark.parametrize("plugins", [False, True])
def test_a_worker_imports_tensorflow_only_for_the_sake_of_plugins(plugins, tmp_path):
    if plugins:
        (tmp_path / "tensorflow-plugins").mkdir()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [*WORKER, "--cluster", address, "--task", "0"]
    with started(*command, PYTHONPATH=str(tmp_path)) as worker:
        assert processes.LISTENING in worker.stdout.readline()
        maps = Path(f"/proc/{worker.pid}/maps").read_text()
        assert "libtensorflow_cc" in maps
        assert ("pywrap_tensorflow" in maps) == plugins


def test_a_worker_reads_its_cluster_from_the_environment():
    address = f"127.0.0.1:{free_ports(1)[0]}"
    config = f'{{"cluster": {{"chief": ["{address}"]}}, "task": {{"type": "chief", "index": 0}}}}'
    with started(*WORKER, TF_CONFIG=config) as worker:
        assert worker.stdout.readline() == f"caramel worker 0 of 1 listening on {address}\n"
        assert Cluster.of([address]).unreachable() == ()


@pytest.mark.parametrize(
    ("jobs", "options", "which"),
    [
        ('{"chief": ["%s"]}', (), "worker 0 (/job:chief/task:0)"),
        (
            '{"chief": ["127.0.0.1:1"], "ps": ["%s"]}',
            ("--job", "ps"),
            "parameter server 0 (/job:ps/task:0)",
        ),
    ],
)
def test_a_port_in_use_is_one_clear_error(jobs, options, which):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        result = subprocess.run(
            [*WORKER, "--cluster", jobs % address, "--task", "0", *options],
            capture_output=True,
            text=True,
            timeout=100,
        )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"caramel: error: {which} cannot listen on {address}: Address already in use\n"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cluster", "a:1,b:1"], "--task is needed: which worker, 0 to 1, is this?"),
        (["--cluster", "a:1", "--task", "3"], "--task 3 does not exist: the workers are 0 to 0"),
        (["--cluster", "a", "--task", "0"], "--cluster: 'a' is not an address; expected host:port"),
        (["--cluster", "{a", "--task", "0"], "--cluster: it is not valid JSON"),
        (
            ["--cluster", "a:1", "--job", "ps", "--task", "0"],
            "--job is ps, but the cluster has no parameter server; name them by --ps",
        ),
        (
            ["--cluster", "a:1", "--ps", "b:1,c:1", "--job", "ps"],
            "--task is needed: which parameter server, 0 to 1, is this?",
        ),
        (
            ["--cluster", "a:1", "--ps", "b:1", "--job", "ps", "--task", "1"],
            "--task 1 does not exist: the parameter servers are 0 to 0",
        ),
        (
            ["--cluster", "a:1", "--ps", "a:1", "--job", "ps", "--task", "0"],
            "--cluster: the address 'a:1' is given twice, for /job:worker/task:0 and "
            "/job:ps/task:0",
        ),
        (
            ["--cluster", "a:1", "--job", "server", "--task", "0"],
            "--job is 'server'; expected worker (the chief is worker 0) or ps",
        ),
        (["--ps", "b:1"], "--ps is 'b:1' without --cluster; name the workers, too"),
        (["--ps", "1"], "the environment describes no cluster. Looked for: TF_CONFIG"),
        (["--ps", "0"], "the number of parameter servers is 0; expected at least 1"),
        ([], "the environment describes no cluster. Looked for: TF_CONFIG"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(options, message, monkeypatch, capsys):
    from caramel.cli import main

    for name in [name for name in os.environ if re.match("TF_CONFIG|SLURM_|OMPI_|PMI", name)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["caramel", "worker", *options])
    with pytest.raises(SystemExit) as exit_:
        main.main()
    errors = capsys.readouterr().err
    assert exit_.value.code == 2
    assert errors.startswith(f"caramel: error: {message}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "task"),
    [
        ((), 2),  # rank 0 serves
        (("--job", "ps", "--task", "0"), 2),
        (("--job", "worker", "--task", "1"), 1),
        (("--task", "1"), 1),
    ],
)
def test_a_worker_command_serves_the_task_of_its_rank_or_the_one_it_names(
    options, task, monkeypatch
):
    from caramel.cli import main
    from caramel.cluster import servers

    class ServedError(Exception):
        pass

    def serve(cluster, task, **_):
        raise ServedError(cluster.as_dict(), task)

    variables = {"JOB_NODELIST": "n", "NTASKS": "3", "PROCID": "0"}
    for name in ("TF_CONFIG", "OMPI_COMM_WORLD_SIZE", "SLURMD_NODENAME", "SLURM_STEP_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(servers, "serve", serve)
    monkeypatch.setattr(sys, "argv", ["caramel", "worker", "--ps", "1", *options])
    handlers = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ServedError) as served:
        main.main()
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == handlers
    jobs = {"worker": ["n:12322", "n:12323"], "ps": ["n:12321"]}
    assert served.value.args == (jobs, task)


def test_start_up_noise_is_dropped_but_not_what_a_crash_says():
    code = """
        import os
        from caramel.cluster.quiet_start import quiet_start
        with quiet_start() as restore_errors:
            os.write(2, b"WARNING: All log messages before absl::InitializeLog() is called\\n")
            os.write(2, b"I0000 00:00:1795236646.386248    2653 port.cc:153] oneDNN is on\\n")
            os.write(2, b"F0000 00:00:1795236646.386248    2653 cpu.cc:1] no AVX\\n")
            os.abort()
    """
    environ = {name: os.environ[name] for name in os.environ if name != "TF_CPP_MIN_LOG_LEVEL"}
    result = subprocess.run(python(code), capture_output=True, text=True, timeout=100, env=environ)
    assert result.returncode == -signal.SIGABRT
    assert result.stderr == "F0000 00:00:1795236646.386248    2653 cpu.cc:1] no AVX\n"


def test_a_program_that_ignores_its_children_starts_in_quiet_too():
    code = """
        import os, signal
        from caramel.cluster.quiet_start import quiet_start
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with quiet_start():
            os.write(2, b"I0000 00:00:1795236646.386248    2653 port.cc:153] oneDNN is on\\n")
    """
    result = subprocess.run(python(code), capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_command_starts_without_tensorflow():
    code = """
        import sys, caramel.cli.main
        assert "tensorflow" not in sys.modules and "numpy" not in sys.modules
        sys.argv = ["caramel", "--version"]
        caramel.cli.main.main()
    """
    result = subprocess.run(python(code), capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.fullmatch(r"caramel \d+\.\d+.*\n", result.stdout)


# Servers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_a_task_of_a_common_script_serves_until_the_chief_has_gone(job):
    code = """
        from caramel.cluster.cluster import Cluster
        from caramel.cluster.servers import serve_until_chief_ends
        cluster = Cluster.from_environment()
        assert cluster.task == 1
        serve_until_chief_ends(cluster, poll_s=0.1, failures=3)
        print("the chief has gone")
    """
    own = f"127.0.0.1:{free_ports(1)[0]}"
    with socket.create_server(("127.0.0.1", 0)) as chief:
        address = f"127.0.0.1:{chief.getsockname()[1]}"
        jobs = {"chief": [address], job: [own]}
        config = json.dumps({"cluster": jobs, "task": {"type": job, "index": 0}})
        with started(*python(code), TF_CONFIG=config) as worker:
            Cluster.of([own]).wait_until_reachable(20.0)
            time.sleep(1.0)
            assert worker.poll() is None
            chief.close()
            output, errors = worker.communicate(timeout=60)
    # TensorFlow's messages are hidden, as those of ``caramel worker``.
    assert (worker.returncode, output, errors) == (0, "the chief has gone\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("again", [False, True])
def test_a_task_that_is_told_to_end_outlives_the_chief_but_not_a_second_signal(number, again):
    code = """
        from caramel.cluster import servers
        from caramel.cluster.cluster import Cluster
        servers._SAY_AFTER_S, servers.OUTLIVES_S = 0.0, 1000.0
        servers.serve_until_chief_ends(Cluster.from_environment(), poll_s=0.1)
        print("it may clean up")
    """
    own = f"127.0.0.1:{free_ports(1)[0]}"
    with socket.create_server(("127.0.0.1", 0)) as chief:
        jobs = {"worker": [f"127.0.0.1:{chief.getsockname()[1]}", own]}
        config = json.dumps({"cluster": jobs, "task": {"type": "worker", "index": 1}})
        with started(*python(code), TF_CONFIG=config) as worker:
            chief.accept()  # it looks whether the chief is there
            chief.accept()
            worker.send_signal(number)
            assert "goes on until worker 0 has ended" in worker.stderr.readline()
            Cluster.of([own]).wait_until_reachable(20.0)
            if again:
                worker.send_signal(number)
            else:
                chief.close()
            output, _ = worker.communicate(timeout=60)
    if again and number == signal.SIGTERM:
        assert (worker.returncode, output) == (-number, "")
    else:
        assert (worker.returncode, output) == (0, "it may clean up\n")


def test_embedded_servers_form_one_cluster_and_are_started_once():
    code = """
        import tensorflow as tf
        from caramel.cluster.servers import embedded_servers

        servers = embedded_servers(2)
        assert embedded_servers(2) is servers
        one_thread = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
        assert embedded_servers(2, config=one_thread) is not servers
        with tf.Graph().as_default():
            with tf.device("/job:worker/task:1"):
                six = tf.constant(2.0) * 3.0
            with tf.device("/job:worker/task:0"):
                seven = six + 1.0
            with tf.compat.v1.Session(servers.target) as session:
                print(len(servers.addresses), session.run(seven))
    """
    result = forking.run(python(code), capture_output=True, text=True, timeout=100)
    assert result.stdout == "2 7.0\n", result.stderr


def test_embedded_parameter_servers_belong_to_the_cluster_of_the_workers():
    code = """
        import tensorflow as tf
        from caramel.cluster.servers import embedded_servers

        servers = embedded_servers(1, parameter_servers=2)
        assert embedded_servers(1, parameter_servers=2) is servers
        with tf.Graph().as_default():
            with tf.device("/job:ps/task:1"):
                six = tf.constant(2.0) * 3.0
            with tf.device("/job:worker/task:0"):
                seven = six + 1.0
            with tf.compat.v1.Session(servers.target) as session:
                print(len(servers.addresses), session.run(seven))
    """
    result = forking.run(python(code), capture_output=True, text=True, timeout=100)
    assert result.stdout == "3 7.0\n", result.stderr


def test_a_client_that_is_no_worker_has_no_own_server():
    code = """
        from caramel.cluster.cluster import Cluster
        from caramel.core.errors import ClusterError, WorkerStartError
        from caramel.cluster.servers import own_server, serve_until_chief_ends

        for call, cluster in [
            (own_server, Cluster.of(["a:1"])),
            (serve_until_chief_ends, Cluster.of(["a:1"], task=0)),
        ]:
            try:
                call(cluster)
            except ClusterError as error:
                print(error)
    """
    result = subprocess.run(python(code), capture_output=True, text=True, timeout=100)
    first, second = result.stdout.splitlines()
    assert re.match("this process is no worker of <Cluster, remote: .*>, so it has no", first)
    assert second == "this process is worker 0, the chief, which cannot wait for itself"
