"""What a model says of its plan, before training and after it."""

from __future__ import annotations

import functools
import html
import re

import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import FileError, PlanError
from caramel.core.timeline import Span, Timeline
from caramel.core.util import progress
from caramel.planning.options import Options
from caramel.runtime.control.drift import ReplanSettings
from tests.support.displays import Recorded
from tests.support.networks import network, slow_facts, train_steps, wide

AT_ONCE = ReplanSettings(first_after=2, traced=2, least_step_s=0.0, window=3, payback=0.0)


@pytest.fixture(autouse=True, scope="module")
def fixture_quickly():
    """Plans and variations are searched with small budgets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caramel.planning.what_if.explain.QUICK", Options(budget_tasks=2_000))
        patch.setattr(
            "caramel.models.allreduce.Options", functools.partial(Options, budget_tasks=10_000)
        )
        yield


@pytest.fixture(name="explained", scope="module")
def fixture_explained():
    """A model with facts, and its explanation."""
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    model = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2))
    return model, model.explain()


@functools.cache
def deferring():
    """A job, its context, and what is decided where facts make it worth to defer gradients."""
    job = network("adam", model=wide, dtype=tf.float32)
    context = job.context()
    model = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2))
    assert any(group.deferred for group in model.plan.decision.groups)
    return job, context, model.decision


def test_a_plan_can_be_explained(explained):
    model, explanation = explained
    assert explanation.step_s <= explanation.plain_step_s
    assert explanation.limited_by == "wire"
    assert [group.name for group in explanation.groups] == [
        g.name for g in model.plan.decision.groups
    ]
    assert any(each.change == "twice the bandwidth" for each in explanation.what_if)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", explanation.made)
    assert explanation.examples is None  # the graph takes any number, and nothing was measured


def test_an_explanation_shows_itself(explained, tmp_path, capsys, monkeypatch):
    _, explanation = explained
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = str(explanation)
    monkeypatch.delenv("FORCE_COLOR")
    assert "Limited by the wire." in text
    assert "\x1b" not in text
    assert all(group.name in text for group in explanation.groups)
    explanation.show()
    assert capsys.readouterr().out.startswith(
        "training job on 2 workers: 7,003 values in 4 parameters"
    )
    explanation.save_page(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    frame = explanation._repr_html_()
    assert frame.startswith("<iframe ")
    assert page in html.unescape(frame)
    assert page.lower().startswith("<!doctype html>")
    with pytest.raises(FileError, match=f"cannot write {tmp_path}"):
        explanation.save_page(tmp_path)
    assert type(explanation).from_json(explanation.to_json()) == explanation


def test_nothing_is_explained_without_facts():
    job = network("gradient_descent", model=wide, dtype=tf.float32)
    with pytest.raises(PlanError, match="caramel profile"):
        caramel.ARModel(job.context(), 2).explain()
    with pytest.raises(PlanError, match="one worker aggregates nothing"):
        caramel.ARModel(job.context(), 1).explain()


def test_a_plan_that_was_given_can_be_explained(explained):
    context = network("gradient_descent", model=wide, dtype=tf.float32).context()
    first, of_the_first = explained
    model = caramel.ARModel(context, 2, analyzers=slow_facts(2), plan=first.plan)
    assert model.plan == first.plan
    assert (model.decision.source, model.decision.found) == ("given", None)
    explanation = model.explain()
    assert explanation.step_s == of_the_first.step_s
    assert explanation.planner == "none, the plan was given"
    assert model._step.plans.live_planning() is None  # it stays


def test_tracing_and_explaining_are_told(monkeypatch):
    job, display = network("gradient_descent", model=wide, dtype=tf.float32), Recorded()
    model = caramel.ARModel(job.context(), 2, analyzers=slow_facts(2))
    with model.session() as session:
        monkeypatch.setattr(progress, "_display", display)
        model.explain(session.trace(1, job.feed))
    assert display.begun == ["tracing steps", "explaining the plan", "closing the session"]


def test_traced_steps_are_compared_with_the_plan_that_did_them():
    context = network("gradient_descent", model=wide, dtype=tf.float32).context()
    model = caramel.ARModel(context, 2, pattern="shuffle", analyzers=slow_facts(2))
    model.add_variant(model.decision.plain, "plain")

    def traced(plan):
        return Timeline((Span("send", "group_0", 0.0, 1.0),), plan=plan)

    own, plain = (model.explain([traced(name)]) for name in ("own", "plain"))
    assert own.step_s == model.explain().step_s < plain.step_s == plain.plain_step_s
    with pytest.raises(PlanError, match="by different plans, 'own', 'plain'"):
        model.explain([traced("plain"), traced("own")])
    with pytest.raises(PlanError, match="by a plan 'mine', which this model does not have"):
        model.explain([traced("mine")])


def test_where_planning_does_not_pay_what_runs_is_explained(monkeypatch):
    monkeypatch.setattr("caramel.models.plan_choice.WORTH_PLANNING", 0.0)
    job, context, other = deferring()
    monkeypatch.setattr("caramel.models.plan_choice.plan_from_traces", lambda *_: other)
    model = caramel.ARModel(context, 2, pattern="shuffle")
    with model.session(replanning=AT_ONCE) as session:
        train_steps(session, job, 6)
        metrics = session.metrics()
    assert metrics.plan == "own"
    assert model.explain().examples == -(-len(next(iter(job.feed.values()))) // 2)
    assert min(metrics.recent_step_s) <= metrics.expected_s <= max(metrics.recent_step_s)
    assert list(model.variants) == ["own"]
    groups = {group.name for group in model.explain().groups}
    assert groups == {group.name for group in model.plan.decision.groups}
    assert not any(group.deferred for group in model.explain().groups)


def test_where_plans_need_too_much_memory_what_runs_is_explained(monkeypatch, caplog):
    monkeypatch.setattr("caramel.models.plan_choice.WORTH_PLANNING", 10.0)
    monkeypatch.setattr("caramel.runtime.execution.distributed_graph.total_bytes", lambda: 0)
    job, context, other = deferring()
    monkeypatch.setattr("caramel.models.plan_choice.plan_from_traces", lambda *_: other)
    model = caramel.ARModel(context, 2, pattern="shuffle")
    size = model.graph_size
    with model.session(replanning=AT_ONCE) as session:
        train_steps(session, job, 16)
        metrics = session.metrics()
    assert "not tried: 'searched'" in caplog.text
    assert (metrics.plan, metrics.trials, model.graph_size) == ("own", None, size)
    assert min(metrics.recent_step_s) <= metrics.expected_s <= max(metrics.recent_step_s)
    assert not any(group.deferred for group in model.explain().groups)
