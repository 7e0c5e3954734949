"""`caramel plan` plans a job from a profile and prints a table, without running anything."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

import caramel
from caramel.cli import main, user_job
from caramel.core.decision import Gate
from caramel.core.errors import GraphError
from caramel.core.plan import Plan
from caramel.core.profile import Profile
from caramel.core.time_facts import TimingTable, TransferWindows, Window
from caramel.core.util import progress
from caramel.core.util.fingerprint import Machine, graph_hash
from caramel.core.util.sizes import bytes_texts
from caramel.report.plan_table import show_plan
from caramel.simulation.network_model import assumed_network
from tests.support import forking
from tests.support.commands import ROOT, called
from tests.support.displays import Recorded
from tests.support.networks import network, tf, wide

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
    return forking.run(
        [sys.executable, "-m", "caramel", "plan", *map(str, arguments)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_an_order_for_parameter_servers_is_printed_saved_and_explained_on_a_page(tmp_path):
    context = make_context()
    profile_of(context, tmp_path / "profile.json")
    finished = run(
        *("--module", "test_plan_command:make_context", "--profile", tmp_path / "profile.json"),
        *("--parameter-servers", 1, "--out", tmp_path / "plan.json"),
        *("--page", tmp_path / "order.html"),
    )
    assert finished.returncode == 0, finished.stderr
    assert "What workers receive: by a search, from measured times" in finished.stdout
    assert "/job:ps/task:0" in finished.stdout
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    assert (plan.workers, len(plan.job.servers), len(plan.decision.pulls)) == (2, 1, 4)
    assert "2 workers and 1 server" in (tmp_path / "order.html").read_text()
    hosts = (["a:1", "b:1"], ["c:1"])
    assert caramel.PSModel(context, *hosts, plan=plan).plan.decision == plan.decision


def test_the_plan_is_printed_and_saved(tmp_path):
    profile_of(make_context(), tmp_path / "profile.json")
    finished = run(
        "--module",
        "test_plan_command:make_context",
        "--profile",
        tmp_path / "profile.json",
        "--out",
        tmp_path / "plan.json",
    )
    assert finished.returncode == 0, finished.stderr
    plan = Plan.from_json((tmp_path / "plan.json").read_text())
    assert "2 workers, 4 gradients in" in finished.stdout
    for group in plan.decision.groups:
        assert group.name in finished.stdout


def test_a_row_says_all_about_its_group():
    plan = caramel.ARModel(network("adam").context(), 2, planner="plain").plan
    groups = [dataclasses.replace(group, deferred=True) for group in plan.decision.groups]
    first = groups[0] = dataclasses.replace(
        groups[0], pattern="ring", depth=2, reason="it fills the forward pass"
    )
    windows = {g.parameter: Window(0.5, 0.25) for g in plan.job.gradients}
    out = io.StringIO()
    gates = (Gate("group_0", "group_3"),)
    plan = plan.deciding(groups=tuple(groups), gates=gates)
    show_plan(plan, TransferWindows(windows, 0.75, 0.75), Console(file=out, width=200))
    rows = [re.split(" {2,}", line.strip()) for line in out.getvalue().split("\n")]
    (header,) = [row for row in rows if "group" in row]
    (row,) = [row for row in rows if row[0] == first.name]
    assert dict(zip(header, row, strict=True)) == {
        "group": first.name,
        "parameters": "1",
        "size": bytes_texts([plan.bytes(group) for group in groups])[0],
        "depth": "2",
        "ready ms": "500.00",
        "needed ms": "250.00",
        "pattern": "ring",
        "when": "deferred",
        "waits for": "group_3",
        "why": "it fills the forward pass",
    }
    assert "4 deferred; 0 control edges, 1 gate" in out.getvalue()


def test_on_a_narrow_terminal_reasons_stand_below_the_table():
    plan = caramel.ARModel(network("adam").context(), 2, planner="plain").plan
    reason = "it is as long as a sentence with all the times that are told in it, or longer"
    groups = [dataclasses.replace(group, reason=reason) for group in plan.decision.groups]
    out = io.StringIO()
    show_plan(plan.deciding(groups=tuple(groups)), None, Console(file=out, width=80))
    below = " ".join(out.getvalue().split("\n")[-3:]).split()
    assert " ".join(below).endswith(f"{groups[3].name}: {reason}")
    assert out.getvalue().count("as long as a sentence") == 1


@pytest.mark.parametrize("option", ["--out", "--page"])
def test_a_directory_that_is_not_there_is_told_before_anything_is_planned(
    option, tmp_path, monkeypatch, capsys
):
    words = ["plan", "--module", "nothing:here", "--profile", "nothing.json"]
    where = tmp_path / "missing" / "file"
    finished = called(monkeypatch, capsys, TESTS, *words, option, where)
    assert finished.returncode == 2
    assert "missing" in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1


def test_a_profile_of_another_job_gives_one_line(tmp_path, monkeypatch, capsys):
    path = tmp_path / "profile.json"
    profile_of(network("adam").context(), path)
    words = ["plan", "--module", "test_plan_command:make_context", "--profile", path]
    finished = called(monkeypatch, capsys, TESTS, *words)
    assert finished.returncode == 2
    assert "another graph" in finished.stderr
    assert len(finished.stderr.strip().splitlines()) == 1


def test_what_a_command_loads_is_told(monkeypatch, tmp_path):
    display = Recorded()
    monkeypatch.setattr(progress, "_display", display)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job_that_fails.py").write_text("def make(): raise ValueError('no data')")
    main._load("caramel.cli.user_job")
    with pytest.raises(GraphError, match="no data"):
        user_job.load_job("job_that_fails:make")
    assert display.begun == ["loading TensorFlow", "loading Caramel", "building the job"]
