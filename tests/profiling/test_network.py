"""Measuring a network, and ``caramel profile``: from running workers to a file."""

from __future__ import annotations

import os
import re
import sys
import textwrap

import pytest

import caramel
from caramel.cluster.processes import free_ports
from caramel.core.calibration import DEFAULT
from caramel.core.errors import PlanError, ProfileError
from caramel.core.patterns import frugal_patterns
from caramel.core.profile import Profile
from caramel.core.util.fingerprint import graph_hash
from caramel.profiling.network import measure_network
from caramel.runtime.session import Session
from caramel.simulation.network_model import fit_network
from tests.support import forking
from tests.support.commands import ROOT, called

SIZES = (64, 64 * 2**10)

JOB = """
    from tests.support import networks
    import caramel

    def make_context():
        job = networks.network("adam")
        return job.context(), job.feed

    def without_a_feed():
        return make_context()[0]

    def graph_only():
        return networks.network().graph

    def failing():
        raise ValueError("no data here")
"""


# Measuring --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3])
def test_aggregations_and_pairs_are_measured(workers):
    patterns = frugal_patterns(workers)
    turns = []
    measured = measure_network(
        workers, sizes=SIZES, repeats=5, progress=lambda *turn: turns.append(turn)
    )
    assert measured.workers == workers
    alone = [each for each in measured.aggregations if each.tensors == 1]
    keys = [(each.pattern, each.size_bytes) for each in alone]
    assert sorted(keys) == sorted((pattern, size) for pattern in patterns for size in SIZES)
    assert all(len(each.seconds) == 5 and each.least_s > 0.0 for each in alone)
    *together, many = [each for each in measured.aggregations if each.tensors > 1]
    assert [
        (each.pattern, each.size_bytes, each.tensors, len(each.seconds)) for each in together
    ] == [(pattern, max(SIZES), 4, 1) for pattern in patterns]
    assert (many.pattern, many.size_bytes, many.tensors) == (patterns[0], 64 * 64, 64)
    assert len(measured.empty_seconds) == 5
    pairs = [(each.source, each.target, each.size_bytes) for each in measured.sends]
    assert len(set(pairs)) == len(pairs) == workers * (workers - 1) * len(SIZES)
    assert measured.addresses == ("",) * workers
    series = len(patterns) * len(SIZES) + 1
    assert turns[4 * series - 1] == ("aggregations", 4 * series, 4 * series)
    assert turns[-1][0] == "pairs"
    assert turns[-1][1] == turns[-1][2]
    model = fit_network(measured)
    assert set(model.costs) == set(patterns)
    assert len(model.links) == workers * (workers - 1)
    assert model.bytes_per_s > 0.0
    assert model.request_s >= 0.0  # none is found if the machine is busy


def test_nothing_is_planned_while_it_is_measured(monkeypatch):
    planning = []

    def session(jobs, settings, *given, **options):
        planning.append(settings.trials)
        return Session(jobs, settings, *given, **options)

    monkeypatch.setattr("caramel.models.model.Session", session)
    measure_network(2, patterns=["ring"], sizes=(4, 8), repeats=1, pairs=False)
    assert planning == [None] * 5


def test_what_is_measured_can_be_chosen():
    measured = measure_network(2, patterns=["ring"], sizes=(4, 8, 8), repeats=1, pairs=False)
    assert [(t.pattern, t.size_bytes, t.tensors) for t in measured.aggregations] == [
        ("ring", 4, 1),
        ("ring", 8, 1),
        ("ring", 16, 4),
        ("ring", 4096, 64),
    ]
    assert (measured.sends, measured.empty_send_seconds) == ((), ())


def test_the_measuring_jobs_send_what_they_should():
    from caramel.profiling.network import aggregation_job, empty_job

    for job in (aggregation_job(4096), aggregation_job(1024, 4)):
        sent = caramel.ARModel(job, 2, pattern="shuffle").traffic
        assert sum(sent.bytes.values()) == 2 * 4096
    nothing = caramel.ARModel(empty_job(), 2, pattern="shuffle").traffic
    assert sum(nothing.bytes.values()) == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"workers": 1}, ProfileError, "one worker sends nothing"),
        ({"sizes": (64,)}, ProfileError, "two different sizes"),
        ({"sizes": (64, 64)}, ProfileError, "two different sizes"),
        ({"sizes": (64, 101)}, ProfileError, "101 bytes .*multiples of 4"),
        ({"patterns": ()}, ProfileError, "no pattern"),
        ({"patterns": ("star",)}, PlanError, "unknown pattern 'star'"),
        ({"repeats": 0}, ProfileError, "0 repeats"),
    ],
)
def test_what_makes_no_sense_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        measure_network(options.pop("workers", 2), **options)


# The command ------------------------------------------------------------------------------------


def run(directory, *arguments):
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return forking.run(
        [sys.executable, "-m", "caramel", "profile", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": path, "CARAMEL_CACHE": str(directory / "cache")},
    )


@pytest.fixture
def directory(tmp_path):
    (tmp_path / "my_job.py").write_text(textwrap.dedent(JOB))
    return tmp_path


def own_hash():
    from tests.support import networks

    return graph_hash(networks.network("adam").context().graph_def)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_a_profile_of_network_and_ops(directory, monkeypatch, capsys):
    with caramel.Cluster.local(2) as cluster:
        workers = ",".join(task.address for task in cluster.tasks)
        result = run(
            directory,
            *("--out", "profile.json", "--workers", workers, "--sizes", "64,16KiB"),
            *("--repeats", 4, "--module", "my_job:make_context", "--steps", 4),
        )
    assert result.returncode == 0, result.stderr
    assert "written to profile.json" in result.stdout
    assert "2 workers: " in result.stdout
    assert "halving_doubling" in result.stdout
    assert "least of 4 steps" in result.stdout
    assert "transfers cost this machine" in result.stdout
    assert "Traceback" not in result.stderr
    assert "oneDNN" not in result.stderr
    profile = Profile.load(directory / "profile.json")
    assert profile.timing_of(own_hash()).steps == 4
    assert {each.parameter for each in profile.outline.gradients} == {"w1", "w2", "b1", "b2"}
    timed_s = sum(profile.timing.seconds.values())
    assert profile.outline.free.computation_s <= timed_s * (1 + 1e-9)  # added in another order
    assert set(profile.network(2).costs) == set(frugal_patterns(2))
    assert profile.measurements[0].addresses == tuple(workers.split(","))
    sizes = {(each.tensors, each.size_bytes) for each in profile.measurements[0].aggregations}
    assert sizes == {(1, 64), (1, 16384), (4, 16384), (64, 64 * 64)}

    monkeypatch.setattr("caramel.cli.profile.measure_calibration", lambda progress: DEFAULT)
    words = ["--out", "profile.json", "--module", "my_job:make_context", "--add"]
    again = called(monkeypatch, capsys, directory, "profile", *words)
    assert again.returncode == 0, again.stderr
    joined = Profile.load(directory / "profile.json")
    assert joined.timing.steps == 10
    assert joined.networks == profile.networks
    assert joined.calibration == profile.calibration


@pytest.mark.processes
def test_a_worker_that_is_not_there_is_named(directory):
    (port,) = free_ports(1)
    result = run(directory, "--out", "p.json", "--workers", f"127.0.0.1:{port},127.0.0.1:1")
    assert result.returncode == 2
    assert f"127.0.0.1:{port}" in result.stderr
    assert not (directory / "p.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to measure: name --workers .*--module"),
        (["--workers", "here"], "'here' describes no workers"),
        (["--workers", "{bad"], "--workers: it is not valid JSON"),
        (["--workers", "a:1,b:1", "--sizes", "64,big"], "--sizes must be .* not 'big'"),
        (["--module", "my_job"], "'my_job' does not name a function; expected module:function"),
        (["--module", "nowhere:f"], "cannot import 'nowhere': ModuleNotFoundError"),
        (["--module", "my_job:f"], "module 'my_job' has no function 'f'"),
        (["--module", "my_job:graph_only"], "returned Graph; expected a caramel.Context"),
        (["--module", "my_job:failing"], r"failed: ValueError: no data here \(my_job.py, line 16"),
        (
            ["--module", "my_job:without_a_feed"],
            "nothing is fed for 'x:0', 'y:0': my_job:without_a_feed",
        ),
        (["--module", "my_job:make_context", "--device", "/GPU:9"], "there is no device '/GPU:9'"),
        (["--module", "my_job:make_context", "--device", "gpu"], "'gpu' is not a device name"),
    ],
)
def test_a_mistake_is_one_clear_line(directory, arguments, message, monkeypatch, capsys):
    words = ["profile", "--out", "profile.json", *arguments]
    result = called(monkeypatch, capsys, directory, *words)
    assert result.returncode == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("caramel: error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert re.search(message, lines[0]), result.stderr
    assert not (directory / "profile.json").exists()


def test_a_directory_that_is_not_there_is_noticed_first(directory, monkeypatch, capsys):
    words = ["profile", "--out", "no/profile.json", "--module", "my_job:make_context"]
    result = called(monkeypatch, capsys, directory, *words)
    assert result.returncode == 2
    assert "there is no directory 'no'" in result.stderr
