"""A plan is checked when it is made, and survives a round trip through JSON."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import numpy as np
import pytest

import caramel
from caramel.core.consequences import Consequences
from caramel.core.decision import Decided, Gate, Group
from caramel.core.errors import PlanError
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from tests.support import networks


def gradient(parameter, dtype="float32", **options):
    return AggregatedGradient(
        parameter,
        TensorRef(f"{parameter}/gradient"),
        TensorSpec(dtype, (3,)),
        ("apply",),
        **options,
    )


def plan(gradients, groups):
    devices = ("/job:worker/task:0", "/job:worker/task:1")
    return Plan(PlannedJob(devices, "mean", (), tuple(gradients)), Decided(tuple(groups)))


def test_a_plan_survives_a_round_trip_through_json():
    model = caramel.ARModel(networks.network("momentum").context(), workers=3)
    assert Plan.from_json(model.plan.to_json()) == model.plan


def test_the_json_of_a_plan_is_readable():
    written = json.loads(plan([gradient("w")], [Group("g", ("w",), "ring")]).to_json())
    assert written["decision"]["groups"][0]["pattern"] == "ring"
    assert written["job"]["gradients"][0]["values"] == ["w/gradient", 0]


@pytest.mark.parametrize(
    ("gradients", "groups", "message"),
    [
        ([gradient("w")], [], "'w' has 1 gradients and stands in 0 groups"),
        ([], [Group("g", ("w",), "ring")], "'w' has 0 gradients"),
        (
            [gradient("w")],
            [Group("g", ("w",), "ring"), Group("h", ("w",), "ring")],
            "stands in 2 groups",
        ),
        (
            [gradient("w"), gradient("v")],
            [Group("g", ("w",), "ring"), Group("g", ("v",), "ring")],
            "same name",
        ),
        (
            [gradient("w"), gradient("v", "float64")],
            [Group("g", ("w", "v"), "ring")],
            "different dtypes",
        ),
        ([gradient("w")], [Group("g", ("w",), "star")], "unknown pattern 'star'"),
        ([gradient("w")], [Group("g", ("w",), "ring", depth=0)], "depth 0"),
        ([gradient("w")], [Group("g", ("w",), "all_gather")], "gathers a dense gradient"),
        (
            [gradient("w", indices=TensorRef("i")), gradient("v")],
            [Group("g", ("w", "v"), "ring")],
            "joins sparse gradient 'w'",
        ),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(gradients, groups, message):
    with pytest.raises(PlanError, match=message):
        plan(gradients, groups)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda value: value.update(format=99), "not a Caramel plan of format 2$"),
        (
            lambda value: value.update(format=1),
            "not a Caramel plan of format 2, but one of format 1: make it again",
        ),
        (lambda value: value.update(surprise=1), "unknown keys .*surprise"),
        (lambda value: value["job"].pop("devices"), "keys .*devices.* are missing"),
        (
            lambda value: value["decision"]["groups"][0].update(depth="two"),
            r"groups\[0\].depth: expected a int",
        ),
        (lambda value: value["job"].update(reduction="max"), "expected one of"),
        (
            lambda value: value["job"]["gradients"][0].update(values=["w", 0, 1]),
            r"gradients\[0\].values: expected a list of op, index",
        ),
        (
            lambda value: value["job"]["gradients"][0].update(values=[]),
            "expected a list of op, index",
        ),
        (
            lambda value: value["job"]["gradients"][0].update(values=[5, 0]),
            r"gradients\[0\].values.op: expected a str",
        ),
    ],
)
def test_json_that_is_no_plan_is_refused_with_the_place(change, message):
    value = json.loads(plan([gradient("w")], [Group("g", ("w",), "ring")]).to_json())
    change(value)
    with pytest.raises(PlanError, match=message):
        Plan.from_json(json.dumps(value))


def test_text_that_is_not_json_is_refused():
    with pytest.raises(PlanError, match="must be JSON"):
        Plan.from_json("not json")


def test_what_follows_from_a_plan_need_not_be_given():
    made = plan([gradient("w")], [Group("g", ("w",), "ring")])
    value = json.loads(made.to_json())
    del value["consequences"]
    assert Plan.from_json(json.dumps(value)) == made


def test_another_decision_for_the_same_job_leaves_out_what_followed_from_the_old_one():
    made = plan([gradient("w"), gradient("v")], [Group("g", ("w", "v"), "ring")])
    made = dataclasses.replace(made, consequences=Consequences(held=("count",)))
    groups = (Group("one", ("w",), "ring"), Group("two", ("v",), "ring"))
    other = made.deciding(groups=groups)
    assert other == Plan(made.job, Decided(groups))
    assert other.deciding(gates=(Gate("two", "one"),)).decision.groups == groups
    with pytest.raises(PlanError, match="stands in 0 groups"):
        made.deciding(groups=groups[:1])
    with pytest.raises(TypeError, match="devices"):
        made.deciding(devices=("/job:worker/task:0",))


def test_a_plan_that_has_looked_things_up_is_still_equal_to_others():
    made, other = (plan([gradient("w")], [Group("g", ("w",), "ring")]) for _ in range(2))
    assert made.group("g").members == ("w",)
    assert made.deferred == frozenset()
    assert made == other
    assert hash(made) == hash(other)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == other
    deferred = other.deciding(groups=(Group("g", ("w",), "ring", deferred=True),))
    assert deferred.group("g").deferred
    assert deferred.deferred == {"w"}


def test_a_plan_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan([], []).decision = Decided(())


# Plans that are given ----------------------------------------------------------------------------


def test_an_edited_plan_is_carried_out_and_gives_the_same_bits(tmp_path):
    job = networks.network("momentum", model=networks.wide)
    plain = caramel.ARModel(job.context(), workers=3)
    joined = Group("all", tuple(g.parameter for g in plain.plan.job.gradients), "shuffle", depth=2)
    edited = Plan.from_json(plain.plan.deciding(groups=(joined,)).to_json())
    planned = caramel.ARModel(job.context(), workers=3, plan=edited, check=True)
    assert planned.plan.decision == edited.decision
    with plain.session() as session:
        start = session.save(tmp_path / "start")
    results = []
    for model in (plain, planned):
        with model.session() as session:
            session.restore(start)
            for _ in range(5):
                session.step(job.feed)
            results.append(session.variables())
    for name, value in results[0].items():
        np.testing.assert_array_equal(results[1][name], value, err_msg=name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": ("/job:worker/task:0",)}, "devices are lacking /job:worker/task:1"),
        ({"train_op": "other"}, "train_op are 'other', but the job's"),
        ({"reduction": "sum"}, "reduction are 'sum', but the job's 'mean'"),
    ],
)
def test_a_plan_for_another_job_is_refused_with_what_differs(change, message):
    job = networks.network("momentum")
    made = caramel.ARModel(job.context(), workers=2).plan
    other = Plan(dataclasses.replace(made.job, **change), made.decision)
    with pytest.raises(PlanError, match=message):
        caramel.ARModel(job.context(), workers=2, plan=other)


def test_a_plan_for_other_variables_is_refused_with_their_names():
    def made(model, plan=None):
        job = networks.network("gradient_descent", model=model)
        return caramel.ARModel(job.context(), workers=2, plan=plan)

    other = made(networks.wide).plan
    message = (
        r"^the plan does not fit the job: its variables are lacking '\w+' \(float64, shape "
        r"\[[\d, ]+\]\), with an unknown '\w+' \(float64, shape \[[\d, ]+\]\)$"
    )
    with pytest.raises(PlanError, match=message):
        made(networks.perceptron, other)
