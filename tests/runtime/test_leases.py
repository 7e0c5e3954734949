"""What clients leave on workers that go on is removed by the next one; what is in use is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import replace

import pytest
import tensorflow as tf

import caramel
from caramel.cluster.servers import embedded_servers
from caramel.native.session import GraphSession
from caramel.runtime.execution import leases
from caramel.runtime.execution.clients import Client
from caramel.runtime.execution.leases import Leases
from tests.support import forking
from tests.support.commands import ROOT
from tests.support.containers import is_there
from tests.support.networks import network

CLIENT = textwrap.dedent(
    """
    import sys
    sys.path.insert(0, sys.argv[1])
    import caramel
    from tests.support.networks import network
    session = caramel.ARModel(network(number=12).context(), sys.argv[2:]).session(trials=None)
    print(session._running.runner.containers.on_workers, flush=True)
    sys.stdin.readline()
    session.close()
    """
)


def client(addresses):
    """A program that has a session until its input says something."""
    words = [sys.executable, "-c", CLIENT, str(ROOT), *addresses]
    return forking.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_what_a_killed_client_left_is_removed_and_what_others_have_is_not():
    job = network(number=12)
    with caramel.Cluster.local(2) as cluster:
        addresses = [task.address for task in cluster.tasks]
        model = caramel.ARModel(job.context(), addresses)
        variable = model.plan.job.variables[0].handle

        def where_is(container):
            return [
                worker
                for worker in range(2)
                if is_there(
                    f"grpc://{addresses[0]}",
                    f"/job:worker/task:{worker}",
                    container,
                    f"worker_{worker}/{variable}",
                )
            ]

        with client(addresses) as killed, client(addresses) as living:
            left, used = (each.stdout.readline().strip() for each in (killed, living))
            killed.kill()
            killed.wait()
            assert where_is(left) == where_is(used) == [0, 1]
            with model.session(trials=None) as session:
                assert where_is(left) == []
                assert where_is(used) == [0, 1]
                own = session._running.runner.containers.on_workers
                assert session.step(job.feed) > 0
            assert where_is(own) == []
            living.communicate("end\n")
        assert where_is(used) == []
        assert living.returncode == 0
        told = cluster._local.errors_tail(1)
        for who, did in (
            (killed.pid, "opened by process {} of \\S+"),
            (killed.pid, "left open by process {} of \\S+, which is gone"),
            (os.getpid(), "closed by process {} of \\S+"),
            (living.pid, "closed by process {} of \\S+"),
        ):
            line = rf"^caramel: session {did.format(who)} \(\S+ \S+ \S+\)\.$"
            assert re.search(line, told, re.MULTILINE)


OTHER_BOOT = {"boot": "another time"}
OTHER_CONTAINER = {"namespaces": "another container"}


@pytest.mark.parametrize(
    ("changes", "lease_s", "is_removed"),
    [
        ({}, -1, False),  # it can be seen
        ({"start": "0"}, 900, True),  # its number was given to another one
        (OTHER_BOOT, 900, False),
        (OTHER_BOOT, -1, True),
        ({**OTHER_CONTAINER, "start": "0"}, 900, False),
        (OTHER_CONTAINER, -1, True),
    ],
)
def test_leases_count_where_a_process_cannot_be_seen(changes, lease_s, is_removed, monkeypatch):
    servers, dropped = embedded_servers(1), []
    monkeypatch.setattr(leases, "drop", lambda names, at: dropped.append((*names, *at)))
    here, names = Client.here(), ("on workers", "on servers")
    with ExitStack() as stack:

        def entered(*containers):
            config = tf.compat.v1.ConfigProto()
            addresses = {"/job:worker/task:0": servers.addresses[0]}
            session = GraphSession(servers.target, config, next(iter(addresses)))
            found = Leases(session, addresses, containers)
            stack.callback(found.close)
            stack.callback(found.stop)
            found.enter()

        with monkeypatch.context() as patch:
            patch.setattr(leases, "LEASE_S", lease_s)
            patch.setattr(Client, "here", lambda: replace(here, **changes))
            entered(*names)
        entered("mine")
        entered("mine, too")  # what was removed is no longer in the table
        assert dropped == ([(*names, *servers.addresses)] if is_removed else [])


def test_a_process_is_gone_when_it_has_ended_although_nobody_has_noticed():
    here = Client.here()
    assert here.seen_by(here) == "there"
    earlier = replace(here, start="0")
    assert earlier.seen_by(here) == "gone"  # what has this number now began at another time
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    ended = replace(here, pid=child.pid)
    assert ended.seen_by(here) == "gone"
    child.wait()
    assert ended.seen_by(here) == "gone"
    assert here.seen_by(replace(here, boot="")) == "unknown"
