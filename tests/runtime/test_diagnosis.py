"""What a late step waits for, decided from literal marks."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.decision import Decided, Gate, Group, Part
from caramel.core.errors import PlanError
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.runtime.stalls.diagnosis import (
    Course,
    Forecast,
    Leg,
    Marks,
    Stall,
    StallSettings,
    course_of,
    find_stall,
    legs_of,
    over,
)

SETTINGS = StallSettings(factor=3.0, least_s=1.0, unknown_s=60.0)
TWO = ("worker 0", "worker 1")
THREE = (*TWO, "worker 2")

# `d` is deferred; the gradients of `d`, `a` and `b` are completed in this order.
D, A, B = Leg("d", "grad_d", 10, True), Leg("a", "grad_a", 20), Leg("b", "grad_b", 30)
LEGS = (D, B, A)  # as in a plan whose groups are in the order of the parameters
NONE, ALL = frozenset[str](), frozenset("dab")


def course(forecast=None, usual_s=1.0, legs=LEGS, **does):
    return course_of(12, "own", legs, forecast, usual_s, **{"pending": True, **does})


def found(marks, elapsed_s=4.0, what=None, workers=TWO, driver=0):
    return find_stall(what or course(), marks, elapsed_s, SETTINGS, workers, driver=driver)


# When -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected_s", "due_s"), [(0.01, 1.01), (0.5, 1.5), (2.0, 6.0), (None, 60.0)]
)
def test_something_is_late_after_the_factor_but_at_least_some_time_later(expected_s, due_s):
    assert SETTINGS.due_s(expected_s) == due_s


def test_a_step_in_time_is_no_stall():
    assert found([Marks(), Marks()], elapsed_s=2.9) is None
    assert found([Marks(), None], elapsed_s=2.9) is None
    assert found([Marks(), Marks()], elapsed_s=3.1) is not None


def test_nothing_is_expected_of_an_unknown_step_for_a_minute():
    unknown = course(usual_s=None)
    assert found([None, None], 59.0, unknown) is None
    stall = found([None, None], 61.0, unknown)
    assert stall.late_s == 61.0
    assert "step 12 of plan 'own' is not there after 61.0 s" in stall.text


FORECAST = Forecast(1.0, {"d": 0.1, "a": 0.4, "b": 0.8})


def test_a_group_is_late_by_its_own_prediction():
    what = course(FORECAST)
    behind = [Marks(ALL, frozenset("d")), Marks(ALL, frozenset("d"))]
    stall = found(behind, 1.6, what)  # `a` may take until 1.4 s, `b` until 2.4 s
    assert (stall.group, stall.late_s) == ("a", pytest.approx(1.2))
    first = [Marks(ALL, frozenset("da"))] * 2
    assert found(first, 2.3, what) is None
    assert found(first, 2.5, what).group == "b"


def test_no_group_is_late_in_a_step_that_is_hardly_so():
    assert found([Marks()] * 2, 1.5, course(FORECAST)) is None
    assert found([Marks()] * 2, 1.6, course(FORECAST)) is not None


def test_groups_may_take_longer_where_steps_usually_do():
    slow = course(FORECAST, usual_s=2.0)
    assert slow.step_s == 2.0
    assert [item.end_s for item in slow.items] == [0.2, None, 0.8, 1.6]
    assert found([Marks(ALL, frozenset("d"))] * 2, 3.1, slow).group == "a"
    assert found([Marks(ALL, frozenset("da"))] * 2, 4.7, slow) is None
    assert found([Marks(ALL, frozenset("da"))] * 2, 4.9, slow).group == "b"


def test_steps_that_are_usually_faster_than_predicted_may_take_as_predicted():
    assert course(FORECAST, usual_s=0.5).step_s == 1.0
    assert course(FORECAST, usual_s=None).step_s == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"factor": 1.0}, {"least_s": 0.0}, {"unknown_s": 0.0}, {"answer_s": -1.0}, {"kept": 0}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(PlanError):
        StallSettings(**wrong)


# Who --------------------------------------------------------------------------------------------


def test_a_worker_that_does_not_answer_is_waited_for():
    assert found([Marks(ALL, frozenset("d")), None]) == Stall(
        step=12,
        plan="own",
        group="a",
        producer="grad_a",
        workers=(1,),
        cause="silent",
        late_s=3.0,
        text="step 12 of plan 'own': group 'a' (completed by 'grad_a') is 3.0 s late (expected "
        "after 1.00 s); it waits for worker 1: no answer from there",
    )


def test_all_workers_that_do_not_answer_are_waited_for():
    stall = found([Marks(ALL, NONE), None, None], workers=THREE)
    assert (stall.group, stall.workers) == ("d", (1, 2))
    assert "it waits for worker 1 and worker 2: no answer" in stall.text


def test_where_nobody_answers_it_is_the_one_through_which_all_are_asked():
    stall = found([None, None], driver=1)
    assert (stall.group, stall.workers, stall.cause) == (None, (1,), "silent")
    assert "step 12 of plan 'own' is 3.0 s late" in stall.text


def test_a_worker_that_does_not_answer_is_named_although_all_has_arrived_elsewhere():
    stall = found([Marks(ALL, ALL), None])
    assert (stall.group, stall.workers, stall.cause) == (None, (1,), "silent")


def test_a_worker_without_gradients_is_waited_for_with_the_op_that_is_first():
    ahead, behind = Marks(frozenset("da"), frozenset("d")), Marks(frozenset("d"), frozenset("d"))
    stall = found([ahead, behind])
    assert (stall.group, stall.producer, stall.workers) == ("a", "grad_a", (1,))
    assert stall.cause == "producer"
    assert stall.text.endswith("; it waits for its gradients from worker 1")


def test_all_workers_without_gradients_are_named():
    stall = found([Marks(frozenset("d"), frozenset("d"))] * 3, workers=THREE)
    assert (stall.group, stall.workers, stall.cause) == ("a", (0, 1, 2), "producer")


def test_gradients_of_a_deferred_group_are_waited_for_in_their_step():
    stall = found([Marks(frozenset("dab"), frozenset("d")), Marks(NONE, frozenset("d"))])
    assert (stall.group, stall.producer, stall.workers) == ("d", "grad_d", (1,))
    assert stall.cause == "producer"


def test_what_is_left_of_the_step_before_comes_first():
    stall = found([Marks(NONE, frozenset("d")), Marks(NONE, NONE)])
    assert (stall.group, stall.workers, stall.cause) == ("d", (1,), "transfer")
    assert stall.text.endswith("; its gradients are there, but it has not arrived on worker 1")


def test_nothing_is_left_of_a_step_before_the_first():
    stall = found([Marks(frozenset("d"), NONE)] * 2, what=course(pending=False))
    assert (stall.group, stall.cause) == ("a", "producer")


def test_only_what_is_left_of_the_step_before_is_waited_for_where_nothing_else_is_done():
    stall = found([Marks()] * 2, what=course(computes=False))
    assert (stall.group, stall.cause) == ("d", "transfer")
    assert found([Marks(NONE, frozenset("d"))] * 2, what=course(computes=False)).cause == "rest"


def test_a_group_that_is_ready_everywhere_has_not_arrived_where_it_is_missing():
    marks = [Marks(ALL, ALL), Marks(ALL, frozenset("da")), Marks(ALL, frozenset("da"))]
    stall = found(marks, workers=THREE)
    assert (stall.group, stall.workers, stall.cause) == ("b", (1, 2), "transfer")


def test_a_group_behind_a_gate_waits_for_what_has_to_arrive_before():
    gated = dataclasses.replace(A, after=("b",))
    marks = [Marks(ALL, frozenset("d")), Marks(ALL, frozenset("db"))]
    stall = found(marks, what=course(legs=(D, B, gated)))
    assert (stall.group, stall.workers, stall.cause) == ("b", (0,), "transfer")
    unready = [Marks(ALL, frozenset("d")), Marks(frozenset("da"), frozenset("d"))]
    stall = found(unready, what=course(legs=(D, B, gated)))
    assert (stall.group, stall.workers, stall.cause) == ("b", (1,), "producer")


def test_a_gate_to_the_step_before_counts_only_if_something_is_left_of_it():
    gated = dataclasses.replace(A, after=("d",))
    marks = [Marks(ALL, NONE)] * 2
    assert found(marks, what=course(legs=(gated, D, B))).group == "d"
    assert found(marks, what=course(legs=(gated, D, B), pending=False)).group == "a"


def test_a_late_step_whose_groups_have_all_arrived_waits_for_something_else():
    stall = found([Marks(ALL, ALL)] * 2)
    assert (stall.group, stall.producer, stall.workers, stall.cause) == (None, None, (), "rest")
    assert stall.text.endswith("; it waits for something else")


def test_without_marks_only_the_step_is_known_to_be_late():
    stall = found([Marks(), Marks()], what=Course(12, "own", (), 1.0))
    assert (stall.group, stall.cause) == (None, "rest")
    assert "leave no marks" in stall.text


def test_a_step_that_has_ended_meanwhile_is_told_too():
    stall = over(course(), 4.0)
    assert (stall.cause, stall.late_s) == ("over", 3.0)


# Plans ------------------------------------------------------------------------------------------


def gradient(name, op, *, elements=4, indices=None):
    spec = TensorSpec("float32", (elements,))
    return AggregatedGradient(name, TensorRef(op), spec, (), indices and TensorRef(indices))


def test_legs_follow_from_a_plan():
    job = PlannedJob(
        devices=("/job:worker/task:0", "/job:worker/task:1"),
        reduction="mean",
        variables=(),
        gradients=(
            gradient("w", "dw"),
            gradient("b", "db", elements=20),
            gradient("e", "de", indices="rows"),
            gradient("empty", "nothing", elements=0),
        ),
        marks=True,
    )
    decision = Decided(
        parts=(Part("b", 0, 16), Part("b", 16, 20)),
        groups=(
            Group("last", ("e",), "all_gather", deferred=True),
            Group("one", ("b[0:16]", "w"), "shuffle"),
            Group("two", ("b[16:20]",), "shuffle"),
            Group("none", ("empty",), "shuffle"),
        ),
        gates=(Gate("one", "last"),),
    )
    plan = Plan(job, decision)
    positions = {"db": 0, "dw": 1, "de": 2, "rows": 3, "nothing": 4}
    assert legs_of(plan, positions) == (
        Leg("last", "rows", 3, True),
        Leg("one", "dw", 1, False, ("last",)),
        Leg("two", "db", 0),
    )
    assert legs_of(Plan(dataclasses.replace(job, marks=False), decision), positions) == ()


# Parameter servers ------------------------------------------------------------------------------

# Two workers and a server: it sends `v`, then `u`, and adds up the gradients of `b` and `a`.
V, U = Leg("v", "", server="/job:ps/task:0"), Leg("u", "", after=("v",), server="/job:ps/task:0")
SUM_A = dataclasses.replace(A, server="/job:ps/task:0", place=2)
SUM_B = dataclasses.replace(B, server="/job:ps/task:0", place=2)
RECEIVED, COMPUTED = frozenset("uv"), frozenset("ab")
HOSTS = (*TWO, "parameter server 0")


def worker(arrived=RECEIVED, ready=COMPUTED):
    return Marks(frozenset(ready), frozenset(arrived))


def server(arrived=COMPUTED):
    return Marks(arrived=frozenset(arrived), is_server=True)


@pytest.mark.parametrize(
    ("marks", "group", "cause", "places", "text"),
    [
        (
            [worker("", ""), worker("", ""), None],
            *("v", "silent", (-1,)),
            "variable 'v' from /job:ps/task:0 is 3.0 s late (expected after 1.00 s); it waits for "
            "parameter server 0: no answer from there; should it not come back, the variables that "
            "it holds are lost: open a new session and restore the last checkpoint",
        ),
        (
            [worker("v", ""), worker("", ""), server("")],
            *("v", "transfer", (1,)),
            "; it has not arrived on worker 1",
        ),
        # `u` waits until `v` has arrived.
        ([worker("uv", ""), worker("v", ""), server("")], *("u", "transfer", (1,)), "on worker 1"),
        (
            [worker("uv", "a"), worker("uv", ""), server("")],
            *("a", "producer", (1,)),
            "group 'a' (completed by 'grad_a', for /job:ps/task:0) is 3.0 s late",
        ),
        (
            [worker(), worker(), server("b")],
            *("a", "transfer", (-1,)),
            "its gradients are there, but it has not arrived on parameter server 0",
        ),
        ([worker(), worker(), server()], None, "rest", (), "have arrived on the servers"),
        ([worker("", ""), None, server("")], "v", "silent", (1,), "worker 1: no answer from there"),
    ],
)
def test_with_parameter_servers_the_transfer_and_the_server_are_named(
    marks, group, cause, places, text
):
    what = course(legs=(V, U, SUM_B, SUM_A), pending=False)
    stall = find_stall(what, marks, 4.0, SETTINGS, HOSTS, servers=1)
    assert (stall.group, stall.cause, stall.workers) == (group, cause, places)
    assert text in stall.text
    assert ("last checkpoint" in stall.text) == (cause == "silent" and places == (-1,))
