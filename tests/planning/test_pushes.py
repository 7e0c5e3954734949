"""In which order gradients are sent, by hand and against all orders: three layers of 4 s each."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from caramel.core.decision import Decided, Gate, Group, Owner, Pull
from caramel.core.errors import PlanError
from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.planning.ordering.time_oracle import TimeOracle
from caramel.planning.ordering.transfer_graph import Op, Recv, TransferGraph
from caramel.planning.serving.ahead import choose_ahead
from caramel.planning.serving.course import Begins, Push, course_of, sent
from caramel.planning.serving.explain import explain_order
from caramel.planning.serving.planner import ordered
from caramel.planning.serving.pushes import gated, order_pushes
from caramel.planning.serving.received import WorkerStep
from caramel.report.shown_order import ShownOrder

SPEC = TensorSpec("float32", (1000,))
LAYERS = ("a", "b", "c")

# Each layer takes 4 s forward and 1 s backward, and 4 s on the link each way.
RECVS = tuple(Recv(f"recv {name}") for name in LAYERS)
OPS = (
    Op("forward_a", ("recv a",)),
    Op("forward_b", ("forward_a", "recv b")),
    Op("forward_c", ("forward_b", "recv c")),
    Op("backward_c", ("forward_c",)),
    Op("backward_b", ("backward_c",)),
    Op("backward_a", ("backward_b",)),
)
SECONDS = {op.name: 4.0 if op.name.startswith("forward") else 1.0 for op in OPS}
WORKER = WorkerStep(
    TransferGraph(RECVS, OPS), TimeOracle(SECONDS, {recv.name: 4.0 for recv in RECVS})
)


def plan_of(*sparse: str, servers: int = 1) -> Plan:
    variables = tuple(Variable(n, n, f"{n}/init", f"{n}/read", SPEC, True, True, n) for n in LAYERS)
    gradients = tuple(
        AggregatedGradient(
            n,
            TensorRef(f"backward_{n}"),
            SPEC,
            (f"{n}/apply",),
            **({"indices": TensorRef(f"rows_{n}"), "index_dtype": "int32"} if n in sparse else {}),
        )
        for n in LAYERS
    )
    job = PlannedJob(
        ("/job:worker/task:0",),
        "mean",
        variables,
        gradients,
        servers=tuple(f"/job:ps/task:{n}" for n in range(servers)),
    )
    groups = tuple(
        Group(f"of_{n}", (n,), "all_gather" if n in sparse else "server") for n in LAYERS
    )
    owners = tuple(Owner(n, number % servers) for number, n in enumerate(LAYERS))
    return Plan(job, Decided(groups, owners=owners, pulls=tuple(map(Pull, LAYERS))))


def begins(*sparse: str, servers: int = 1) -> Begins:
    return Begins(plan_of(*sparse, servers=servers), WORKER, LAYERS)


def test_what_is_needed_first_is_sent_first():
    """Without an order, whatever is ahead:

    all: computed from 0; gradients are ready at 13, 14, 15, and sent from 13 to 17 (c), 21 (b) and
    25 (a). What comes back last, a, is there at 29.
    c, or c and b: a is received until 4 (and b until 8), and computed from then on; gradients are
    ready from 17 on, and sent until 29.

    With an order: a goes ahead. b and c are received until 8 while a and b are computed. Gradients
    are ready at 13, 14 and 15. c is sent until 17, then a until 21, then b until 25, while a comes
    back.
    """
    alone = choose_ahead(begins(), LAYERS)
    assert alone.step_s == pytest.approx(29.0)
    ahead, plan = order_pushes(begins(), LAYERS, 0)
    assert (ahead.variables, ahead.step_s) == ({"a"}, pytest.approx(25.0))
    assert [group.name for group in plan.decision.groups] == ["of_c", "of_a", "of_b"]
    assert plan.decision.gates == (Gate("of_a", "of_c"), Gate("of_b", "of_a"))
    done = course_of(plan, WORKER, LAYERS, ahead.variables)
    up = [(each.variable, each.begin_s, each.end_s) for each in done.sent if each.is_gradient]
    assert up == [("c", 13.0, 17.0), ("a", 17.0, 21.0), ("b", 21.0, 25.0)]
    assert done.step_s == pytest.approx(25.0)


def test_what_comes_in_order_anyway_waits_for_nothing():
    """c is on its way, and a would be behind b, which was ready before: only b has to wait."""
    _, plan = order_pushes(begins(), LAYERS, 1)
    assert plan.decision.gates == (Gate("of_b", "of_a"),)


def test_each_server_has_an_order_of_its_own():
    """b is alone on its server; the gradients of c and a do not have to wait for each other."""
    _, plan = order_pushes(begins(servers=2), LAYERS, 0)
    assert plan.decision.gates == (Gate("of_a", "of_c"),)


def test_sparse_gradients_go_when_they_are_ready():
    _, plan = order_pushes(begins("c"), LAYERS, 0)
    assert {name for gate in plan.decision.gates for name in (gate.group, gate.after)} == {
        "of_a",
        "of_b",
    }
    assert plan.decision.groups[-1].name == "of_c"
    with pytest.raises(PlanError, match="'of_c' has a sparse gradient"):
        plan.deciding(gates=(Gate("of_a", "of_c"),))


def test_an_order_says_why():
    ahead, plan = order_pushes(begins(), LAYERS, 1)
    plan = ordered(plan, LAYERS, 0, ahead=ahead.variables)
    explained = explain_order(plan, "by TIC", WORKER)
    told = [(e.place, e.variable, e.after, e.ready_s, e.arrives_s) for e in explained.gradients]
    assert told == [
        (1, "c", (), 13.0, 17.0),
        (2, "a", (), 15.0, 21.0),
        (3, "b", ("a",), 14.0, 25.0),
    ]
    assert [each.reason for each in explained.gradients] == [
        "",
        "ready as number 3; comes back for the next step at once",
        "ready as number 2; does not come back yet",
    ]
    assert "What workers send" in str(ShownOrder.of(explained, None))
    plain = explain_order(ordered(plan_of(), LAYERS, 0), "by TIC", WORKER)
    assert [each.variable for each in plain.gradients] == ["c", "b", "a"]
    assert "gradients are sent when they are ready" in str(ShownOrder.of(plain, None))


# Against all orders -----------------------------------------------------------------------------


def drawn(draw: random.Random) -> tuple[list[Push], dict[int, float]]:
    """Two to six gradients, some of which come back, and until when the way back is busy."""
    pushes, clock_s, pace_s = [], 0.0, draw.choice([0.2, 0.5, 1.0, 2.0])
    for name in "abcdef"[: draw.randint(2, 6)]:
        clock_s += pace_s * draw.expovariate(1.0)
        seconds = draw.choice([draw.uniform(0.1, 1.0), 0.05 + draw.expovariate(1.0)])
        ahead = frozenset(name if draw.random() < 0.6 else "")
        pushes.append(Push(name, 0, clock_s, ((name, seconds),), ahead))
    return pushes, {0: draw.choice([0.0, clock_s / 2])}


def test_orders_are_about_as_good_as_the_best_and_never_worse_than_none():
    draw, ratios = random.Random(0), []
    for _ in range(150):
        pushes, free_s = drawn(draw)
        names = [push.group for push in pushes]

        def end_s(gates, pushes=pushes, free_s=free_s) -> float:
            return max(each.end_s for each in sent(pushes, gates, free_s))

        # The best of all orders, also of those that let a link be idle to wait for something.
        least_s = min(
            end_s([Gate(later, earlier) for earlier, later in itertools.pairwise(order)])
            for order in itertools.permutations(names)
        )
        _, gates = gated(pushes, dict.fromkeys(names, 1), {}, 0)
        assert end_s(gates) <= end_s([]) * (1 + 1e-9)
        ratios.append(end_s(gates) / least_s)
    assert math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) < 1.02
