"""`caramel plan` plans a job from a profile and prints a table, without running anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from commands import called
from networks import network, tf, wide

from caramel.facts import TimingTable
from caramel.fingerprint import Machine, graph_hash
from caramel.network import assumed_network
from caramel.plan import Plan
from caramel.profile import Profile

TESTS = Path(__file__).parent


def make_context():
    """The job of these tests, which the command imports from here."""
    return network("momentum", model=wide).context()


def profile_of(context, path):
    graph = context.op_graph
    Profile(
        tensorflow=tf.__version__,
        machine=Machine("some processor", 2, "CPU"),
        graph=graph_hash(context.graph_def),
        timing=TimingTable({op.name: 1e-3 for op in graph if op.inputs}),
        networks=(assumed_network(2, 2e6, 1e-4),),
    ).save(path)


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "caramel", "plan", *map(str, arguments)],
        cwd=TESTS,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_plan_is_printed_and_saved(tmp_path):
    profile_of(make_context(), tmp_path / "profile.json")
    finished = run(
        "--module",
        "test_plan_command:make_context",
        "--profile",
        tmp_path / "profile.json",
        "--save",
        tmp_path / "plan.json",
    )
    assert finished.returncode == 0, finished.stderr
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    assert "2 workers, 4 gradients in" in finished.stdout
    for group in plan.groups:
        assert group.name in finished.stdout
        assert group.reason.split()[0] in finished.stdout
    assert "deferred" in finished.stdout


def test_a_profile_of_another_job_gives_one_line(tmp_path, monkeypatch, capsys):
    path = tmp_path / "profile.json"
    profile_of(network("adam").context(), path)
    words = ["plan", "--module", "test_plan_command:make_context", "--profile", path]
    finished = called(monkeypatch, capsys, TESTS, *words)
    assert finished.returncode == 2
    assert "another graph" in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1
