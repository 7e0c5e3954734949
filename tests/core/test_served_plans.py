"""What a plan with parameter servers has to be; it is checked when it is made."""

from __future__ import annotations

import pytest

from caramel.core.decision import Decided, Gate, Group, Owner, Part, Pull
from caramel.core.errors import PlanError
from caramel.core.facts import Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, server_place
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob

SPEC = TensorSpec("float32", (32,))


def served_plan(
    owners="w:0 v:1",
    *,
    groups=(("a", "w"), ("b", "v")),
    pattern="server",
    servers=2,
    pulls=(),
    sparse="",
    **decided,
) -> Plan:
    """A plan of parameters w and v, and of "mean", which differs between workers."""
    variables = tuple(
        Variable(n, n, f"{n}/init", f"{n}/read", SPEC, n != "mean", True, n)
        for n in ("w", "v", "mean")
    )
    gradients = tuple(
        AggregatedGradient(
            n,
            TensorRef(f"{n}/raw"),
            SPEC,
            (f"{n}/apply",),
            indices=TensorRef(f"{n}/rows") if n == sparse else None,
        )
        for n in ("w", "v")
    )
    job = PlannedJob(
        ("/job:worker/task:0", "/job:worker/task:1"),
        "mean",
        variables,
        gradients,
        local=frozenset({"mean"}),
        servers=tuple(f"/job:ps/task:{n}" for n in range(servers)),
    )
    homes = [each.split(":") for each in owners.split()]
    made = Decided(
        tuple(Group(name, tuple(members.split()), pattern) for name, members in groups),
        owners=tuple(Owner(name, int(server)) for name, server in homes),
        pulls=tuple(pulls),
        **decided,
    )
    return Plan(job, made)


def test_servers_have_places_beside_the_workers():
    plan = served_plan()
    assert plan.job.served == {"w", "v"}
    assert plan.job.places == {
        0: "/job:worker/task:0",
        1: "/job:worker/task:1",
        server_place(0): "/job:ps/task:0",
        server_place(1): "/job:ps/task:1",
    }
    assert plan.place(plan.group("b")) == server_place(1)
    assert plan.aggregated_at(plan.group("b")) == (server_place(1),)
    assert plan.is_distributed


def test_a_plan_with_servers_survives_json():
    plan = served_plan(pulls=[Pull("v"), Pull("w", ("v",), reason="it is the last one")])
    assert Plan.from_json(plan.to_json()) == plan


def test_without_servers_nothing_is_served():
    plan = served_plan("", servers=0, pattern="ring")
    assert plan.job.served == frozenset()
    assert plan.place(plan.group("a")) is None
    assert plan.aggregated_at(plan.group("a")) == range(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"owners": "w:0"}, "the plan names no server for variable 'v'"),
        ({"owners": "w:0 v:2"}, "'v' is to be on server 2; there are 2"),
        ({"owners": "w:0 v:-1"}, "'v' is to be on server -1; there are 2"),
        ({"owners": "w:0 v:1 w:1"}, "gives a variable two servers"),
        ({"owners": "w:0 v:1 mean:0"}, "'mean' is no variable that lives on a server"),
        ({"servers": 0, "pattern": "ring"}, "'w' is no variable that lives on a server"),
        ({"pattern": "ring"}, "group 'a' is aggregated by 'ring', with 2 parameter servers"),
        ({"owners": "", "servers": 0}, "aggregated by 'server', with 0 parameter servers"),
        ({"groups": [("a", "w v")]}, "group 'a' joins gradients of several servers"),
        ({"pulls": [Pull("mean")]}, "the plan pulls 'mean', which is on no server"),
        ({"pulls": [Pull("w"), Pull("w")]}, "the plan pulls 'w' twice"),
        ({"pulls": [Pull("w", ("v",)), Pull("v")]}, "waits for 'v', which is not pulled before it"),
        (
            {"pulls": [Pull("v"), Pull("w", ("v",), ahead=True)]},
            "'w' is pulled ahead, and so cannot wait for 'v'",
        ),
        (
            {"pulls": [Pull("v", ahead=True), Pull("w", ("v",))]},
            "waits for 'v', which is not pulled before it in the same step",
        ),
        ({"pulls": [Pull("w", ("w",))]}, "waits for 'w', which is not pulled before it"),
        ({"gates": (Gate("a", "c"),)}, "a gate of the plan names group 'c', which is not in it"),
        ({"sparse": "v", "gates": (Gate("a", "b"),)}, "'b' has a sparse gradient: .* sent when it"),
        (
            {
                "parts": (Part("w", 0, 16), Part("w", 16, 32)),
                "groups": [("a", "w[0:16]"), ("c", "w[16:32]"), ("b", "v")],
            },
            "neither split nor deferred",
        ),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(PlanError, match=message):
        served_plan(**options)
