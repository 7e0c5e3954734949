"""The paper's optimizations, put together and one by one, from facts made by hand."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.decision import Decided, Edge, Gate, Group
from caramel.core.errors import PlanError
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.core.time_facts import (
    ActivationOrder,
    NetworkModel,
    TransferCost,
    TransferWindows,
    Window,
)
from caramel.planning.paper.plan import paper_plan
from caramel.planning.plain import SMALLEST_CHUNK_BYTES

OFF = {"batching": False, "scheduling": False, "adaptive_depth": False, "pattern": "shuffle"}
KB = 1000
MODEL = NetworkModel(
    3,
    {"shuffle": TransferCost(0.001, 1e-8), "ring": TransferCost(0.002, 5e-9)},
    bytes_per_s=1e8,
    threshold_bytes=100 * KB,
)


def gradient(name, size_bytes, dtype="float32", **options):
    elements = size_bytes // (8 if dtype == "float64" else 4)
    spec = TensorSpec(dtype, (elements,))
    return AggregatedGradient(name, TensorRef(f"{name}/gradient"), spec, ("apply",), **options)


def plain(*gradients, workers=3, gathered=()):
    groups = tuple(
        Group(
            f"group_{number}",
            (each.parameter,),
            "all_gather" if each.parameter in gathered else "shuffle",
            shift=number % workers,
            smallest_chunk_bytes=SMALLEST_CHUNK_BYTES,
        )
        for number, each in enumerate(gradients)
    )
    devices = tuple(f"/job:worker/task:{number}" for number in range(workers))
    job = PlannedJob(devices, "mean", (), gradients)
    return Plan(job, Decided(groups if workers > 1 else ()))


def planned(base, windows, *, computation_s=1.0, network=MODEL, **options):
    """The plan for windows {parameter: (ready, needed)} in activation order."""
    return paper_plan(
        base,
        order=ActivationOrder(tuple(windows)),
        windows=TransferWindows(
            {name: Window(*window) for name, window in windows.items()}, computation_s, 0.3
        ),
        network=network,
        **options,
    )


# "first" is first in the network: its gradient is the last.
BASE = plain(
    gradient("first/weights", 4 * KB),
    gradient("first/bias", 1 * KB),
    gradient("middle/weights", 40_000 * KB),
    gradient("middle/bias", 2 * KB),
    gradient("last/weights", 30_000 * KB),
)
WINDOWS = {
    "last/weights": (0.4, 0.28),
    "middle/weights": (0.7, 0.1),
    "middle/bias": (0.71, 0.1),
    "first/weights": (0.8, 0.0),
    "first/bias": (0.81, 0.0),
}


def test_all_together():
    plan = planned(BASE, WINDOWS, edges=(Edge("a", "b"),))
    # "middle/weights" (0.202 s by ring) fits from 0.7 s on, "last/weights" (0.152 s) from 0.4 s
    # on. The small ones are ready while "middle/weights" is on its way.
    assert [group.name for group in plan.decision.groups] == ["group_0", "group_1", "group_2"]
    assert [group.members for group in plan.decision.groups] == [
        ("last/weights",),
        ("middle/weights",),
        ("middle/bias", "first/weights", "first/bias"),
    ]
    assert [group.pattern for group in plan.decision.groups] == ["ring", "ring", "shuffle"]
    assert [group.depth for group in plan.decision.groups] == [4, 4, 1]
    assert [group.deferred for group in plan.decision.groups] == [False, False, False]
    assert plan.decision.groups[2].reason == (
        "fits the backward pass: ready 0.8100 s, needed 0.0000 s, starts 0.9020 s; 3 small "
        "gradients joined while others are on the wire; shuffle is the fastest (0.0011 s)"
    )
    assert plan.decision.edges == (Edge("a", "b"),)
    assert plan.decision.gates == (
        Gate("group_1", "group_0"),
        Gate("group_2", "group_1"),
    )


def test_what_does_not_fit_is_deferred_and_named_first():
    later = {**WINDOWS, "last/weights": (0.65, 0.28)}
    plan = planned(BASE, later)
    # "middle/weights" goes from 0.7 to 0.902 s and "last/weights" would end at 1.004 s.
    assert [group.members for group in plan.decision.groups] == [
        ("last/weights",),
        ("middle/weights",),
        ("middle/bias", "first/weights", "first/bias"),
    ]
    assert [group.deferred for group in plan.decision.groups] == [True, False, False]
    assert plan.decision.gates == (
        Gate("group_1", "group_0"),
        Gate("group_2", "group_1"),
    )


def test_all_off_is_the_plain_plan():
    assert planned(BASE, WINDOWS, **OFF) == BASE
    edges = (Edge("a", "b"),)
    assert planned(BASE, WINDOWS, edges=edges, **OFF) == BASE.deciding(edges=edges)
    ring = planned(BASE, WINDOWS, **{**OFF, "pattern": "ring"})
    assert [group.name for group in ring.decision.groups] == [
        group.name for group in BASE.decision.groups
    ]
    assert {group.pattern for group in ring.decision.groups} == {"ring"}


def test_batching_alone_joins_and_changes_nothing_else():
    plan = planned(BASE, WINDOWS, **{**OFF, "batching": True})
    assert [len(group.members) for group in plan.decision.groups] == [1, 1, 3]
    assert {(group.pattern, group.depth, group.deferred) for group in plan.decision.groups} == {
        ("shuffle", 1, False)
    }
    assert plan.decision.gates == ()
    assert plan.decision.groups[0].reason == "sent when ready: 0.4000 s"


def test_scheduling_alone_defers_and_gates_single_gradients():
    later = {**WINDOWS, "last/weights": (0.65, 0.28)}
    plan = planned(BASE, later, **{**OFF, "scheduling": True}, network=MODEL_OF_RING)
    assert [group.members[0] for group in plan.decision.groups] == list(later)
    assert [group.deferred for group in plan.decision.groups] == [True, False, False, False, False]
    assert {group.depth for group in plan.decision.groups} == {1}
    assert plan.decision.gates == (
        Gate("group_1", "group_0"),
        Gate("group_2", "group_1"),
        Gate("group_3", "group_1"),
        Gate("group_4", "group_1"),
    )


def test_one_group_at_a_time():
    plan = planned(BASE, WINDOWS, **{**OFF, "scheduling": True}, in_flight_bytes=0)
    names = [group.name for group in plan.decision.groups]
    assert plan.decision.gates == tuple(Gate(*pair) for pair in zip(names[1:], names, strict=False))


MODEL_OF_RING = dataclasses.replace(MODEL, costs={"shuffle": MODEL.costs["ring"]})


def test_depth_alone_splits_large_ones():
    plan = planned(BASE, WINDOWS, **{**OFF, "adaptive_depth": True})
    assert [group.depth for group in plan.decision.groups] == [4, 4, 1, 1, 1]
    assert {group.pattern for group in plan.decision.groups} == {"shuffle"}


def test_pattern_alone():
    plan = planned(BASE, WINDOWS, **{**OFF, "pattern": "auto"})
    assert [group.pattern for group in plan.decision.groups] == ["ring", "ring", *["shuffle"] * 3]


def test_equal_groups_keep_the_shift_of_the_plain_plan():
    plan = planned(BASE, WINDOWS)
    shifts = {group.members[0]: group.shift for group in plan.decision.groups}
    assert shifts == {"last/weights": 1, "middle/weights": 2, "middle/bias": 0}
    assert {group.smallest_chunk_bytes for group in plan.decision.groups} == {SMALLEST_CHUNK_BYTES}


def test_gathered_rows_stay_as_they_are():
    base = plain(
        gradient("rows", 40_000 * KB, indices=TensorRef("i")),
        gradient("whole", 4 * KB, indices=TensorRef("j"), merge_duplicates=True),
        gradient("b", 4 * KB),
        gradient("c", 4 * KB),
        gathered=["rows"],
    )
    windows = dict.fromkeys(("b", "rows", "c", "whole"), (0.9, 0.3))
    plan = planned(base, windows, computation_s=0.9)
    gathered = next(group for group in plan.decision.groups if group.members == ("rows",))
    assert (gathered.pattern, gathered.depth, gathered.deferred) == ("all_gather", 1, False)
    assert "rows of 'rows' are gathered" in gathered.reason
    assert all(gathered.name not in (gate.group, gate.after) for gate in plan.decision.gates)
    assert ("whole",) in [group.members for group in plan.decision.groups]


def test_what_cannot_be_deferred_says_why():
    later = {**WINDOWS, "last/weights": (0.65, 0.28)}
    plan = planned(BASE, later, deferrable=lambda parameters: "a norm reads all gradients")
    assert not any(group.deferred for group in plan.decision.groups)
    assert any(
        "deferred (a norm reads all gradients)" in group.reason for group in plan.decision.groups
    )


def test_a_group_is_needed_when_an_update_that_moves_with_it_is_read():
    later = {**WINDOWS, "last/weights": (0.65, 0.28)}
    plan = planned(BASE, later, moved_updates=lambda parameters: ["first/weights", "slot"])
    last = next(group for group in plan.decision.groups if group.members == ("last/weights",))
    assert not last.deferred
    assert "fits neither pass" in last.reason


def test_empty_gradients_stay_alone_and_without_gates():
    base = plain(gradient("a", 40_000 * KB), gradient("empty", 0), gradient("b", 4 * KB))
    plan = planned(base, dict.fromkeys(("a", "empty", "b"), (0.5, 0.1)))
    assert ("empty",) in [group.members for group in plan.decision.groups]
    gated = {name for gate in plan.decision.gates for name in (gate.group, gate.after)}
    assert "a" in [g.members[0] for g in plan.decision.groups if g.name in gated]
    assert "empty" not in [g.members[0] for g in plan.decision.groups if g.name in gated]


def test_one_worker_aggregates_nothing():
    base = plain(gradient("w", 4 * KB), workers=1)
    assert planned(base, {"w": (0.5, 0.1)}) == base


def test_facts_that_do_not_cover_the_plan_are_refused():
    with pytest.raises(PlanError, match="no activation order of parameter 'first/bias'"):
        planned(BASE, {name: w for name, w in WINDOWS.items() if name != "first/bias"})
    with pytest.raises(PlanError, match="no cost of pattern 'halving_doubling'"):
        planned(BASE, WINDOWS, pattern="halving_doubling")


def test_facts_about_other_parameters_are_ignored():
    assert planned(BASE, {**WINDOWS, "untouched": (0.9, 0.0)}) == planned(BASE, WINDOWS)


FLAGS = [
    dict(zip(OFF, values, strict=True))
    for values in itertools.product(*[(True, False)] * 3, ("auto", "shuffle", "ring"))
]


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from(["float32", "float64"]), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(FLAGS),
    st.integers(2, 5),
)
def test_any_flags_give_a_plan_for_the_same_job_that_survives_json(gradients, flags, workers):
    names = [f"w{number}" for number in range(len(gradients))]
    base = plain(
        *(gradient(n, kb * KB, dtype) for n, (kb, dtype, _) in zip(names, gradients, strict=True)),
        workers=workers,
    )
    windows = {
        name: (0.003 + tenth / 1000, 0.003 * (1 - tenth / 10))
        for name, (_, _, tenth) in zip(names, gradients, strict=True)
    }
    ordered = dict(sorted(windows.items(), key=lambda item: item[1][0]))
    plan = planned(base, ordered, computation_s=0.013, **flags)
    assert plan == planned(base, ordered, computation_s=0.013, **flags)
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.deciding(groups=base.decision.groups, gates=()) == base
    if flags != OFF and flags != {**OFF, "pattern": "ring"}:
        assert all(group.reason for group in plan.decision.groups)
        assert [group.name for group in plan.decision.groups] == [
            f"group_{n}" for n in range(len(plan.decision.groups))
        ]
    assert flags["batching"] or all(len(group.members) == 1 for group in plan.decision.groups)
    assert flags["adaptive_depth"] or {group.depth for group in plan.decision.groups} == {1}
    assert flags["scheduling"] or not (
        plan.decision.gates or any(g.deferred for g in plan.decision.groups)
    )


def large_job(count=363):
    """Half of the gradients small, more communication than computation."""
    generator = random.Random(1)
    names = [f"layer{number}" for number in range(count)]
    sizes = [generator.choice([1, 4, 300, 2000]) * KB for _ in names]
    base = plain(*(gradient(name, size) for name, size in zip(names, sizes, strict=True)))
    windows = {
        name: (1 - 0.7 * number / count, 0.3 * number / count) for number, name in enumerate(names)
    }
    return base, dict(reversed(windows.items()))


def test_a_large_job_is_planned():
    base, windows = large_job()
    plan = planned(base, windows)
    assert any(group.deferred for group in plan.decision.groups)
    assert len(plan.decision.groups) < len(base.decision.groups)
