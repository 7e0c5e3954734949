"""Orders of traced steps, by hand: two workers, one server, three variables of a second each."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.decision import Decided, Gate, Group, Owner, Pull
from caramel.core.errors import ProfileError
from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, gated, pulled_from, pushed, server_place
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.core.timeline import Span, Timeline
from caramel.planning.serving.observed_orders import observed_orders
from caramel.report.shown_order import measured_text

NAMES = ("a", "b", "c")
PULLS = (Pull("a"), Pull("b", ("a",)), Pull("c", ("b",)))
SPEC = TensorSpec("float32", (1000,))
VARIABLES = tuple(Variable(n, n, f"{n}/init", f"{n}/read", SPEC, True, True, n) for n in NAMES)
WORKERS = ("/job:worker/task:0", "/job:worker/task:1")
JOB = PlannedJob(WORKERS, "mean", VARIABLES, (), servers=("/job:ps/task:0",))
PLAN = Plan(JOB, Decided((), owners=tuple(Owner(n, 0) for n in NAMES), pulls=PULLS))


def step(*orders, ends_s=(5.0, 5.0)):
    """Each worker receives in an order until 3, and computes from 1 until some time."""
    spans = []
    for worker, (order, end_s) in enumerate(zip(orders, ends_s, strict=True)):
        for n, name in enumerate(order):
            spans.append(Span("receive", pulled_from(0, worker, name), n, n + 1.0, worker))
        spans.append(Span("compute", "op", 1.0, end_s, worker))
    return Timeline(tuple(spans), "ordered")


def test_figures_by_hand():
    found = observed_orders(PLAN, [step("abc", "abc"), step("abc", "bac")])
    assert (found.plan, found.steps, found.unique) == ("ordered", 2, 2)
    # In one of four, one transfer of three came behind one that was planned to come later.
    assert found.out_of_place == pytest.approx(1 / 12)
    # 3 s on the channel and 4 of computing: 7 one after the other, 4 at best, 5 as it was.
    assert (found.upper_s, found.lower_s) == pytest.approx((7.0, 4.0))
    assert found.efficiency == pytest.approx(2 / 3)
    assert found.speedup == pytest.approx(7 / 4 - 1)
    assert (found.rho, found.alpha) == pytest.approx((3 / 4, 2 / 3))
    assert found.stragglers == 0.0
    text = measured_text(found)
    for part in (
        "in 2 steps: 2 orders of arrival, 8 % of tr",
        "U 7000.0 ms, L 4000.0 ms",
        "E 0.67",
    ):
        assert part in text


def test_a_worker_waits_for_the_last_one():
    found = observed_orders(PLAN, [step("abc", "abc", ends_s=(5.0, 4.0))])
    assert found.stragglers == pytest.approx(1 / 5)


def test_without_an_order_nothing_is_out_of_place():
    plain = PLAN.deciding(pulls=tuple(dataclasses.replace(p, after=()) for p in PULLS))
    assert observed_orders(plain, [step("cba", "bac")]).out_of_place is None


def test_what_comes_twice_in_the_first_step_ahead_counts_when_it_comes_last():
    found = observed_orders(PLAN, [step("cbabc", "bcabc")])
    assert (found.unique, found.out_of_place) == (1, 0.0)


def test_gradients_that_come_late_are_counted():
    gradients = tuple(AggregatedGradient(n, TensorRef(f"g_{n}"), SPEC, (f"u_{n}",)) for n in NAMES)
    job = dataclasses.replace(JOB, gradients=gradients)
    groups = tuple(Group(f"of_{n}", (n,), "server") for n in NAMES)
    plan = Plan(job, dataclasses.replace(PLAN.decision, groups=groups))
    spans = list(step("abc", "abc").spans)
    for worker, order in enumerate(("acb", "abc")):
        for n, name in enumerate(order):
            sent = gated(f"of_{name}", worker)
            spans.append(Span("receive", sent, 5.0 + n, 6.0 + n, server_place(0)))
            arrived = pushed(0, worker, f"of_{name}")  # which tells the worker, and is no gradient
            spans.append(Span("receive", arrived, 6.0 + n, 6.5 + n, worker))
    timeline = Timeline(tuple(spans), "ordered")
    assert observed_orders(plan, [timeline]).gradients_out_of_place is None
    plan = plan.deciding(gates=(Gate("of_b", "of_a"), Gate("of_c", "of_b")))
    found = observed_orders(plan, [timeline])
    assert found.gradients_out_of_place == pytest.approx(1 / 6)  # one of worker 0's three
    assert "0 % of transfers out of place, 17 % of gradients" in measured_text(found)


def test_nothing_received_is_an_error():
    with pytest.raises(ProfileError, match="no variable was seen on its way"):
        observed_orders(PLAN, [step("", "")])
