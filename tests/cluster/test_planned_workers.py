"""Planned training on real worker processes: the same bits, also when workers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

import caramel
from caramel.core.errors import WorkerLostError
from caramel.runtime.control.trials import TrialSettings
from tests.support import forking
from tests.support.commands import ROOT
from tests.support.networks import FLOAT64_ONLY, OPTIMIZERS, PROCESSES, network, partly, tf, wide
from tests.support.processes import worker_pid
from tests.support.slow_steps import FLAGS, every_op_takes_a_millisecond, slow_network
from tests.support.splitting import SOME, split_plan
from tests.support.variants import in_turn, with_variants

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("forked_workers")]

STEPS = 12
ALL = dict.fromkeys(FLAGS, True)
ALL_BUT_ONE = [{**ALL, flag: False} for flag in FLAGS]
ONE_ONLY = [{**dict.fromkeys(FLAGS, False), flag: True} for flag in FLAGS]


def batch(job, step):
    """Another batch in each step, of the same size."""
    return {name: np.roll(value, step, axis=0) for name, value in job.feed.items()}


def planned(context, cluster, **flags):
    facts = [every_op_takes_a_millisecond, slow_network(cluster.size)]
    options = {"pattern": "shuffle", "planner": "paper", "in_flight_bytes": 0, **flags}
    return caramel.ARModel(context, cluster, analyzers=facts, **options)


def in_parts(context, cluster):
    """Large gradients split, some of the parts deferred."""
    plain = caramel.ARModel(context, cluster, pattern="shuffle")
    return caramel.ARModel(context, cluster, plan=split_plan(plain.plan, SOME, gated=True))


def plain_values(job, context, workers, start=None, *, steps=STEPS):
    """What embedded workers have after all steps without a plan; and where they began."""
    with caramel.ARModel(context, workers, pattern="shuffle").session() as session:
        if start is not None:
            session.save(start)
        for step in range(steps):
            session.step(batch(job, step))
        return session.variables()


def assert_equal(values, expected, what):
    for name, value in expected.items():
        np.testing.assert_array_equal(values[name], value, err_msg=f"{name} {what}")


@pytest.fixture(name="processes", scope="module")
def fixture_processes():
    """Clusters of worker processes by their number, started when they are first asked for."""
    clusters = {}
    with ExitStack() as stack:

        def of(workers):
            if workers not in clusters:
                clusters[workers] = stack.enter_context(caramel.Cluster.local(workers))
            return clusters[workers]

        yield of


@pytest.mark.parametrize(
    ("workers", "combinations"),
    partly(pytest.mark.onednn, [(2, [ALL, *ALL_BUT_ONE]), (3, [ALL, *ONE_ONLY])], every=2),
)
def test_worker_processes_give_the_bits_of_plain_training(workers, combinations, processes):
    """Workers inside one process are tested with all combinations (`test_planned_model`)."""
    job = network("adam", model=wide, dtype=tf.float32, process="clip_by_global_norm")
    context = job.context()
    expected = plain_values(job, context, workers)
    for flags in combinations:
        model = planned(context, processes(workers), **flags)
        assert bool(model.plan.decision.gates) == flags["scheduling"]
        with model.session() as session:
            for step in range(STEPS):
                session.step(batch(job, step))
            for worker in range(workers):
                assert_equal(session.variables(worker=worker), expected, flags)


@pytest.mark.parametrize(
    "number", partly(pytest.mark.onednn, range(max(len(OPTIMIZERS), len(PROCESSES))))
)
def test_every_optimizer_and_clipping_gives_the_same_bits_on_worker_processes(number, processes):
    """Each optimizer with one of the clippings, on two workers or on three."""
    workers = 2 + number % 2
    optimizer = list(OPTIMIZERS)[number % len(OPTIMIZERS)]
    process = list(PROCESSES)[number % len(PROCESSES)]
    dtype = tf.float64 if optimizer in FLOAT64_ONLY else tf.float32
    job = network(optimizer, process, model=wide, dtype=dtype)
    context = job.context()
    expected = plain_values(job, context, workers)
    flags = [each for each in (ALL, *ALL_BUT_ONE, *ONE_ONLY) if each["scheduling"]]
    model = planned(context, processes(workers), **flags[number % len(flags)])
    with model.session() as session:
        for step in range(STEPS):
            session.step(batch(job, step))
        for worker in range(workers):
            assert_equal(session.variables(worker=worker), expected, f"{optimizer}, {process}")


@pytest.mark.onednn
def test_worker_processes_give_the_bits_of_plain_training_while_plans_change(processes):
    job = network("adam", model=wide, dtype=tf.float32, process="clip_by_norm")
    context = job.context()
    steps = 20  # trials take so many
    expected = plain_values(job, context, 2, steps=steps)
    model = with_variants(context, processes(2))
    with model.session() as session:
        for step in range(steps):
            session.use(in_turn(model, step, 2))
            session.step(batch(job, step))
        for worker in range(2):
            assert_equal(session.variables(worker=worker), expected, "plans in turn")
    trials = TrialSettings(rounds=2, steps=1, skipped=1, give_up=1000.0)
    with model.session(trials=trials) as session:
        for step in range(steps):
            session.step(batch(job, step))
        assert session.metrics().trials.is_over
        assert_equal(session.variables(worker=1), expected, "trials")


@pytest.mark.parametrize(
    ("make_model", "kills"),
    partly(pytest.mark.onednn, [(in_parts, [(1, 11)]), (planned, [(1, 1), (0, 5)])], every=2),
)
def test_killed_between_steps_and_restarted_training_ends_as_if_undisturbed(
    tmp_path, make_model, kills
):
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    start = tmp_path / "start"
    expected = plain_values(job, context, 2, start)
    checkpoint, done = str(start), 0
    for victim, kill_after in (*kills, (None, STEPS)):
        with caramel.Cluster.local(2) as cluster:
            model = make_model(context, cluster)
            assert model.plan.consequences.deferral.moved
            with model.session() as session:
                session.restore(checkpoint)
                for step in range(done, kill_after):
                    session.step(batch(job, step))
                    if (step + 1) % 3 == 0:  # in the middle of a deferred step
                        checkpoint, done = session.save(tmp_path / "saved"), step + 1
                if victim is None:
                    assert_equal(session.variables(), expected, "in the end")
                    continue
                os.kill(worker_pid(cluster, victim), signal.SIGKILL)
                with pytest.raises(WorkerLostError):
                    session.step(batch(job, kill_after))


CLIENT = """
import json, pathlib, sys
import numpy as np
import caramel
from tests.cluster.test_planned_workers import STEPS, batch, network, planned, tf, wide

directory = pathlib.Path(sys.argv[1])
job = network("adam", model=wide, dtype=tf.float32)
model = planned(job.context(), caramel.Cluster.embedded(2))
assert model.plan.consequences.deferral.moved
with model.session() as session:
    saved = json.loads((directory / "saved.json").read_text())
    session.restore(saved["checkpoint"])
    for step in range(saved["steps"], STEPS):
        session.step(batch(job, step))
        if (step + 1) % 3 == 0:
            checkpoint = session.save(directory / "saved")
            saved = {"checkpoint": str(checkpoint), "steps": step + 1}
            (directory / "saved.json").write_text(json.dumps(saved))
        print(step + 1, flush=True)
        sys.stdin.readline()
    np.savez(directory / "values.npz", **session.variables())
"""


def test_a_client_killed_between_steps_and_restarted_ends_as_if_undisturbed(tmp_path):
    """Its workers are in its own process: all of it is gone at once."""
    job = network("adam", model=wide, dtype=tf.float32)
    start = tmp_path / "start"
    expected = plain_values(job, job.context(), 2, start)
    (tmp_path / "saved.json").write_text(json.dumps({"checkpoint": str(start), "steps": 0}))
    begun = []
    for kill_after in (8, None):
        with forking.Popen(
            [sys.executable, "-c", CLIENT, str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            done = int(client.stdout.readline())
            begun.append(done)
            while done != kill_after:
                client.stdin.write("\n")
                client.stdin.flush()
                line = client.stdout.readline()
                if not line:
                    break
                done = int(line)
            if kill_after is not None:
                client.kill()
        assert client.returncode == (0 if kill_after is None else -signal.SIGKILL)
    assert begun == [1, 7]
    with np.load(tmp_path / "values.npz") as values:
        assert_equal(values, expected, "in the end")
