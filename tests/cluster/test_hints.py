"""What a worker says of its machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from caramel.cluster.processes import LISTENING, free_ports
from tests.support import forking


def said(*, congestion, onednn, task=0):
    """What one of two workers of this machine says, if these are its hints."""
    program = (
        "import caramel.cli.main as cli;"
        "from caramel.cluster import onednn_check, tcp_check;"
        f"tcp_check.advice = lambda addresses: {congestion!r};"
        f"onednn_check.advice = lambda: {onednn!r};"
        "cli.main()"
    )
    cluster = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    with forking.Popen(
        [sys.executable, "-c", program, "worker", "--cluster", cluster, "--task", str(task)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        assert LISTENING in worker.stdout.readline()
        worker.terminate()  # it ends once it has said what it has to say
        return worker.communicate(timeout=100)[1]


@pytest.mark.processes
def test_a_worker_says_what_to_change_once_it_listens():
    both = "caramel: change that.\ncaramel: set this.\n"
    assert said(congestion="change that", onednn="set this") == both


@pytest.mark.processes
def test_a_worker_says_nothing_if_all_is_well():
    assert said(congestion=None, onednn=None) == ""


@pytest.mark.processes
def test_only_the_first_worker_of_a_machine_says_it():
    assert said(congestion="change that", onednn="set this", task=1) == ""
