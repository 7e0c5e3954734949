"""What things are is seen at a glance: in a debugger, in a log, in a notebook."""

from __future__ import annotations

import dataclasses
import html
import re

import caramel
from caramel.runtime.control.metrics import Metrics, Spent
from caramel.runtime.control.trials import TrialState, TriedPlan
from tests.support.networks import network


def test_a_context_a_model_and_its_plan():
    context = network("momentum").context()
    assert re.fullmatch(
        r"<Context: \d+ ops, \d+ variables of [\d.]+ k?B, train op '.+', loss '.+:0'>",
        repr(context),
    )
    model = caramel.ARModel(context, workers=2)
    assert re.fullmatch(
        r"<Plan: 2 workers, \d+ groups? of gradients, [\d.]+ k?B>", repr(model.plan)
    )
    assert repr(model) == f"<ARModel: Cluster.embedded(2), {model.plan!r}>"
    served = caramel.PSModel(context, workers=1, parameter_servers=2)
    assert repr(served.plan).startswith("<Plan: 1 worker and 2 parameter servers, ")


def test_a_session_tells_its_state_and_the_plan_in_use():
    job = network("momentum")
    model = caramel.ARModel(job.context(), workers=2)
    with model.session(trials=None) as session:
        assert session.plan == model.plan
        assert repr(session) == f"<Session: open, 0 steps done, plan 'own': {model.plan!r}>"
        session.step(job.feed)
        deferred = model.plan.deciding(
            groups=tuple(dataclasses.replace(g, deferred=True) for g in model.plan.decision.groups)
        )
        model.add_variant(deferred, "deferred")
        session.use("deferred")
        session.step(job.feed)
        assert session.plan == model.variants.plan("deferred")
        shown = session._repr_html_()
        for name, value in (("session", "open"), ("steps", "2"), ("plan", "deferred")):
            assert f"<th>{name}</th><td>{value}</td>" in shown
        assert re.search(r"<th>deferred</th><td>[1-9]\d* gradients?</td>", shown)
    assert repr(session).startswith("<Session: closed, 2 steps done, plan 'deferred': <Plan: ")
    assert "<th>workers</th><td>2</td>" in model._repr_html_()
    assert "train op '" in html.unescape(model.context._repr_html_())


def test_metrics_are_a_table():
    trials = TrialState(
        False, 2, "a", (TriedPlan("a", 3, 0.25, False), TriedPlan("<b>", 0, None, False))
    )
    spent = Spent(1.25, 2.0, 0.5, 3.0)
    metrics = Metrics(1200, "a", (0.2, 0.3, 0.25), trials, expected_s=0.2, spent=spent)
    assert str(metrics).splitlines() == [
        "steps     1,200",
        "plan      a",
        "step      250.0 ms (median of 3 steps)",
        "expected  200.0 ms",
        "spent     model 1.2 s, session 2.0 s, first step 0.5 s, planning since then 3.0 s",
        "trials    round 2: 'a' 250.0 ms, '<b>' untimed",
    ]
    assert "<th>steps</th><td>1,200</td>" in metrics._repr_html_()
    assert "&lt;b&gt;" in metrics._repr_html_()
