"""Parts of gradients in plans: what is refused, and how large gradients are split."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.decision import Decided, Gate, Group, Part
from caramel.core.errors import PlanError
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.planning.search.split import split_gradients, with_parts, worthwhile_parts
from tests.support.plans import make_plan


def plan_of(*parts, dtype="float32", indices=None, elements=48):
    """A plan with one gradient of some elements, in the given parts."""
    gradient = AggregatedGradient(
        "w", TensorRef("gradient"), TensorSpec(dtype, (elements,)), ("apply",), indices
    )
    own = tuple(Part("w", *each) for each in parts)
    members = [part.name for part in own] or ["w"]
    groups = tuple(Group(f"g{n}", (name,), "shuffle") for n, name in enumerate(members))
    devices = ("/job:worker/task:0", "/job:worker/task:1")
    return Plan(PlannedJob(devices, "mean", (), (gradient,)), Decided(groups, parts=own))


def test_parts_are_members_of_groups_under_names_of_their_own():
    plan = plan_of((0, 16), (16, 48))
    assert [group.members for group in plan.decision.groups] == [("w[0:16]",), ("w[16:48]",)]
    assert [plan.elements(group) for group in plan.decision.groups] == [16, 32]
    assert [plan.bytes(group) for group in plan.decision.groups] == [64, 128]
    assert plan.gradient("w[16:48]") is plan.gradient("w") is plan.job.gradients[0]
    assert plan.spec("w[16:48]") == TensorSpec("float32", (32,))
    assert plan.spec("w") == TensorSpec("float32", (48,))
    assert plan.part("w") is None
    assert plan.parameter("w[0:16]") == plan.parameter("w") == "w"


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([(0, 32), (16, 48)], {}, r"'w\[16:48\]' begins before the part before it ends"),
        ([(16, 48), (0, 16)], {}, "no part has elements 0 to 16 of 'w'"),
        ([(0, 16), (32, 48)], {}, "no part has elements 16 to 32 of 'w'"),
        ([(0, 16), (16, 32)], {}, "the parts of 'w' end at element 32, but its gradient at 48"),
        ([(0, 16), (16, 64)], {}, "the parts of 'w' end at element 64, but its gradient at 48"),
        ([(0, 48), (48, 48)], {}, r"'w\[48:48\]' has no elements"),
        ([(0, 12), (12, 48)], {}, "begins at byte 48, which is no multiple of 64"),
        ([(0, 16), (16, 48)], {"dtype": "float16"}, "begins at byte 32"),
        ([(0, 48)], {"indices": TensorRef("rows")}, "is sparse; it cannot be split"),
    ],
)
def test_parts_that_do_not_make_up_a_gradient_are_refused(parts, options, message):
    with pytest.raises(PlanError, match=message):
        plan_of(*parts, **options)


@pytest.mark.parametrize(
    ("parts", "members", "message"),
    [
        ([("w", 0, 16), ("w", 16, 48)], ["w[0:16]"], r"'w\[16:48\]' .* stands in 0 groups"),
        ([], ["w", "w[0:16]"], r"no gradient of parameter 'w\[0:16\]'|has 0 gradients"),
        ([("w", 0, 16), ("w", 16, 48)], ["w"], "'w' is split, but in a group as a whole"),
        ([("v", 0, 16)], ["w"], "no gradient of parameter 'v'"),
    ],
)
def test_every_part_is_in_one_group(parts, members, message):
    groups = tuple(Group(f"g{n}", (name,), "shuffle") for n, name in enumerate(members))
    with pytest.raises(PlanError, match=message):
        plan_of().deciding(parts=tuple(Part(*each) for each in parts), groups=groups)


def test_a_plan_with_parts_survives_a_round_trip_through_json():
    plan = plan_of((0, 16), (16, 48))
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.deferred == frozenset()
    groups = (dataclasses.replace(plan.decision.groups[0], deferred=True), plan.decision.groups[1])
    assert plan.deciding(groups=groups).deferred == {"w"}


def test_large_gradients_are_split_into_equal_parts():
    plan = split_gradients(plan_of(elements=1000), 1500)
    assert plan.decision.parts == (Part("w", 0, 336), Part("w", 336, 672), Part("w", 672, 1000))
    assert [(g.name, g.members, g.shift) for g in plan.decision.groups] == [
        ("g0_0", ("w[0:336]",), 0),
        ("g0_1", ("w[336:672]",), 1),
        ("g0_2", ("w[672:1000]",), 0),
    ]
    assert split_gradients(plan, 1500) == plan  # what is split already stays as it is


def test_small_sparse_and_joined_gradients_are_not_split():
    small, sparse = plan_of(elements=1000), plan_of(indices=TensorRef("rows"), elements=1000)
    both = make_plan(2, [(1000,), (1000,)], "float32", pattern="ring")
    for plan, most_bytes in ((small, 4000), (sparse, 1000), (both, 1000)):
        assert split_gradients(plan, most_bytes) == plan
    with pytest.raises(PlanError, match="at least 1 byte"):
        split_gradients(small, 0)


def test_gates_are_between_all_parts():
    plan = make_plan(2, [(48,), (48,)], "float32", groups=[[0], [1]], pattern="ring")
    plan = plan.deciding(gates=(Gate("group_1", "group_0"),))
    parts = with_parts(plan, [Part("v0", 0, 16), Part("v0", 16, 48)])
    assert parts.decision.gates == (Gate("group_1", "group_0_0"), Gate("group_1", "group_0_1"))


@given(
    elements=st.integers(0, 5000),
    most_bytes=st.integers(1, 5000),
    dtype=st.sampled_from(["float16", "float32", "float64", "complex128"]),
)
def test_parts_cover_a_gradient_and_are_about_as_large_as_asked_for(elements, most_bytes, dtype):
    plan = split_gradients(plan_of(elements=elements, dtype=dtype), most_bytes)
    sizes = [plan.bytes(group) for group in plan.decision.groups]
    assert sum(sizes) == plan.bytes(plan_of(elements=elements, dtype=dtype).decision.groups[0])
    assert max(sizes) <= max(most_bytes + 64, 128)
    assert max(sizes) - min(sizes) <= 128 or len(sizes) == 1


def test_gradients_are_worth_splitting_where_one_dominates():
    even = make_plan(2, [(1000,)] * 7, "float32", groups=[[n] for n in range(7)], pattern="ring")
    sparse = plan_of(indices=TensorRef("rows"), elements=1000)
    assert worthwhile_parts(even, 1) == worthwhile_parts(sparse, 1) == ()
    shapes = [(64, 64), (1000,), (255,)]
    plan = make_plan(2, shapes, "float32", groups=[[0], [1], [2]], pattern="ring")
    for threshold_bytes, finest in ((1, [32, 8]), (64, [32, 8]), (200, [11, 3]), (2000, [])):
        cuts = worthwhile_parts(plan, threshold_bytes)
        counts = [list(Counter(part.parameter for part in parts).values()) for parts in cuts]
        assert counts[-1:] == ([finest] if finest else [])
        assert [own[0] for own in counts] == sorted({own[0] for own in counts})
    assert [len(parts) for parts in worthwhile_parts(plan, 1)] == [4, 8, 20, 40]
