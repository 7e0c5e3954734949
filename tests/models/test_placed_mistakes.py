"""Each mistake with a placed model gives one error: what is wrong, where, and what to do."""

from __future__ import annotations

import dataclasses
import functools
import math
import re

import pytest

import caramel
from caramel.core.errors import ClusterError, PlanError
from tests.support.networks import Network, network, wide
from tests.support.placed import placed

TASK = "/job:worker/task:0"


@functools.cache
def job() -> Network:
    return network("momentum", model=wide)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitioner": "metis"}, "partitioner must be one of 'search', 'hash'.*, not 'metis'"),
        ({"scheduler": "lifo"}, "scheduler must be one of 'fifo', 'pct', 'msr', not 'lifo'"),
        ({"order": True}, "order must be one of 'auto', 'none', 'schedule', not True"),
        ({"seed": None}, "seed must be a whole number, not None"),
        ({"speeds": [1, 0, 1]}, "speed of '/job:worker/task:1' must be a number more than 0"),
        ({"speeds": [1, 1, math.nan]}, "speed of '/job:worker/task:2' .* not nan"),
        ({"speeds": [1]}, "speeds has 1 entries, but there are 3 devices"),
        ({"speeds": 2}, "speeds must be a list with one entry for each device, not 2"),
        ({"memory": 0}, "memory must be a number of bytes, more than 0, .* not 0"),
        ({"memory": math.nan}, "memory must be .* not nan"),
        ({"memory": ["1GiB", "2GiB", None]}, "memory of '/job:worker/task:2' must be .* not None"),
        ({"memory": ["1GiB"]}, "memory has 1 entries, but there are 3 devices"),
        ({"constraints": [("w1", 0)]}, "constraints must be a mapping from regular expressions"),
        ({"constraints": {"w1": None}}, "'w1' must name devices by text or number, not None"),
        ({"constraints": {"w1": [True]}}, "'w1' must name devices by text or number, not"),
        ({"constraints": {"w1": 3}}, "'w1' names device 3; they are 0 to 2"),
        ({"constraints": {"w1": "/cpu:0"}}, r"'w1' names \['/cpu:0'\]; there are"),
        ({"constraints": {"w": 0}}, "'w' matches no name of what is placed.* a whole name"),
        ({"constraints": {"x": 1}}, "'x' keeps the placeholder 'x' from '/job:worker/task:0'"),
        (
            {"constraints": {"w1": 0, "w1/Momentum": 1}},
            r"must be on one device, but .* 'w1' on \['.*:0'\], 'w1/Momentum' on \['.*:1'\]",
        ),
        ({"plan": "plan.json"}, "plan must be a caramel.Plan, .*, not 'plan.json'; Plan.from_json"),
        ({"memory": 50_000}, "67,200 stay there, of 'w1', 'w1/Momentum', .* give a device more"),
        (
            {"memory": 110_000, "batch_size": 1, "partitioner": "heft", "device_list": [TASK]},
            "no placement by 'heft' fits: device .* has 110,000; .*; the largest tensors are .* "
            "take more of them",
        ),
    ],
)
def test_an_option_that_cannot_be(options, message):
    with pytest.raises(PlanError, match=message):
        placed(job(), **options)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([], "must be a list of device names"),
        ([TASK, TASK], "names '/job:worker/task:0' more than once"),
        ([TASK, f"{TASK}/cpu:0"], "'/job:worker/task:0' and a device on it, which may be the same"),
        ([TASK, "/job:worker/task:5"], "'/job:worker/task:5', which is on none of"),
    ],
)
def test_devices_that_cannot_be(devices, message):
    with pytest.raises(ClusterError, match=message):
        placed(job(), device_list=devices)


def test_a_plan_of_another_model_is_refused(caplog):
    plan = placed(job()).plan
    placed(job(), plan=plan, memory="1GiB")
    assert not caplog.messages
    placed(job(), plan=plan, memory=50_000)
    assert re.match("the given plan may not fit: device .* has 50,000", caplog.messages[0])
    with pytest.raises(PlanError, match="for the devices .*; the model has .* by device_list"):
        placed(job(), 2, plan=plan)
    with pytest.raises(PlanError, match="for another job: its placement .* op '.*; make a new"):
        placed(network("adam"), plan=plan)
    with pytest.raises(PlanError, match="says nothing of where ops are"):
        placed(job(), plan=caramel.ARModel(job().context(), 1).plan)
    with pytest.raises(PlanError, match=r"it fits a caramel\.PlacedModel alone"):
        caramel.ARModel(job().context(), 1, plan=plan)
    where = plan.placement
    moved = (where.ops[0][:-1], (*where.ops[1], where.ops[0][-1]), where.ops[2])
    other = plan.deciding(placement=dataclasses.replace(where, ops=moved))
    with pytest.raises(PlanError, match="on device 1, the model on device 0: where ops are"):
        placed(job()).add_variant(other, "other")


def left_of(gone, **options):
    """A model of three tasks, and its step and what is chosen when one of them is gone."""
    cluster = caramel.Cluster.of([f"127.0.0.1:{port}" for port in (1, 2, 3)])
    model = placed(job(), cluster, seed=1, **options)
    left = cluster.without([cluster.tasks[gone]])
    (step,) = model._jobs_on(left).values()
    return model, step, model._chosen_on(left)


def test_what_was_chosen_for_a_device_holds_when_another_is_gone():
    model, step, chosen = left_of(
        1, memory=["1GB", "2GB", "3GB"], speeds=[1, 2, 3], constraints={"w1": [1, 2]}
    )
    assert step.plan.placement.devices == model.cluster.devices[::2]
    assert step.plan.placement.number_of["w1"] == 1
    assert (chosen.planner.memory_bytes, chosen.planner.speeds) == ((1e9, 3e9), (1.0, 3.0))


def test_what_needs_a_device_that_is_gone_is_told():
    with pytest.raises(PlanError, match="'w1' allows no other devices than /job:worker/task:2"):
        left_of(2, constraints={"w1": 2})
    plan = placed(job(), 3, seed=1).plan
    with pytest.raises(PlanError, match=r"the given plan has \d+ ops on /job:worker/task:2, such"):
        left_of(2, plan=plan)


def test_a_given_plan_that_leaves_a_device_out_holds_without_it():
    given = placed(job(), 3, seed=1, constraints={".*": [0, 1]}).plan
    assert not given.placement.ops[2]
    _, step, _ = left_of(2, plan=given)
    assert step.plan.placement.number_of == given.placement.number_of
