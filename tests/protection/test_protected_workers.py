"""Workers that strangers do not reach train as others do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import caramel
from benchmarks import testbed
from caramel.cluster.processes import free_ports
from caramel.core.errors import ClusterError, WorkerLostError, WorkerStartError
from caramel.protection.certificates import make_certificates, revoke
from tests.support import forking, networks, protection
from tests.support.processes import WORKER, is_running, wait_for, worker_pid

pytest.importorskip("cryptography")

pytestmark = [pytest.mark.processes, protection.needs_namespaces]


@pytest.fixture(scope="module")
def cluster():
    with caramel.Cluster.local(2, parameter_servers=1, secure=True) as cluster:
        yield cluster


def kept_certificates():
    return set(Path(tempfile.gettempdir()).glob("caramel-certificates-*"))


def servers_of(cluster):
    """The process ids of TensorFlow's servers: the first children of the relays."""
    for task in range(len(cluster.tasks)):
        yield next(children_of(worker_pid(cluster, task)))


def children_of(pid):
    return map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def test_they_train_as_one_device_does_and_nobody_else_reaches_them(cluster):
    job = networks.network("momentum", "clip_by_global_norm", number=42)
    for make, servers in ((caramel.PSModel, True), (caramel.ARModel, False)):
        of = cluster if servers else cluster.without(cluster.servers)
        with make(job.context(), workers=of).session() as session:
            initial = session.variables()
            for _ in range(networks.STEPS):
                session.step(job.feed)
            values = session.variables()
        expected = networks.run_on_one_device(job, initial)
        assert networks.relative_error(values, expected.values) < 1e-12
    own = os.stat("/proc/self/ns/net").st_ino
    for pid in servers_of(cluster):
        assert os.stat(f"/proc/{pid}/ns/net").st_ino != own
    for task in cluster.tasks:  # what answers is a relay
        host, _, port = task.address.rpartition(":")
        place = protection.Place(host, int(port))
        with protection.tls(place) as stranger:
            assert protection.is_refused(stranger)


def test_both_processes_of_a_worker_end_together_and_a_lost_one_is_named():
    before = kept_certificates()
    job = networks.network(number=12)
    with caramel.Cluster.local(2, secure=True) as cluster:
        assert len(kept_certificates() - before) == 1
        relays = [worker_pid(cluster, worker) for worker in range(2)]
        servers = list(servers_of(cluster))
        with caramel.ARModel(job.context(), workers=cluster).session() as session:
            session.step(job.feed)
            os.kill(servers[1], signal.SIGKILL)
            lost = f"lost worker 1 .*{cluster.tasks[1].address}, .*killed by signal 9"
            with pytest.raises(WorkerLostError, match=lost):
                session.step(job.feed)
        assert wait_for(lambda: not is_running(relays[1]))
        ways_out = list(children_of(relays[0]))[1:]
        os.kill(servers[0], signal.SIGSTOP)
        os.kill(relays[0], signal.SIGKILL)
        assert wait_for(lambda: not any(map(is_running, [servers[0], *ways_out])))
        assert cluster.unreachable() == cluster.tasks
        cluster.restart(cluster.tasks)
        cluster.wait_until_reachable(60.0)
        again = worker_pid(cluster, 0)
        server, way_out = children_of(again)
        os.kill(way_out, signal.SIGKILL)
        assert wait_for(lambda: not any(map(is_running, [again, server])))
    assert kept_certificates() <= before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--secure"], "--secure needs --certificates"),
        (["--certificates", "{b}"], "--certificates is for workers that strangers do not reach"),
        (["--firewalled"], "--firewalled is for workers that strangers do not reach: add --secure"),
        (
            ["--secure", "--certificates", "{b}"],
            "the certificate in '{b}' cannot be used for host '127.0.0.1': the certificate is for "
            "another host. Make a new one: caramel certificates --out DIR 127.0.0.1",
        ),
        (["--secure", "--certificates", "{all}"], "'{all}' holds no certificate (cert.pem)"),
    ],
)
def test_mistakes_of_a_worker_are_one_line(options, message, tmp_path, capsys, monkeypatch):
    from caramel.cli import main

    (b,) = make_certificates(tmp_path / "all", ["b"])
    names = {"b": b, "all": tmp_path / "all"}
    words = [option.format(**names) for option in options]
    argv = ["caramel", "worker", "--cluster", "127.0.0.1:1", "--task", "0", *words]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as ended:
        main.main()
    errors = capsys.readouterr().err
    assert (ended.value.code, errors.count("\n")) == (2, 1)
    assert errors.startswith(f"caramel: error: {message.format(**names)}")


def test_a_port_in_use_is_one_line(tmp_path):
    (own,) = make_certificates(tmp_path / "all", [protection.HOST])
    with socket.create_server((protection.HOST, 0)) as other:
        address = f"{protection.HOST}:{other.getsockname()[1]}"
        command = [*WORKER, "--cluster", address, "--task", "0", "--secure", "--certificates", own]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        f"caramel: error: worker 0 (/job:worker/task:0) cannot listen on {address}: Address already"
    )
    assert done.stderr.count("\n") == 1


def test_a_program_that_may_not_connect_is_told_why(cluster, tmp_path):
    (stranger,) = make_certificates(tmp_path / "all", [protection.HOST])
    addresses = cluster.as_dict()
    with (
        caramel.Cluster.of(addresses, certificates=stranger) as others,
        pytest.raises(WorkerStartError, match="worker 0 .*: the certificate is of another auth"),
    ):
        others.wait_until_reachable(0.1)
    before = set(children_of(os.getpid()))
    with caramel.Cluster.of(addresses, certificates=stranger) as others:
        others.unreachable()
        (relay,) = set(children_of(os.getpid())) - before
        os.kill(relay, signal.SIGKILL)
        with pytest.raises(ClusterError, match="relay of this program has ended: killed by sig"):
            others.unreachable()
    with pytest.raises(ClusterError, match="start 'caramel worker --secure' for each"):
        caramel.Cluster.of(addresses, certificates=stranger, task=0)


FORBIDDEN = """
import ctypes, runpy, sys
from caramel.protection import namespace
def forbid(what):
    raise PermissionError(1, "Operation not permitted")
namespace._unshare = forbid
sys.argv = ["caramel", *sys.argv[1:]]
runpy.run_module("caramel", run_name="__main__", alter_sys=True)
"""


def test_where_namespaces_are_forbidden_only_a_firewall_helps(tmp_path):
    (own,) = make_certificates(tmp_path / "all", [protection.HOST])
    port = free_ports(1)[0]
    address = f"{protection.HOST}:{port}"
    words = ["worker", "--cluster", address, "--task", "0", "--secure", "--certificates", own]
    command = [sys.executable, "-c", FORBIDDEN, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "caramel: error: this system allows no network namespace (Operation not permitted)"
    )
    assert done.stderr.count("\n") == 1
    job = networks.network(number=12)
    with (
        subprocess.Popen([*command, "--firewalled"], stdout=subprocess.PIPE, text=True) as worker,
        caramel.Cluster.of([address], certificates=own) as cluster,
    ):
        assert "listening on" in worker.stdout.readline()
        with caramel.ARModel(job.context(), workers=cluster).session() as session:
            assert session.step(job.feed) > 0
        with protection.tls(protection.Place(protection.HOST, port)) as connection:
            assert protection.is_refused(connection)
        worker.terminate()
        assert worker.wait(60) == 0


TRAIN = """
import sys
import caramel
from tests.support import networks
job = networks.network("momentum", number=42)
cluster = caramel.Cluster.of(sys.argv[1].split(","), certificates=sys.argv[2])
with caramel.ARModel(job.context(), workers=cluster).session() as session:
    initial = session.variables()
    for _ in range(networks.STEPS - 1):
        session.step(job.feed)
    print("ready", flush=True)
    sys.stdin.readline()
    session.step(job.feed)
    values = session.variables()
expected = networks.run_on_one_device(job, initial)
print("equal:", networks.relative_error(values, expected.values) < 1e-12, flush=True)
"""

ATTACK = """
import json, socket, sys
from pathlib import Path
from tests.support import protection
place, hosts, other = protection.Place(sys.argv[1], 2222), *map(Path, sys.argv[2:])
slow = socket.create_connection((place.host, place.port), 60)
slow.sendall(b"\\x16\\x03\\x01\\x02")  # the begin of a ClientHello
flood = [socket.create_connection((place.host, place.port), 60) for _ in range(1000)]
print("flooded", flush=True)
sys.stdin.readline()
said = {"slow": protection.is_refused(slow)}
with socket.create_connection((place.host, place.port), 60) as plain:
    plain.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n")
    said["plain"] = protection.is_refused(plain)
for name in ("nobody", "stranger", "expired", "revoked", "host"):
    directory = {"nobody": None, "stranger": other}.get(name, hosts / name)
    with protection.tls(place, directory) as connection:
        try:
            said[name] = connection.recv(1).decode()
        except OSError:
            said[name] = ""
print(json.dumps(said), flush=True)
"""


@pytest.mark.namespaces
@pytest.mark.skipif(bool(testbed.missing()), reason="needs network namespaces")
def test_another_host_gets_nowhere_and_disturbs_no_training(tmp_path):
    with testbed.Testbed(2) as bed:
        hosts = [host.address for host in bed.hosts]
        root = tmp_path / "own"
        own = make_certificates(root, [*hosts, "host", "revoked"])
        make_certificates(root, ["expired"], days=1e-9)
        revoke(root, "revoked")
        (stranger,) = make_certificates(tmp_path / "other", hosts[:1])
        cluster = ",".join(f"{host}:2222" for host in hosts)

        def on_host(number, command):
            host, pipe = bed.hosts[number], subprocess.PIPE
            options = {"start_new_session": True, "text": True}
            return forking.Popen(command, host=host, stdin=pipe, stdout=pipe, **options)

        workers = []
        for task, directory in enumerate(own[:2]):
            options = ["--cluster", cluster, "--task", str(task), "--certificates", str(directory)]
            workers.append(on_host(task, [*WORKER, *options, "--secure"]))
        for each in workers:
            assert "listening on" in each.stdout.readline()
        program = [sys.executable, "-c", textwrap.dedent(TRAIN), cluster, str(own[0])]
        client = on_host(0, program)
        assert "ready" in client.stdout.readline()
        seen = bed.run(0, ["ss", "-ltnH"]).stdout.splitlines()
        reachable = {line.split()[3] for line in seen}
        assert {each for each in reachable if not each.startswith("127.0.0.1:")} == {"*:2222"}
        program = [sys.executable, "-c", ATTACK, hosts[0], str(root), str(stranger)]
        attacker = on_host(1, program)
        assert attacker.stdout.readline() == "flooded\n"
        client.stdin.write("go\n")
        client.stdin.flush()
        assert client.stdout.readline() == "equal: True\n"
        attacker.stdin.write("go\n")
        attacker.stdin.flush()
        said = json.loads(attacker.stdout.readline())
    nothing = dict.fromkeys(("nobody", "stranger", "expired"), "")
    assert said == {"slow": True, "plain": True, **nothing, "revoked": "r", "host": "+"}
    for each in (*workers, client, attacker):
        each.stdin.close()
        each.stdout.close()
        each.wait()
