"""What is sent for the next step, by hand: two layers, of which each transfer takes 4 s."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.decision import Decided, Group, Owner, Pull
from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import Op, Recv, TransferGraph
from caramel.planning.serving import prospect
from caramel.planning.serving.ahead import choose_ahead
from caramel.planning.serving.course import Begins, course_of
from caramel.planning.serving.planner import ordered
from caramel.planning.serving.prospect import prospect_of
from caramel.planning.serving.received import WorkerStep

SPEC = TensorSpec("float32", (1000,))
RECVS = (Recv("recv first"), Recv("recv last"))
OPS = (
    Op("forward_first", ("recv first",)),
    Op("forward_last", ("forward_first", "recv last")),
    Op("backward_last", ("forward_last",)),
    Op("backward_first", ("backward_last",)),
)
TIMES = TimeOracle(dict.fromkeys([op.name for op in OPS], 1.0), {r.name: 4.0 for r in RECVS})
WORKER = WorkerStep(TransferGraph(RECVS, OPS), TIMES)
ORDER = ("first", "last")


def plan_of() -> Plan:
    variables = tuple(Variable(n, n, f"{n}/init", f"{n}/read", SPEC, True, True, n) for n in ORDER)
    gradients = tuple(
        AggregatedGradient(n, TensorRef(f"backward_{n}"), SPEC, (f"{n}/apply",)) for n in ORDER
    )
    job = PlannedJob(
        ("/job:worker/task:0",), "mean", variables, gradients, servers=("/job:ps/task:0",)
    )
    groups = tuple(Group(f"of_{n}", (n,), "server") for n in ORDER)
    owners = tuple(Owner(n, 0) for n in ORDER)
    return Plan(job, Decided(groups, owners=owners, pulls=tuple(map(Pull, ORDER))))


@pytest.mark.parametrize(
    ("ahead", "step_s"),
    [
        # Received until 8, computed until 11; sent from 10 to 14 and from 14 to 18.
        ("", 18.0),
        # Received until 4, computed until 8; sent from 7 to 11 and from 11 to 15, and while the
        # first layer's gradient is sent the last layer comes back.
        ("last", 15.0),
        # Computed until 4; sent from 3 to 7 and from 7 to 11; they come back until 11 and 15.
        ("first last", 15.0),
        # Received until 4, computed until 6 (the first op waits for nothing, the second until 4).
        # Sent from 6 to 10 and from 10 to 14; the first layer comes back until 18.
        ("first", 18.0),
    ],
)
def test_both_directions_of_a_link_are_used(ahead, step_s):
    own = frozenset(ahead.split())
    assert course_of(plan_of(), WORKER, ORDER, own).step_s == pytest.approx(step_s)


def test_as_few_go_ahead_as_make_the_step_the_shortest():
    chosen = choose_ahead(Begins(plan_of(), WORKER, ORDER), ORDER)
    assert chosen.variables == {"last"}
    assert chosen.step_s == pytest.approx(15.0)
    assert choose_ahead(Begins(plan_of(), WORKER, ORDER), ["first"]).variables == frozenset()
    assert choose_ahead(Begins(plan_of(), WORKER, ORDER), []).variables == frozenset()


def test_what_goes_ahead_waits_for_nothing_and_nothing_for_it():
    plan = ordered(plan_of(), ORDER, 0, ahead=frozenset({"first"}))
    assert [(p.variable, p.after, p.ahead) for p in plan.decision.pulls] == [
        ("first", (), True),
        ("last", (), False),
    ]
    assert ordered(plan_of(), ORDER, 0).decision.pulls[1].after == ("first",)


def test_no_plan_of_a_search_is_faster_than_what_it_may_bring():
    """A step takes 18 s. All that goes one way takes 8 s, and what is computed 4 s."""
    begins = Begins(plan_of(), WORKER, ORDER)
    assert prospect_of(begins, ORDER).saved_s == pytest.approx(18.0 - 8.0)
    # What no step writes is received once: then the link to the server is the limit.
    own = plan_of()
    job = dataclasses.replace(own.job, gradients=own.job.gradients[1:])
    plan = Plan(job, dataclasses.replace(own.decision, groups=own.decision.groups[1:]))
    # Received until 8, computed until 11; sent from 10 to 14.
    begins = Begins(plan, WORKER, ORDER)
    assert prospect_of(begins, ()).saved_s == pytest.approx(14.0 - 8.0)
    assert prospect_of(begins, ORDER).saved_s == pytest.approx(14.0 - 4.0)


def test_what_a_search_takes_is_known_from_what_it_tries(monkeypatch):
    """By a clock on which each thing takes a second."""
    ticks = iter(range(100))
    monkeypatch.setattr(prospect.time, "perf_counter", lambda: next(ticks))
    begins = Begins(plan_of(), WORKER, ORDER)
    assert prospect_of(begins, ORDER).pause_s == pytest.approx(2 * 2000 + 32)
    assert prospect_of(begins, ()).pause_s == pytest.approx(2 * 2000)
