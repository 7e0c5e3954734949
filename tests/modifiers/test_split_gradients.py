"""Parts of one gradient in several groups, deferred or not: the same bits, copied once."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import re
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import caramel
from caramel.core.decision import Gate, Part
from caramel.core.names import in_group, in_replica, joined, kept_piece, split, whole
from caramel.core.patterns import PATTERNS
from caramel.core.plan import Plan
from caramel.core.time_facts import NetworkModel
from caramel.planning.choose import choose
from caramel.planning.options import Options
from caramel.planning.search.split import split_gradients, with_parts
from caramel.report.page import html_page
from caramel.report.plan_table import show_plan
from caramel.simulation.network_model import assumed_network
from tests.support.aggregation import aggregated_graph, assert_same_on_all_workers, random_values
from tests.support.aggregation import run as run_aggregation
from tests.support.deferring import averaged, with_norm
from tests.support.embeddings import embedding
from tests.support.networks import (
    Network,
    in_turns,
    network,
    partly,
    relative_error,
    replicas_of,
    run_on_one_device,
    tf,
    wide,
)
from tests.support.pending_updates import (
    assert_equal,
    assert_errors_lose_no_updates,
    assert_fetches_are_of_their_step,
    assert_saving_loses_nothing,
)
from tests.support.plans import make_plan
from tests.support.slow_steps import every_op_takes_a_millisecond
from tests.support.splitting import ALL, CHOICES, NONE, SOME, split_plan

# Aggregation -------------------------------------------------------------------------------------


def test_the_parts_of_a_gradient_are_joined_once():
    plan = split_gradients(make_plan(2, [(30, 40)], "float32", pattern="shuffle"), 1700)
    assert [plan.elements(group) for group in plan.decision.groups] == [400, 400, 400]
    nodes = {node.name: node for node in aggregated_graph(plan).node}
    for worker in range(2):
        assert nodes[split(worker, "v0")].op == "SplitV"
        joins = [n for n in nodes if f"worker_{worker}" in n and nodes[n].op == "ConcatV2"]
        assert joins == [joined(worker, "v0")]
        chunks = [
            text
            for number in range(3)
            for own in [in_group(f"group_0_{number}", worker, "aggregated", "0")]
            for text in (own, f"{own}:1")
        ]
        assert list(nodes[joins[0]].input[:-1]) == chunks
        assert list(nodes[in_replica(worker, "read0")].input) == [whole(worker, "v0")]


def test_a_part_in_many_chunks_is_joined_before():
    plan = split_gradients(make_plan(3, [(3000,)], "float32", pattern="shuffle", depth=4), 6000)
    nodes = {node.name: node for node in aggregated_graph(plan).node}
    assert [len(plan.chunks(group)) for group in plan.decision.groups] == [12, 12]
    assert len(nodes[joined(0, "v0")].input) == 2 + 1


@pytest.mark.parametrize(
    ("kind", "setting"),
    in_turns(
        [
            *itertools.product(["float16", "bfloat16", "float32", "float64"], ["mean", "sum"]),
            ("int32", "sum"),
        ],
        [(2, 1), (3, 2), (3, 4)],
    ),
)
def test_parts_give_the_bits_of_the_whole(kind, setting):
    (dtype, reduction), (workers, depth) = kind, setting
    options = {"reduction": reduction, "pattern": "shuffle", "depth": depth}
    plain = make_plan(workers, [(40, 50), (16,), ()], dtype, groups=[[0], [1], [2]], **options)
    plan = split_gradients(plain, 1500)
    assert len(plan.decision.groups) > 3
    values = random_values(plan)
    results = run_aggregation(plan, values)
    assert_same_on_all_workers(results)
    for own, expected in zip(results[0], run_aggregation(plain, values)[0], strict=True):
        assert own.tobytes() == expected.tobytes()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_parts_may_be_joined_with_others_in_any_pattern(pattern):
    plain = make_plan(3, [(40, 50), (70,)], "float64", groups=[[0], [1]], pattern=pattern)
    parts = with_parts(plain, [Part("v0", 0, 8), Part("v0", 8, 1992), Part("v0", 1992, 2000)])
    first, second, third, other = parts.decision.groups
    groups = (
        second,
        dataclasses.replace(first, members=(*first.members, *other.members, *third.members)),
    )
    plan = parts.deciding(groups=groups)
    values = random_values(plan)
    results = run_aggregation(plan, values)
    assert_same_on_all_workers(results)
    for number, value in enumerate(results[0]):
        np.testing.assert_allclose(value, sum(own[number] for own in values), rtol=1e-13)


# Training ----------------------------------------------------------------------------------------


STEPS = 4


def train(model, feed):
    with model.session() as session:
        initial = session.variables()
        losses = [session.step(feed) for _ in range(STEPS)]
        return initial, losses, session.variables(), replicas_of(session)


class Plainly(NamedTuple):
    """A job, and what training it with the plain plan gives."""

    job: Network
    context: caramel.Context
    plan: Plan
    losses: list[float]
    values: dict[str, Any]


@functools.cache
def plainly(workers, make, *given, **options):
    """Train what `make` makes of the arguments."""
    job = make(*given, **options)
    context = job.context()
    model = caramel.ARModel(context, workers, pattern="shuffle")
    _, losses, values, _ = train(model, job.feed)
    return Plainly(job, context, model.plan, losses, values)


def assert_same(plain, plan):
    """Training with a plan gives the same bits as training with the plain one."""
    model = caramel.ARModel(plain.context, plan.workers, plan=plan, check=True)
    assert model.plan.decision.parts == plan.decision.parts
    initial, losses, own, replicas = train(model, plain.job.feed)
    assert losses == plain.losses
    for each in (own, *replicas):
        assert_equal(each, plain.values)
    return model, initial, own


def assert_same_in_parts(plain, choice, **options):
    """The same with split gradients."""
    model, initial, own = assert_same(plain, split_plan(plain.plan, choice, **options))
    assert bool(model.plan.consequences.deferral.moved) == (choice != NONE)
    return initial, own


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    ("optimizer", "workers"),
    partly(pytest.mark.onednn, [("adam", 3), ("gradient_descent", 2), ("momentum", 3)]),
)
def test_every_optimizer_gives_the_same_bits(optimizer, workers, choice):
    plain = plainly(workers, network, optimizer, model=wide, dtype=tf.float32)
    assert_same_in_parts(plain, choice)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("process", ["clip_by_norm", "clip_by_global_norm"])
def test_clipping_gives_the_same_bits(process, choice):
    job = {"model": wide, "dtype": tf.float32, "decayed_loss": True}
    plain = plainly(2, network, "momentum", process, **job)
    assert_same_in_parts(plain, choice, depth=2, gated=True)


@pytest.mark.parametrize("choice", CHOICES)
def test_averages_of_the_weights_are_the_same(choice):
    assert_same_in_parts(plainly(2, averaged), choice, most_bytes=64)


@pytest.mark.parametrize("choice", CHOICES)
def test_training_with_parts_is_that_of_one_device(choice):
    plain = plainly(3, network, "adam", "clip_by_norm", model=wide)
    initial, values = assert_same_in_parts(plain, choice, depth=2, gated=True)
    expected = run_on_one_device(plain.job, initial, steps=STEPS)
    assert relative_error(values, expected.values) < 1e-12


def test_sparse_gradients_stand_beside_parts():
    job = embedding("adam")
    context = job.context()
    plan = with_parts(caramel.ARModel(context, 2).plan, [Part("w", 0, 8), Part("w", 8, 12)])
    groups = (
        dataclasses.replace(plan.decision.groups[0], deferred=True),
        *plan.decision.groups[1:],
    )
    plan = plan.deciding(groups=groups)
    initial, _, values, _ = train(caramel.ARModel(context, 2, plan=plan, check=True), job.feed)
    expected = run_on_one_device(job, initial, steps=STEPS)
    assert relative_error(values, expected.values) < 1e-12


def test_only_pieces_of_parts_that_are_aggregated_in_their_step_are_kept():
    job = network("momentum", model=wide)
    context = job.context()
    plain = caramel.ARModel(context, 2, pattern="shuffle").plan
    plan = split_gradients(plain, 20_000)
    assert [part.name for part in plan.decision.parts] == ["w1[0:2104]", "w1[2104:4200]"]
    first, second, *others = plan.decision.groups
    groups = (dataclasses.replace(first, deferred=True), second, *others)
    plan = plan.deciding(groups=groups)
    model = caramel.ARModel(context, 2, plan=plan, check=True)
    names = {op.name for op in model.graph.get_operations()}
    for worker in range(2):
        kept = [kept_piece(second.name, worker, 0, number) for number in range(2)]
        assert names.issuperset(kept)
        reads = [i.op.name for i in model.graph.get_operation_by_name(joined(worker, "w1")).inputs]
        own = in_group(first.name, worker, "aggregated", "0")
        assert reads[:4] == [own, own, *(f"{name}/read" for name in kept)]
    assert not any("kept_sum" in name and first.name in name for name in names)


# Sessions ----------------------------------------------------------------------------------------


@pytest.fixture(params=[SOME, ALL], scope="module")
def momentum(request):
    """A job whose gradients are split, with parts of the update pending after each step."""
    job = network("momentum", model=wide)
    context = job.context()
    plain = caramel.ARModel(context, 2)
    plan = split_plan(plain.plan, request.param, gated=True)
    return job, plain, caramel.ARModel(context, 2, plan=plan, check=True)


def test_saving_in_the_middle_loses_nothing(momentum, tmp_path):
    assert_saving_loses_nothing(*momentum, tmp_path)


def test_fetches_of_raw_gradients_are_the_aggregated_wholes(momentum, tmp_path):
    assert_fetches_are_of_their_step(*momentum, tmp_path)


@pytest.mark.parametrize("choice", CHOICES)
def test_what_is_computed_beside_the_step_sees_the_wholes(choice, tmp_path):
    job = with_norm()
    plain = caramel.ARModel(job.context(), 2)
    plan = split_plan(plain.plan, choice, most_bytes=64)
    model = caramel.ARModel(job.context(), 2, plan=plan, check=True)
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for _ in range(3):
            assert session.step(job.feed, ["norm:0"]) == expected.step(job.feed, ["norm:0"])
            assert session.step(job.feed) == expected.step(job.feed)
        assert_equal(session.variables(), expected.variables())


def test_an_error_in_a_step_does_not_lose_the_updates_of_the_one_before(momentum, tmp_path):
    job, plain, model = momentum
    bad = {"y:0": np.full_like(job.feed["y:0"], 99)}
    assert_errors_lose_no_updates(job, bad, plain, model, tmp_path, told="label")


def test_plans_with_and_without_parts_take_turns(tmp_path):
    job = network("adam", model=wide)
    context = job.context()
    plain, model = caramel.ARModel(context, 2), caramel.ARModel(context, 2)
    for choice in CHOICES:
        model.add_variant(split_plan(plain.plan, choice, depth=2), choice)
    with plain.session() as expected, model.session() as session:
        session.restore(expected.save(tmp_path / "initial"))
        for number in range(12):
            session.use(list(model.variants)[number % 4 if number < 8 else number // 2 % 4])
            assert session.step(job.feed) == expected.step(job.feed)
        assert_equal(session.variables(), expected.variables())


# Planning ----------------------------------------------------------------------------------------


def network_model() -> NetworkModel:
    """It takes about as long to aggregate the gradients of `wide` as to compute them."""
    return assumed_network(2, 1e6, 5e-5)


@pytest.fixture(scope="module")
def planned():
    """A job in which one gradient dominates, and its model as it is planned."""
    job = network("momentum", model=wide, dtype=tf.float32)
    facts = [every_op_takes_a_millisecond, network_model]
    return job, caramel.ARModel(job.context(), 2, analyzers=facts, pattern="shuffle", check=True)


@pytest.mark.onednn
def test_a_dominant_gradient_is_split_and_deferred_in_part(planned):
    job, model = planned
    found = model.decision.found
    parts = {part.name for part in model.plan.decision.parts if part.parameter == "w1"}
    sides = [g.deferred for g in model.plan.decision.groups if not parts.isdisjoint(g.members)]
    assert 0 < sum(sides) < len(sides) == len(parts)
    whole = min(each.step_s for each in found.others if not each.candidate.parts)
    assert found.best.step_s < 0.98 * whole < found.plain.step_s
    plain = caramel.ARModel(job.context(), 2, pattern="shuffle")
    with plain.session() as expected, model.session(trials=None) as session:
        for _ in range(5):
            assert session.step(job.feed) == expected.step(job.feed)
        assert_equal(session.variables(), expected.variables())


def test_the_next_run_takes_over_a_plan_with_parts(planned):
    _, model = planned
    kept = Plan.from_json(model.plan.to_json())
    step = model._step._step
    analysis = step.known.facts.analysis
    again = choose(step.plain, analysis, Options(pattern="shuffle"), kept=kept)
    assert again.plan.decision == model.plan.decision
    assert again.found is None


def test_a_plan_with_parts_is_shown_and_explained(planned, monkeypatch):
    monkeypatch.setattr("caramel.planning.what_if.explain.QUICK", Options(budget_tasks=2_000))
    _, model = planned
    out = io.StringIO()
    show_plan(model.plan, model.windows, Console(file=out, width=250))
    text = out.getvalue()
    count = len(model.plan.decision.parts)
    split = len({part.parameter for part in model.plan.decision.parts})
    assert re.search(r"4 gradients in \d+ groups, \d+ deferred", text)
    assert f"{split} of the gradients in {count} parts" in text
    assert sum(" part " in line for line in text.splitlines()) == count
    explanation = model.explain()
    assert explanation.step_s == model.decision.found.best.step_s
    assert explanation.parameters == 4
    members = [name for group in explanation.groups for name in group.members]
    assert sorted(members) == sorted(
        n for group in model.plan.decision.groups for n in group.members
    )
    assert "w1[0:" in html_page(explanation)


# Any plan ----------------------------------------------------------------------------------------


@st.composite
def plans(draw, plan):
    """Gradients cut anywhere; the parts in random groups, depths, patterns of turns and gates."""
    parts = []
    for gradient in plan.job.gradients:
        unit = 64 // (gradient.spec.bytes // gradient.elements)
        inner = list(range(unit, gradient.elements, unit))
        cuts = sorted(draw(st.sets(st.sampled_from(inner), max_size=4))) if inner else []
        bounds = [0, *cuts, gradient.elements]
        if cuts:
            parts += [Part(gradient.parameter, *pair) for pair in itertools.pairwise(bounds)]
    plan = with_parts(plan, parts)
    members = draw(st.permutations([group.members[0] for group in plan.decision.groups]))
    groups = []
    while members:
        size = draw(st.integers(1, min(3, len(members))))
        groups.append(
            dataclasses.replace(
                plan.decision.groups[0],
                name=f"group_{len(groups)}",
                members=tuple(members[:size]),
                depth=draw(st.integers(1, 4)),
                shift=draw(st.integers(0, plan.workers - 1)),
                deferred=draw(st.booleans()),
            )
        )
        members = members[size:]
    gates = [
        Gate(later.name, earlier.name)
        for position, later in enumerate(groups)
        for earlier in groups[:position]
        if (earlier.deferred or not later.deferred) and draw(st.booleans())
    ]
    return plan.deciding(groups=tuple(groups), gates=tuple(gates))


@settings(max_examples=8, derandomize=True)
@given(data=st.data(), workers=st.integers(2, 3), process=st.sampled_from(["unchanged", "decay"]))
def test_any_parts_in_any_groups_give_the_same_bits(data, workers, process):
    plain = plainly(workers, network, "adam", process, model=wide, dtype=tf.float32)
    assert_same(plain, data.draw(plans(plain.plan)))
