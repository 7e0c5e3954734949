"""A session tries plans during ordinary steps, keeps the fastest, and tells of it."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.errors import SessionError
from caramel.models.plan_choice import OWN
from caramel.runtime.control import controller
from caramel.runtime.control.trials import TrialSettings
from tests.support.deferring import failing
from tests.support.networks import network, tf, wide
from tests.support.pending_updates import assert_equal
from tests.support.pipelines import job as pipeline_job
from tests.support.pipelines import numbers, until_the_end
from tests.support.variants import ALL, GROUPED, SOME, STEPS, plain_training, with_variants

SHORT = TrialSettings(rounds=2, steps=1, skipped=1, give_up=1000.0)
NAMES = (OWN, ALL, SOME, GROUPED)


class Clock:
    """Every step takes as long as its plan is said to take."""

    def __init__(self, step_s):
        self._step_s, self._now_s, self._calls, self.session = step_s, 0.0, 0, None

    def perf_counter(self):
        self._calls += 1
        if self._calls % 2 == 0:  # at the end of a step
            self._now_s += self._step_s[self.session.metrics().plan]
        return self._now_s


@pytest.fixture
def clock(monkeypatch):
    def set_clock(**step_s):
        made = Clock(dict(zip(NAMES, step_s.values(), strict=True)))
        monkeypatch.setattr(controller, "time", made)
        return made

    return set_clock


def tried(session):
    return {plan.name: (plan.steps, plan.median_s) for plan in session.metrics().trials.plans}


@pytest.mark.onednn
def test_trial_steps_are_ordinary_steps():
    job = network("adam", model=wide, dtype=tf.float32)
    losses, values = plain_training(job, 2, steps=20)
    model = with_variants(job.context(), 2)
    with model.session(trials=SHORT) as session:
        plans = []
        for step in range(20):
            assert session.step(job.feed) == losses[step]
            plans.append(session.metrics().plan)
        assert plans[:16] == [name for _ in range(2) for name in NAMES for _ in range(2)]
        assert len(set(plans[16:])) == 1
        metrics = session.metrics()
        assert metrics.trials.is_over
        assert metrics.plan == metrics.trials.turn == plans[-1]
        assert_equal(session.variables(), values)


def test_the_fastest_plan_is_kept(clock):
    job = network("momentum")
    model = with_variants(job.context(), 2)
    now = clock(own=1.0, all=1.1, some=0.75, grouped=0.9)
    with model.session(trials=SHORT) as session:
        now.session = session
        for _ in range(17):
            session.step(job.feed)
        metrics = session.metrics()
        assert metrics.plan == SOME
        medians = {plan.name: plan.median_s for plan in metrics.trials.plans}
        assert medians == {
            OWN: pytest.approx(1.0),
            SOME: pytest.approx(0.75),
            ALL: pytest.approx(1.1),
            GROUPED: pytest.approx(0.9),
        }


def test_the_plain_plan_is_kept_when_no_other_is_faster(clock):
    job = network("momentum")
    model = with_variants(job.context(), 2)
    now = clock(own=1.0, all=1.1, some=0.99, grouped=1.2)
    with model.session(trials=SHORT) as session:
        now.session = session
        for _ in range(17):
            session.step(job.feed)
        assert session.metrics().plan == OWN


def test_the_first_step_of_a_deferred_plan_does_not_count_although_none_is_skipped():
    job = network("momentum")
    model = with_variants(job.context(), 2)
    settings = TrialSettings(rounds=2, steps=4, skipped=0, give_up=1000.0)
    with model.session() as session:
        session.try_plans(settings, plans=[OWN, ALL])
        for _ in range(16):
            session.step(job.feed)
        # The first step of each turn has nothing pending; the first two of all are compiled.
        assert {name: steps for name, (steps, _) in tried(session).items()} == {OWN: 7, ALL: 5}


def test_steps_between_which_variables_are_read_do_not_count_for_what_defers():
    job = network("momentum")
    model = with_variants(job.context(), 2)
    settings = TrialSettings(rounds=1, steps=5, skipped=2, give_up=1000.0)
    with model.session() as session:
        session.try_plans(settings, plans=[ALL, OWN])
        for _ in range(15):
            session.step(job.feed)
            session.variables()
        assert tried(session)[ALL] == (0, None)
        assert tried(session)[OWN][0] == 5
        assert session.metrics().plan == OWN


def test_a_step_with_its_own_deferred_part_counts():
    job = network("momentum")
    fetches = [job.loss, *job.raw.values()]
    model = with_variants(job.context(), 2)
    with model.session() as session:
        session.try_plans(TrialSettings(rounds=1, steps=3, skipped=2), plans=[ALL, OWN])
        for _ in range(10):
            session.step(job.feed, fetches)
        assert [steps for steps, _ in tried(session).values()] == [3, 3]


def test_traced_steps_count_in_no_trial():
    job = network("momentum")
    model = with_variants(job.context(), 2)
    with model.session(trials=SHORT) as session:
        session.step(job.feed)
        session.trace(3, job.feed)
        assert session.metrics().plan == OWN
        assert session.metrics().steps == 4
        assert len(session.metrics().recent_step_s) == 1
        assert session.metrics().trials.turn == OWN
        session.step(job.feed)
        assert session.metrics().trials.turn == ALL


def test_using_a_plan_ends_the_trials():
    job = network("momentum")
    model = with_variants(job.context(), 2)
    with model.session(trials=SHORT) as session:
        session.step(job.feed)
        session.use(GROUPED)
        for _ in range(4):
            session.step(job.feed)
        assert session.metrics().plan == GROUPED
        assert session.metrics().trials is None


def test_a_failed_step_is_no_step_of_a_trial():
    job = failing()
    context = job.context()
    model = with_variants(context, 2)
    bad = {**job.feed, "x:0": np.full_like(job.feed["x:0"], np.nan)}
    losses, values = plain_training(job, 2)
    with model.session(trials=SHORT) as session:
        for step in range(STEPS):
            if step % 2:
                before = session.metrics()
                with pytest.raises(tf.errors.InvalidArgumentError, match="bad input"):
                    session.step(bad)
                assert session.metrics().trials == before.trials
                assert session.metrics().steps == before.steps
            assert session.step(job.feed) == losses[step]
        assert_equal(session.variables(), values)


def test_a_failed_update_is_raised_where_the_next_plan_takes_over():
    job = failing()
    model = with_variants(job.context(), 2)
    settings = TrialSettings(rounds=1, steps=1, skipped=1)
    with model.session() as session:
        session.try_plans(settings, plans=[ALL, OWN])
        session.step(job.feed)
        session.step({**job.feed, "poison:0": np.nan})
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad gradient"):
            session.step(job.feed)
        for _ in range(4):
            session.step(job.feed)
        assert session.metrics().trials.is_over
        assert np.isfinite(session.variables()["w1"]).all()


def test_data_that_ends_during_a_trial_ends_as_it_does():
    job = pipeline_job(lambda: numbers(20).batch(2))
    context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss)
    model = with_variants(context, 2)
    with model.session(trials=SHORT) as session:
        for _ in range(4):  # epochs of five steps
            session.run(job.iterator.initializer)
            ids = until_the_end(lambda: session.step(fetches=job.ids))
            assert sorted(np.ravel(ids).tolist()) == list(range(20))
        assert session.metrics().steps == 20
        assert session.metrics().trials.is_over
        assert int(session.variables()["global_step"]) == 20


def test_metrics_tell_of_steps_and_plans():
    job = network()
    model = caramel.ARModel(job.context(), 2)
    with model.session() as session:
        assert session.metrics().recent_step_s == ()
        for _ in range(60):
            session.step(job.feed)
        metrics = session.metrics()
        assert (metrics.steps, metrics.plan, metrics.trials) == (60, OWN, None)
        assert len(metrics.recent_step_s) == 50
        assert all(step_s > 0 for step_s in metrics.recent_step_s)
    assert session.metrics().steps == 60
    with pytest.raises(SessionError, match="closed"):
        session.use(OWN)
    with pytest.raises(SessionError, match="closed"):
        session.try_plans()


def test_trials_of_one_plan_are_over_before_they_begin():
    job = network()
    with caramel.ARModel(job.context(), 2).session(trials=TrialSettings()) as session:
        session.step(job.feed)
        assert session.metrics().trials.is_over
        assert session.metrics().plan == OWN
