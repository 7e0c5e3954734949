"""`caramel trace` traces steps on a cluster, and shows and writes what every worker did."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import caramel
from caramel.cli.trace import Traced, show_traced, trace_job
from caramel.cli.user_job import UserJob
from caramel.core import names
from caramel.core.errors import PlanError
from caramel.core.profile import Profile
from caramel.core.time_facts import TimingTable
from caramel.core.timeline import Span, Timeline
from caramel.core.util.fingerprint import Machine, graph_hash
from caramel.simulation.network_model import assumed_network
from tests.support import forking
from tests.support.commands import ROOT, called
from tests.support.networks import (
    FEATURES,
    cross_entropy,
    network,
    optimized,
    perceptron,
    tf,
    tf1,
    wide,
)

TESTS = Path(__file__).parent


def make_context():
    """The job of these tests, which the command imports from here, with what a worker is fed."""
    job = network("momentum", model=wide, number=20)
    return job.context(), job.feed


def make_unfed_context():
    return make_context()[0]


def run(*arguments, **environment):
    return forking.run(
        [sys.executable, "-m", "caramel", "trace", *map(str, arguments)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


# A job ------------------------------------------------------------------------------------------


def test_every_worker_gets_what_one_worker_is_fed():
    given = network("gradient_descent", number=6)
    context = given.context()
    numbers = []

    def feed(step):
        numbers.append(step)
        return given.feed

    traced = trace_job(UserJob(context, feed), caramel.Cluster.embedded(2), steps=2)
    assert len(traced.timelines) == 2
    assert numbers[:5] == [0, 1, 2, 3, 4]  # two without a trace, one that is not looked at
    for timeline in traced.timelines:
        assert timeline.workers == (0, 1)
        assert all(timeline.sent_bytes(worker) > 0 for worker in range(2))


def pipeline_job(elements):
    """A job with a pipeline whose data are fed when it starts."""
    with tf.Graph().as_default() as graph:
        data = tf1.placeholder(tf.float64, [None, FEATURES], name="data")
        scale = tf1.placeholder(tf.float64, [], name="scale")
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(1)
        iterator = tf1.data.make_initializable_iterator(dataset)
        x = iterator.get_next() * scale
        labels = tf.zeros([tf.shape(x)[0]], tf.int32)
        loss = cross_entropy(perceptron(x), labels)
        train_op, _ = optimized(loss, lambda step: tf1.train.GradientDescentOptimizer(0.1))
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    return UserJob(context, {"data:0": np.ones((elements, FEATURES)), "scale:0": 2.0})


def test_pipelines_are_started_and_start_again_when_they_end():
    traced = trace_job(pipeline_job(elements=4), caramel.Cluster.embedded(2), steps=3)
    assert len(traced.timelines) == 3


def test_a_pipeline_that_is_too_short_is_named():
    with pytest.raises(caramel.CaramelError, match="one element for each worker .*MakeIterator"):
        trace_job(pipeline_job(elements=1), caramel.Cluster.embedded(2), steps=1)


def test_steps_that_compare_bits_are_not_shown(monkeypatch):
    """Sums of bits take longer than the rest of a small step."""
    usual = Timeline((Span("receive", "a", 0.0, 1.0, 0), Span("receive", "a", 0.0, 1.0, 1)))
    sums = Span("reduce", names.in_group("group_0", 1, "checksum", "bits"), 1.0, 2.0, 1)
    comparing = Timeline((*usual.spans, sums))
    seen = iter([comparing, comparing, usual, comparing, usual])
    monkeypatch.setattr(caramel.Session, "trace", lambda self, steps, feed: (next(seen),))
    given = network("gradient_descent", number=6)
    job = UserJob(given.context(), given.feed)
    assert trace_job(job, caramel.Cluster.embedded(2), steps=2).timelines == (usual, usual)


def test_times_below_a_millisecond_are_shown_in_microseconds(capsys):
    context, _ = make_context()
    plan = caramel.ARModel(context, 2).plan
    lengths_s = {"compute": 2.34e-3, "reduce": 39e-6, "send": 1.5e-3, "receive": 1.5e-3}
    step = Timeline(
        tuple(Span(kind, kind, 0.0, s, w) for kind, s in lengths_s.items() for w in range(2))
    )
    show_traced(Traced((step, step), plan), Console(width=200))
    assert "│ 2.3 │ 0.039 │ 1.5 │ 1.5 │ 2.3 │" in re.sub(" +", " ", capsys.readouterr().out)


# The command ------------------------------------------------------------------------------------


@pytest.mark.processes
def test_steps_on_running_workers_are_written_drawn_and_shown(two_processes, tmp_path):
    context, _ = make_context()
    model = caramel.ARModel(context, 2)
    groups = tuple(
        dataclasses.replace(group, deferred=True) for group in model.plan.decision.groups
    )
    plan = model.plan.deciding(groups=groups)
    (tmp_path / "plan.json").write_text(plan.to_json())
    result = run(
        *("--module", "test_trace_command:make_context", "--steps", 2),
        *("--workers", ",".join(task.address for task in two_processes.tasks)),
        *("--out", tmp_path / "trace.json", "--plan", tmp_path / "plan.json"),
        *("--figure", tmp_path / "trace.svg"),
    )
    assert result.returncode == 0, result.stderr
    lines = [line.strip(" │|") for line in result.stdout.splitlines()]
    assert "2 workers, median of 2 traced steps, in ms" in lines
    table = [[cell.strip() for cell in line.split("│")] for line in lines]
    shown = {
        row[0]: [float(cell.replace("-", "nan")) for cell in row[1:] if cell]
        for row in table
        if len(row) == 9
    }
    assert set(shown) >= {"0", "1", "all"}
    assert len(shown["0"]) == 8
    assert all(number > 0 for number in shown["0"][:5]), shown
    assert re.search(r"the busiest link is idle for [\d.]+ ms before its first", result.stdout)
    assert f"written to {tmp_path / 'trace.json'}" in result.stdout
    assert f"written to {tmp_path / 'trace.svg'}" in result.stdout
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    processes = [each["args"]["name"] for each in events if each["name"] == "process_name"]
    assert processes == ["measured, worker 0", "measured, worker 1"]
    sent = {each["name"] for each in events if each.get("cat") == "send"}
    for group in groups:
        assert any(f"caramel/{group.name}/" in name for name in sent), group.name
    assert ElementTree.parse(tmp_path / "trace.svg").getroot().tag.endswith("svg")


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_workers_are_started_and_a_profile_gives_a_prediction(tmp_path, monkeypatch, capsys):
    context, _ = make_context()
    Profile(
        tensorflow=tf.__version__,
        machine=Machine("some processor", 2, "CPU"),
        graph=graph_hash(context.graph_def),
        timing=TimingTable({op.name: 1e-4 for op in context.op_graph if op.inputs}),
        networks=(assumed_network(2, 2e6, 1e-4),),
    ).save(tmp_path / "profile.json")
    words = (
        *("--module", "test_trace_command:make_context", "--workers", "local:2", "--steps", 1),
        *("--out", tmp_path / "trace.json", "--profile", tmp_path / "profile.json"),
    )
    result = called(monkeypatch, capsys, TESTS, "trace", *words)
    assert result.returncode == 0, result.stderr
    assert "predicted" in result.stdout
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [each["args"]["name"] for each in events if each["name"] == "process_name"] == [
        *("predicted, worker 0", "predicted, worker 1"),
        *("measured, worker 0", "measured, worker 1"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--out", "nowhere/trace.json"), "there is no directory 'nowhere'"),
        (("--out", "x.json", "--figure", "x.jpg"), "cannot draw x.jpg"),
        (("--out", "x.jpg"), "cannot draw x.jpg: the name of a picture ends in .svg"),
        (("--out", "x.json", "--workers", "2", "--module", "a.py:f"), "is a file; write a:f"),
        (("--out", "x.json"), "TF_CONFIG"),
        (("--out", "/"), "cannot write /: it is a directory"),
    ],
)
def test_mistakes_give_one_line(arguments, message, monkeypatch, capsys):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    words = ["trace", "--module", "test_trace_command:make_context", *arguments]
    result = called(monkeypatch, capsys, TESTS, *words)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["trace", "profile"])
def test_a_job_that_needs_to_be_fed_and_is_not_is_told_how(command, tmp_path, monkeypatch, capsys):
    words = ["--module", "test_trace_command:make_unfed_context", "--out", tmp_path / "x.json"]
    workers = ["--workers", "2"] if command == "trace" else []
    result = called(monkeypatch, capsys, TESTS, command, *words, *workers)
    assert result.returncode == 2
    assert "nothing is fed for 'x:0', 'y:0': test_trace_command:make_unf" in result.stderr
    assert "has to return a pair, the Context and what one worker is fed" in result.stderr


def test_a_damaged_plan_is_named_with_its_file(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    given = network("gradient_descent", number=6)
    job = UserJob(given.context(), given.feed)
    with pytest.raises(PlanError, match=f"cannot read the plan {tmp_path}/plan.json: "):
        trace_job(job, caramel.Cluster.embedded(2), plan=tmp_path / "plan.json")
