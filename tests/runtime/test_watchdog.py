"""Steps that wait too long say what for, while they wait, and then go on."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import caramel
from benchmarks import testbed
from caramel.core.errors import StepTimeoutError, WorkerLostError
from caramel.core.names import server_place
from caramel.models.plan_choice import OWN
from caramel.runtime.stalls.diagnosis import Forecast, StallSettings
from caramel.runtime.stalls.watchdog import Watchdog
from tests.support import forking
from tests.support.barred import PATIENCE_S, Bar, barred, flagged
from tests.support.deferring import EVERY, deferred
from tests.support.networks import network
from tests.support.pending_updates import assert_equal
from tests.support.processes import worker_pid

SOON = StallSettings(least_s=0.1)


def has_stalled(session, number=1):
    return lambda: len(session.metrics().stalls) >= number


def train(model, job, steps=8):
    with model.session(trials=None, stalls=None) as session:
        losses = [session.step(job.feed) for _ in range(steps)]
        return losses, session.variables()


def warnings_of(caplog):
    found = [r for r in caplog.records if r.levelno == logging.WARNING]
    return [r.getMessage() for r in found if r.name.startswith("caramel")]


# Workers in this process ------------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["plain", EVERY])
def test_a_worker_that_computes_too_long_is_named_with_its_op_and_nothing_is_changed(
    choice, caplog
):
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, pattern="shuffle", planner="plain")
    if choice == EVERY:
        model = caramel.ARModel(job.context(), 2, plan=deferred(model, EVERY))
    expected_losses, expected = train(model, job)
    with model.session(trials=None, stalls=SOON) as session:
        losses = [session.step(job.feed) for _ in range(6)]
        assert session.metrics().stalls == ()
        with caplog.at_level(logging.INFO, "caramel"), bar.down_until(has_stalled(session)):
            losses.append(session.step(flagged(job, 1)))
        losses.append(session.step(job.feed))
        values = session.variables()
    (stall,) = session.metrics().stalls
    assert (stall.step, stall.plan, stall.workers, stall.cause) == (7, OWN, (1,), "producer")
    # The gradient of the last bias is the first that is computed.
    group = next(group for group in model.plan.decision.groups if "b2" in group.members)
    assert (stall.group, stall.producer) == (group.name, model.plan.gradient("b2").values.op)
    assert stall.late_s > 0
    assert warnings_of(caplog) == [stall.text]
    assert "waits for its gradients from worker 1 (/job:worker/task:1" in stall.text
    assert any("step 7 was done after" in message for message in caplog.messages)
    assert losses == expected_losses
    assert_equal(values, expected)


def test_what_is_no_part_of_the_aggregation_is_told_from_it():
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    fetches = [job.loss, "aside/x:0"]
    with model.session(trials=None, stalls=SOON) as session:
        for _ in range(6):
            session.step({**job.feed, "aside/flags:0": np.zeros(8, bool)}, fetches)
        with bar.down_until(has_stalled(session)):
            flags = np.arange(8) < 4  # of one worker: all have the same few threads
            session.step({**job.feed, "aside/flags:0": flags}, fetches)
    (stall,) = session.metrics().stalls
    assert (stall.group, stall.workers, stall.cause) == (None, (), "rest")


def test_the_same_stall_in_the_next_step_is_not_logged_again(caplog):
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    with model.session(trials=None, stalls=SOON) as session:
        for _ in range(6):
            session.step(job.feed)
        for number, worker in enumerate((1, 1, 0), start=1):
            with bar.down_until(has_stalled(session, number)):
                session.step(flagged(job, worker))
    assert [stall.workers for stall in session.metrics().stalls] == [(1,), (1,), (0,)]
    assert len(warnings_of(caplog)) == 2


def test_a_stall_without_marks_is_told_too():
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain", marks=False)
    with model.session(trials=None, stalls=SOON) as session:
        for _ in range(6):
            session.step(job.feed)
        with bar.down_until(has_stalled(session)):
            session.step(flagged(job, 1))
    (stall,) = session.metrics().stalls
    assert (stall.step, stall.group, stall.cause) == (7, None, "rest")


def test_the_first_step_may_take_long_unless_told_otherwise():
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    impatient = StallSettings(unknown_s=1.0)
    with (
        model.session(trials=None, stalls=impatient) as session,
        bar.down_until(has_stalled(session)),
    ):
        session.step(flagged(job, 0))
    (stall,) = session.metrics().stalls
    assert (stall.step, stall.workers, stall.cause) == (1, (0,), "producer")
    assert "is not there after" in stall.text


def test_nobody_looks_if_not_wanted():
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    begin_s = time.monotonic()
    with (
        model.session(trials=None, stalls=None) as session,
        bar.down_until(lambda: time.monotonic() > begin_s + 3),
    ):
        session.step(flagged(job, 0))
    assert session.metrics().stalls == ()


def test_only_the_latest_stalls_are_kept():
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    settings = StallSettings(least_s=0.1, kept=1)
    with model.session(trials=None, stalls=settings) as session:
        for _ in range(6):
            session.step(job.feed)
        for number in (7, 8):
            with bar.down_until(
                lambda number=number: any(s.step == number for s in session.metrics().stalls)
            ):
                session.step(flagged(job, 1))
        assert [stall.step for stall in session.metrics().stalls] == [8]


def test_a_group_that_is_later_than_predicted_is_named_in_a_step_that_is_not(monkeypatch):
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    first, *others = (group.name for group in model.plan.decision.groups)
    forecast = Forecast(2.0, {first: 0.01, **dict.fromkeys(others, 1.9)})
    monkeypatch.setattr(model._step.plans, "forecast", lambda name: forecast)
    with model.session(trials=None, stalls=SOON) as session:
        for _ in range(6):
            session.step(job.feed)
        with bar.down_until(has_stalled(session)):
            session.step(flagged(job, 1))
    (stall,) = session.metrics().stalls
    assert (stall.group, stall.workers, stall.cause) == (first, (1,), "producer")
    assert "(expected after 0.01 s)" in stall.text


def test_what_is_predicted_is_asked_for_until_it_is_known_and_when_plans_are_made(monkeypatch):
    """A job that plans while it runs knows nothing at first, and more after that."""
    model = caramel.ARModel(network("adam").context(), 2, planner="plain")
    found = [None, None, Forecast(1.0, {}), Forecast(2.0, {})]
    monkeypatch.setattr(model._step.plans, "forecast", lambda name: found.pop(0))
    with model.session(trials=None, stalls=None) as session:
        executor = session._running.controllers.active.executor
        watchdog = Watchdog(
            session._running.runner, model.cluster, session._running.job, StallSettings()
        )
        assert [watchdog._forecast(executor) for _ in range(2)] == [None, None]
        assert {watchdog._forecast(executor).step_s for _ in range(3)} == {1.0}
        watchdog.forget_forecasts()
        assert watchdog._forecast(executor).step_s == 2.0


def test_what_goes_wrong_in_looking_does_not_disturb_training(monkeypatch, caplog):
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")

    def fails(*_):
        raise RuntimeError("of no use")

    monkeypatch.setattr(Watchdog, "_ask", fails)
    with model.session(trials=None, stalls=SOON) as session:
        for _ in range(6):
            session.step(job.feed)
        with bar.down_until(lambda: bool(warnings_of(caplog))):
            session.step(flagged(job, 1))
        assert np.isfinite(session.step(job.feed))
    assert "step 7 could not be looked into" in warnings_of(caplog)[0]
    assert session.metrics().stalls == ()


def test_a_stall_of_less_than_a_second_is_seen():
    bar = Bar()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    with model.session(trials=None, stalls=SOON) as session:
        for _ in range(6):
            session.step(job.feed)
        usual_s = float(np.median(session.metrics().recent_step_s[1:6]))
        with bar.down_until(has_stalled(session)):
            session.step(flagged(job, 1))
        (stall,) = session.metrics().stalls
    assert (stall.cause, stall.workers) == ("producer", (1,))
    assert stall.late_s < 0.8 or usual_s > 0.1  # where steps are that slow, it is not late sooner


def test_a_step_that_ends_in_time_while_workers_are_asked_is_not_late(monkeypatch):
    """Asking may take seconds, which are not the step's."""
    bar, asked = Bar(), threading.Event()
    job = barred(bar)
    model = caramel.ARModel(job.context(), 2, planner="plain")
    first, *others = (group.name for group in model.plan.decision.groups)
    forecast = Forecast(0.5, {first: 0.01, **dict.fromkeys(others, 0.45)})
    monkeypatch.setattr(model._step.plans, "forecast", lambda name: forecast)
    ask = Watchdog._ask

    def slowly(self, *given):
        asked.set()
        time.sleep(2.5)
        return ask(self, *given)

    monkeypatch.setattr(Watchdog, "_ask", slowly)
    with model.session(trials=None, stalls=SOON) as session:
        for _ in range(6):
            session.step(job.feed)
        with bar.down_until(asked.is_set):
            session.step(flagged(job, 1))
        thread = session._running.controllers.active._watchdog._thread
        thread.submit(lambda: None).result(timeout=PATIENCE_S)  # behind what looks into the step
    assert session.metrics().stalls == ()


# Workers in other processes ---------------------------------------------------------------------


@contextmanager
def standing_still(pid, until):
    """A process stands still until a condition holds."""

    def go_on():
        end_s = time.monotonic() + PATIENCE_S
        while not until() and time.monotonic() < end_s:
            time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@pytest.fixture(scope="module")
def three():
    with forking.workers(), caramel.Cluster.local(3) as cluster:
        yield cluster


@pytest.mark.processes
@pytest.mark.parametrize(("victim", "choice"), [(0, EVERY), (1, "plain"), (2, EVERY)])
def test_a_worker_that_stands_still_is_named_and_training_goes_on_when_it_does(
    three, victim, choice
):
    job = network("momentum", number=12)
    model = caramel.ARModel(job.context(), three, pattern="shuffle")
    if choice == EVERY:
        model = caramel.ARModel(job.context(), three, plan=deferred(model, EVERY))
    expected_losses, expected = train(model, job, 10)
    pid = worker_pid(three, victim)
    with model.session(trials=None) as session:
        losses = [session.step(job.feed) for _ in range(6)]
        with standing_still(pid, has_stalled(session)):
            losses.append(session.step(job.feed))
        losses += [session.step(job.feed) for _ in range(3)]
        values = session.variables()
        stall = session.metrics().stalls[0]
    assert (stall.step, stall.workers, stall.cause) == (7, (victim,), "silent")
    assert f"it waits for worker {victim} (/job:worker/task:{victim} at 127" in stall.text
    assert f"pid {pid}): no answer from there" in stall.text
    if victim:  # all are asked through worker 0
        assert stall.group in {group.name for group in model.plan.decision.groups}
        assert stall.producer in {gradient.values.op for gradient in model.plan.job.gradients}
    assert losses == expected_losses
    assert_equal(values, expected)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_a_parameter_server_that_stands_still_or_dies_is_named_and_training_can_go_on(tmp_path):
    job = network("momentum", number=12)
    with caramel.Cluster.local(2, parameter_servers=1) as cluster:
        model = caramel.PSModel(job.context(), cluster, ordering="tic")
        expected, _ = train(model, job, 9)
        pid = worker_pid(cluster, 2)
        with model.session(trials=None) as session:
            losses = [session.step(job.feed) for _ in range(6)]
            begin_s = time.monotonic()
            with standing_still(pid, has_stalled(session)):
                losses.append(session.step(job.feed))
            assert time.monotonic() - begin_s < 10
            (stall,) = session.metrics().stalls
            first = model.plan.decision.pulls[0].variable
            assert (stall.step, stall.group, stall.workers) == (7, first, (server_place(0),))
            assert f"variable '{first}' from /job:ps/task:0 is" in stall.text
            assert f"pid {pid}): no answer from there; should it not come back" in stall.text
            path = session.save(str(tmp_path / "saved"))
            os.kill(pid, signal.SIGKILL)
            begin_s = time.monotonic()
            with pytest.raises(
                WorkerLostError,
                match=rf"lost parameter server 0 .*pid {pid}, killed by signal 9.* the variables "
                r"that it held are gone \(.*\): start it again, .* restore the last checkpoint",
            ):
                session.step(job.feed)
            assert time.monotonic() - begin_s < 10
    with caramel.Cluster.local(2, parameter_servers=1) as cluster:
        model = caramel.PSModel(job.context(), cluster, ordering="tic")
        with model.session(trials=None) as session:
            session.restore(path)
            losses += [session.step(job.feed) for _ in range(2)]
    assert losses == expected


@pytest.mark.processes
def test_what_is_left_of_the_last_step_is_watched_too_when_it_is_asked_for(two_processes):
    job = network("momentum", number=12)
    model = caramel.ARModel(job.context(), two_processes, pattern="shuffle")
    model = caramel.ARModel(job.context(), two_processes, plan=deferred(model, EVERY))
    _, expected = train(model, job, 6)
    pid = worker_pid(two_processes, 1)
    with model.session(trials=None) as session:
        for _ in range(6):
            session.step(job.feed)
        with standing_still(pid, has_stalled(session)):
            values = session.variables()
        (stall,) = session.metrics().stalls
    assert (stall.step, stall.workers, stall.cause) == (6, (1,), "silent")
    assert stall.group in {group.name for group in model.plan.decision.groups}
    assert_equal(values, expected)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
def test_a_step_that_never_ends_tells_at_its_deadline_what_it_waits_for():
    job = network("momentum", number=12)
    with caramel.Cluster.local(2) as cluster:
        pid = worker_pid(cluster, 1)
        model = caramel.ARModel(job.context(), cluster, planner="plain")
        settings = StallSettings(least_s=0.1, answer_s=1.0)
        with model.session(trials=None, step_timeout_s=6.0, stalls=settings) as session:
            for _ in range(6):
                session.step(job.feed)
            os.kill(pid, signal.SIGSTOP)
            try:
                with pytest.raises(
                    StepTimeoutError,
                    match=r"did not end within 6 s.*step 7 .*it waits for worker 1 .*no answer",
                ):
                    session.step(job.feed)
            finally:
                os.kill(pid, signal.SIGCONT)


# Hosts ------------------------------------------------------------------------------------------

TRAIN = """
    import logging, sys, threading, time
    from caramel.cluster.quiet_start import quiet_start
    with quiet_start():
        import tensorflow as tf
    import caramel
    tf1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 1000], name="x")
        w = tf1.get_variable("w", [1000, 1000], initializer=tf1.zeros_initializer())
        loss = tf.reduce_mean(tf.reduce_sum(tf.square(x @ w - 1), 1))
        train_op = tf1.train.GradientDescentOptimizer(0.0001).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    workers = [f"{a}:2222" for a in sys.argv[1].split(",")]
    model = caramel.ARModel(context, workers, pattern="ring")
    feed = {x: [[1.0] * 1000] * 6}
    with model.session(trials=None) as session:
        expected = [float(session.step(feed)) for _ in range(10)]
    with model.session(trials=None) as session:
        losses = [float(session.step(feed)) for _ in range(6)]
        def tell():
            while not session.metrics().stalls:
                time.sleep(0.05)
            print("stalled:", session.metrics().stalls[0].text, flush=True)
        threading.Thread(target=tell, daemon=True).start()
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            losses += [float(session.step(feed)) for _ in range(4)]
            print("equal:", losses == expected, flush=True)
        except caramel.CaramelError as error:
            print("error:", error, flush=True)
"""


def stalled_on_hosts(count, disturb, mend):
    """What a job on hosts says of its stall, and then of its end; and the hosts' addresses."""
    with testbed.Testbed(count) as bed:
        addresses = [host.address for host in bed.hosts]
        cluster = ",".join(f"{address}:2222" for address in addresses)
        worker = (sys.executable, "-m", "caramel", "worker", "--cluster", cluster, "--task")
        pipe = subprocess.PIPE

        def on_host(number, command, **pipes):
            host = bed.hosts[number]
            return forking.Popen(command, host=host, start_new_session=True, **pipes)

        workers = [on_host(i, [*worker, str(i)], stdout=pipe) for i in range(count)]
        for each in workers:
            assert b"listening on" in each.stdout.readline()
        command = [sys.executable, "-c", textwrap.dedent(TRAIN), ",".join(addresses)]
        client = on_host(0, command, stdin=pipe, stdout=pipe, text=True)
        while (line := client.stdout.readline()) and line != "ready\n":
            pass
        assert line == "ready\n"
        disturb(bed)
        client.stdin.write("go\n")
        client.stdin.flush()
        stalled = client.stdout.readline()
        mend(bed)
        ended, _ = client.communicate(timeout=120)
    for each in workers:
        each.stdout.close()
        each.wait()
    assert stalled.startswith("stalled: step 7 of plan 'own': group 'group_0' (completed by '")
    return stalled, ended, addresses


@pytest.mark.processes
@pytest.mark.namespaces
@pytest.mark.skipif(bool(testbed.missing()), reason="needs network namespaces")
def test_a_host_that_is_cut_off_is_named_and_training_goes_on_when_it_is_back():
    stalled, ended, addresses = stalled_on_hosts(2, lambda bed: bed.cut(1), lambda bed: bed.heal(1))
    assert f"it waits for worker 1 (/job:worker/task:1 at {addresses[1]}:2222)" in stalled
    # A machine that is too slow to heal the host in time loses it.
    assert ended == "equal: True\n" or ended.startswith("error: lost worker 1 ")


@pytest.mark.processes
@pytest.mark.namespaces
@pytest.mark.skipif(bool(testbed.missing()), reason="needs network namespaces")
def test_a_group_that_a_slow_link_holds_up_is_named_with_the_hosts_it_has_not_reached():
    """Host 1 sends 500 KB/s: what it sends to host 2, two thirds of 4 MB, takes five seconds.

    In a ring it sends nothing else. That a step begins, and how far it is, is told over the
    connections of host 0, and waits for no gradients.
    """
    stalled, ended, addresses = stalled_on_hosts(
        3, lambda bed: bed.set_rate(1, "4mbit"), lambda bed: bed.set_rate(1, "1gbit")
    )
    hosts = (f"worker {i} (/job:worker/task:{i} at {a}:2222)" for i, a in enumerate(addresses))
    missing = " and ".join(hosts)
    assert f"its gradients are there, but it has not arrived on {missing}\n" in stalled
    assert ended == "equal: True\n"
