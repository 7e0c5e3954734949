"""A step with parameter servers explained, by hand: two layers, whose transfers take 4 s each."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.explanation import Explanation
from caramel.core.names import in_group, pulled_from, server_place
from caramel.core.plan import Plan
from caramel.core.timeline import Span, Timeline
from caramel.planning.serving.explain import explain_order
from caramel.planning.serving.explain_step import explain_step
from caramel.planning.serving.planner import ordered
from tests.planning.test_ahead import ORDER, WORKER, plan_of
from tests.planning.test_pushes import plan_of as plan_of_three

SERVER = server_place(0)


def explained(ahead=frozenset(), measured=()) -> Explanation:
    plan = ordered(plan_of(), ORDER, 0, {"first": "forward_first"}, ahead)
    order = explain_order(plan, "by TIC", WORKER, measured)
    return explain_step(plan, WORKER, order, job="train", measured=measured, measured_step_s=20.0)


def test_the_step_and_what_bounds_it():
    found = explained()
    # Received until 8, computed until 11; sent from 10 to 14 and from 14 to 18.
    assert (found.step_s, found.computation_s, found.wire_limit_s) == (18.0, 4.0, 8.0)
    assert (found.workers, found.servers) == (1, ("/job:ps/task:0",))
    # Without any transfer 4 s of computing are left; without computing 16 s of transfers.
    assert found.limited_by == "wire"
    assert found.why.startswith("an infinitely fast network would save 14.000 s")
    assert [(limit.sentence, limit.seconds) for limit in found.limits] == [
        ("the worker waits for parameters", 7.0),
        ("gradients and updates are on their way", 7.0),
    ]
    # Received until 4, computed until 7; sent from 6 to 8 and until 10.
    assert found.what_if[0].step_s == pytest.approx(10.0)
    # One of the two orders, or the other one: the second one ends a second later.
    assert 18.0 <= found.plain_step_s <= 19.0


def test_what_the_links_of_workers_and_servers_carry():
    spans = explained().predicted.spans
    sent = [(s.name, s.begin_s, s.end_s, s.bytes) for s in spans if s.worker == SERVER]
    assert sent == [
        ("first", 0.0, 4.0, 4000),
        ("last", 4.0, 8.0, 4000),
        ("gradient of last", 10.0, 14.0, 4000),
        ("gradient of first", 14.0, 18.0, 4000),
    ]
    own = [s for s in spans if s.worker == 0 and s.resource in ("send", "receive")]
    assert [(s.name, s.begin_s, s.end_s, s.bytes) for s in own] == sent
    assert [s.resource for s in own] == ["receive", "receive", "send", "send"]


def test_each_transfer_has_its_window_place_and_priority():
    first, last = explained().groups
    assert (first.name, first.server, first.priority, first.deferred) == (
        *("first", "/job:ps/task:0", 1, True),
    )
    # Updated at 18 in the step before, needed when it has come at 4.
    assert (first.ready_s, first.needed_s) == (18.0, 4.0)
    assert (first.predicted_begin_s, first.predicted_end_s) == (0.0, 4.0)
    assert first.reason == "'forward_first' needs it"
    assert (last.priority, last.waits_for, last.needed_s) == (2, ("first",), 8.0)
    _, ahead = explained(frozenset({"last"})).groups
    assert (ahead.deferred, ahead.priority, ahead.ready_s) == (False, None, 11.0)
    assert (ahead.predicted_begin_s, ahead.predicted_end_s) == (11.0, 15.0)
    assert ahead.reason.startswith("sent when it is updated")


def test_what_no_step_writes_stays_on_the_workers():
    job = plan_of().job
    frozen = dataclasses.replace(job, gradients=job.gradients[1:])
    groups = plan_of().decision.groups[1:]
    plan = Plan(frozen, dataclasses.replace(plan_of().decision, groups=groups))
    plan = ordered(plan, ORDER, 0, ahead=frozenset({"first"}))
    order = explain_order(plan, "by TIC", WORKER)
    first, last = explain_step(plan, WORKER, order).groups
    assert (first.predicted_begin_s, first.predicted_end_s, first.ready_s) == (0.0, 0.0, 0.0)
    assert first.reason == "stays on the workers, since the step does not write it"
    assert (last.predicted_begin_s, last.predicted_end_s) == (0.0, 4.0)


def test_measured_transfers_have_the_names_of_what_they_carry():
    pull = pulled_from(0, 0, "first")
    spans = (
        Span("receive", pull, 100.0, 105.0, 0, 4000),
        Span("send", pull, 100.0, 105.0, SERVER, 4000),
        Span("compute", "forward_first", 105.0, 106.0),
        Span("send", in_group("of_last", 0, "sum"), 106.0, 110.0, 0, 4000),
    )
    found = explained(measured=(Timeline(spans),))
    first, last = found.groups
    assert (first.measured_begin_s, first.measured_end_s, first.late_s) == (0.0, 5.0, 1.0)
    assert last.late_s is None
    names = [span.name for span in found.measured.spans]
    assert names == ["first", "first", "forward_first", "gradient of last"]
    assert found.measured.begin_s == 0.0
    assert found.orders.unique == 1
    assert Explanation.from_json(found.to_json()) == found


def test_what_is_together_for_an_op_is_said():
    plan = plan_of_three(servers=2)
    order = explain_order(plan, "by TIC", None, together={("a", "c"): "while"})
    (note,) = order.notes
    assert note.startswith("'while' takes 2 parameters ('a', ...), which are all on /job:ps/task:0")
    alone = explain_order(plan_of(), "by TIC", None, together={("first", "last"): "while"})
    assert alone.notes == ()
