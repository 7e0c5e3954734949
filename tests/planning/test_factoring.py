"""Which gradients are sent by their factors."""

from __future__ import annotations

import dataclasses
import functools

import pytest

import caramel
from caramel.core.decision import FACTORS
from caramel.core.errors import PlanError
from caramel.core.facts import Factors
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef, in_group
from caramel.core.patterns import PATTERNS
from caramel.core.plan import Plan
from caramel.core.timeline import Span, Timeline
from caramel.core.util.json_records import from_json_value, to_json_value
from caramel.core.workload import JobOutline, Product
from caramel.models.plan_choice import OWN
from caramel.models.variants import UNFACTORED
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.from_profile import outline_of
from caramel.planning.options import Options
from caramel.planning.search.factoring import by_factors, factored, worthwhile_factors
from caramel.planning.search.grouping import Grouping
from caramel.planning.search.neighbours import Neighbours
from caramel.planning.search.search import search
from caramel.planning.search.split import worthwhile_parts
from caramel.planning.what_if.explain import QUICK, _longer, explain
from caramel.planning.what_if.scaling import scale
from caramel.planning.worth_a_trial import worth_a_trial
from caramel.profiling.ops import profile_steps
from caramel.runtime.control.trials import TrialSettings
from caramel.runtime.steps.factor_comparison import Unlike
from caramel.simulation.network_model import assumed_network
from tests.support.networks import deep, network, slow_facts, slow_processors, train_steps, wide
from tests.support.search_jobs import MB, layered, plain_of
from tests.support.simulations import hosts

RATE = 100 * MB
OPTIONS = Options(budget_tasks=8_000)


def anything(parameters):
    return None


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    """Plans, and what a change would bring, are searched with a small budget."""
    monkeypatch.setattr("caramel.planning.what_if.explain.QUICK", Options(budget_tasks=4_000))
    quick = functools.partial(Options, budget_tasks=20_000)
    monkeypatch.setattr("caramel.models.allreduce.Options", quick)


def outlook_of(sizes, factor_bytes, again_s, *, workers=2, cores=1, rate=RATE):
    """A job of layers with gradients of so many bytes, each with factors of so many; None for a
    gradient that has none."""
    plain = plain_of(sizes, workers)
    products, gradients = {}, []
    for gradient, size, seconds in zip(plain.job.gradients, factor_bytes, again_s, strict=True):
        name, spec = gradient.parameter, TensorSpec("float32", (None,))
        factors = Factors((TensorRef(f"{name}/dy"),), (spec,), (f"{name}/grad",))
        gradients.append(dataclasses.replace(gradient, factors=factors if size else None))
        if size:
            products[name] = Product(size, seconds)
    job = dataclasses.replace(plain.job, gradients=tuple(gradients))
    plain = Plan(job, plain.decision)
    work = dataclasses.replace(layered([0.01] * len(sizes)), products=products)
    hardware = hosts(workers, rate, cores=cores, processor_s_per_byte=1e-9)
    return Outlook(plain, assumed_network(workers, rate, 1e-4), hardware, work, work)


def chosen(outlook):
    return {g.members[0] for g in outlook.plain.decision.groups if g.pattern == FACTORS}


# Worth ------------------------------------------------------------------------------------------


def test_what_saves_most_for_what_it_costs_comes_first():
    outlook = outlook_of(
        [8 * MB, 8 * MB, 8 * MB, 8 * MB, MB],
        [MB, 4 * MB, MB, None, 8 * MB],  # the last one's factors are more than it is
        [0.010, 0.010, 0.002, 0.0, 0.0],
    )
    assert worthwhile_factors(outlook) == ["p2", "p0", "p1"]


def test_what_costs_more_than_it_saves_is_left_out():
    """8 MB in 0.08 s of the wire, factors in 0.01 s."""
    for again_s, expected in ((0.06, ["p0"]), (0.08, [])):
        assert worthwhile_factors(outlook_of([8 * MB], [MB], [again_s])) == expected


def test_more_workers_send_and_compute_more_of_it():
    """Of 8 MB each of N workers sends 2 (N - 1) / N, of factors (N - 1) times 1 MB."""
    for workers, expected in ((2, ["p0"]), (8, ["p0"]), (16, []), (32, [])):
        outlook = outlook_of([8 * MB], [MB], [0.0], workers=workers)
        assert worthwhile_factors(outlook) == expected, workers


# Choice -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("rate", [20 * MB, RATE, 1000 * MB])
def test_as_many_are_factored_as_make_the_step_the_shortest(workers, rate):
    """Every number of factored gradients is searched with three times the budget, to compare."""
    sizes = [4 * MB, 8 * MB, 2 * MB, 6 * MB, 16 * MB, MB]
    again_s = [0.004, 0.012, 0.004, 0.012, 0.002, 0.008]
    outlook = outlook_of(sizes, [MB] * 5 + [None], again_s, workers=workers, rate=rate)
    order = worthwhile_factors(outlook)

    @functools.cache
    def best_s(factors):
        own = dataclasses.replace(outlook, plain=by_factors(outlook.plain, factors))
        return search(own, [], deferrable=anything, options=OPTIONS).best.step_s

    least_s = min(best_s(tuple(order[:count])) for count in range(len(order) + 1))
    found, _ = factored(outlook, anything, dataclasses.replace(OPTIONS, budget_tasks=64_000))
    assert best_s(tuple(sorted(chosen(found), key=order.index))) <= 1.02 * least_s


def test_a_search_leaves_factored_gradients_alone_and_in_their_step():
    outlook = outlook_of([8 * MB, MB, MB, 8 * MB], [MB, None, None, MB], [0.001] * 4)
    own = dataclasses.replace(outlook, plain=by_factors(outlook.plain, ["p0", "p3"]))
    found = search(own, [], deferrable=anything, options=OPTIONS)
    for scored in (found.best, *found.others):
        for group in scored.candidate.groups:
            if group.pattern == FACTORS:
                assert group.members in (("p0",), ("p3",))
                assert not group.deferred
            else:
                assert {"p0", "p3"}.isdisjoint(group.members)


def test_no_step_is_predicted_to_be_shorter_than_the_least_of_what_is_sent():
    outlook = outlook_of([8 * MB, MB], [2 * MB, None], [0.001, 0.0])
    own = dataclasses.replace(outlook, plain=by_factors(outlook.plain, ["p0"]))
    assert own.least_s == pytest.approx(max(0.06 + 0.001, (2 * MB + MB) / RATE))
    found = search(own, [], deferrable=anything, options=OPTIONS)
    assert found.best.step_s >= own.least_s


def test_plans_with_other_factors_are_improved_as_they_are():
    """A start whose factors are not those of the plain plan, as a curve's next point has it."""
    outlook = outlook_of([4 * MB, MB, MB, 4 * MB], [MB, None, None, MB], [0.001] * 4)
    plan = by_factors(outlook.plain, ["p0", "p3"])
    start = Candidate("start", plan.decision.groups, ordered=False)
    found = search(outlook, [start], deferrable=anything, options=OPTIONS)
    candidates = [scored.candidate for scored in (found.best, *found.others)]
    factored_ones = [g for c in candidates for g in c.groups if g.pattern == FACTORS]
    assert factored_ones
    assert all(len(group.members) == 1 and not group.deferred for group in factored_ones)
    neighbours = Neighbours(Grouping(outlook, (), anything, OPTIONS), OPTIONS, PATTERNS)
    for number in range(len(start.groups)):
        for change in neighbours.changes:
            for groups in change(list(start.groups), number):
                for group in groups:
                    assert group.pattern != FACTORS or len(group.members) == 1


def test_factored_gradients_are_not_split():
    plain = outlook_of([40 * MB, 8 * MB, 8 * MB], [MB, None, None], [0.001] * 3).plain
    split = {part.parameter for parts in worthwhile_parts(plain, 100_000) for part in parts}
    assert split == {"p0", "p1", "p2"}
    parts = worthwhile_parts(by_factors(plain, ["p0"]), 100_000)
    assert {part.parameter for own in parts for part in own} == {"p1", "p2"}


# What would help --------------------------------------------------------------------------------


def test_more_examples_have_larger_factors():
    workload = outlook_of([8 * MB], [MB], [0.002]).free
    longer = _longer(workload, 4)
    assert longer.products == {"p0": Product(4 * MB, 0.008)}


def test_what_would_help_may_go_without_factors():
    """On a fast network, products cost more than they save."""
    outlook = outlook_of([8 * MB, 8 * MB], [MB, MB], [0.03, 0.03])
    plan = by_factors(outlook.plain, ["p0", "p1"])
    explained = explain(plan, outlook, job="train", planner="search")
    ten = next(each for each in explained.what_if if each.change == "ten times the bandwidth")
    faster = dataclasses.replace(outlook, hardware=outlook.hardware.with_rates(10))
    without = search(faster, [], deferrable=anything, options=QUICK).best.step_s
    assert ten.step_s <= 1.01 * without


# Models -----------------------------------------------------------------------------------------


def job():
    return network("momentum", model=wide, batch=5, number=5)


def test_a_model_sends_factors_where_a_processor_computes():
    model = caramel.ARModel(job().context(), 2, analyzers=slow_processors(2))
    by_them = [group.members for group in model.plan.decision.groups if group.pattern == FACTORS]
    assert by_them == [("w1",)]  # 6 inputs and 700 outputs; of w2, 700 and 3, they are larger
    decision = model.decision
    assert all(group.pattern != FACTORS for group in decision.plain.decision.groups)
    assert decision.found.best.step_s < decision.found.plain.step_s
    predicted = decision.outlook.predict(Candidate.of(decision.plain, "plain")).step_s
    assert decision.found.plain.step_s == predicted


def test_a_plan_without_factors_is_tried_too():
    job = network("momentum", model=deep, batch=5, number=5)
    decision = caramel.ARModel(job.context(), 2, analyzers=slow_processors(2)).decision
    assert any(group.pattern == FACTORS for group in decision.plan.decision.groups)
    unfactored = [
        plan
        for plan in worth_a_trial(decision).values()
        if all(group.pattern != FACTORS for group in plan.decision.groups)
    ]
    assert decision.plain in unfactored
    assert any(plan.decision.groups != decision.plain.decision.groups for plan in unfactored)


@pytest.mark.parametrize(
    "options", [{"factors": False}, {"pattern": "shuffle"}, {"planner": "paper"}]
)
def test_a_model_sends_no_factors_if_something_else_is_asked_for(options):
    model = caramel.ARModel(job().context(), 2, analyzers=slow_processors(2), **options)
    assert all(group.pattern != FACTORS for group in model.plan.decision.groups)


def test_a_model_sends_no_factors_where_an_accelerator_may_compute():
    model = caramel.ARModel(job().context(), 2, analyzers=slow_facts(2))
    assert all(group.pattern != FACTORS for group in model.plan.decision.groups)


def test_factors_are_explained():
    model = caramel.ARModel(job().context(), 2, analyzers=slow_processors(2))
    explained = model.explain()
    group = next(each for each in explained.groups if each.members == ("w1",))
    assert (group.pattern, group.size_bytes) == (FACTORS, 8 * 5 * (6 + 700))
    assert explained.step_s < explained.plain_step_s
    sent_bytes = 8 * (700 + 700 * 3 + 3) + group.size_bytes  # what is summed, and factors of w1
    rate = model.decision.outlook.hardware.bytes_per_s
    assert explained.wire_limit_s == pytest.approx(sent_bytes / rate)


def test_a_factored_group_has_arrived_when_what_it_stands_for_is_added_up():
    """Both as predicted and as measured; else products would be taken for misses."""
    model = caramel.ARModel(job().context(), 2, analyzers=slow_processors(2))
    (by_them,) = (group.name for group in model.plan.factored)
    summed = next(group.name for group in model.plan.decision.groups if group.is_summed)
    spans = (
        Span("receive", in_group(by_them, 1, "factor", "0"), 3.0, 4.0),
        Span("reduce", in_group(by_them, 0, "product", "1", "0"), 4.0, 4.5),
        Span("reduce", in_group(summed, 0, "sum", "1"), 8.0, 9.0),
        Span("receive", in_group(summed, 1, "chunks"), 7.0, 7.5),
    )
    explanation = model.explain(Timeline(spans, "own"))
    groups = {group.name: group for group in explanation.groups}
    assert groups[by_them].measured_end_s == pytest.approx(1.5)
    assert groups[summed].measured_end_s == pytest.approx(4.5)
    own = [span for span in explanation.predicted.spans if span.name == by_them]
    assert {span.resource for span in own} == {"send", "receive", "reduce"}
    assert groups[by_them].predicted_end_s == max(span.end_s for span in own)


def test_a_given_plan_whose_factors_have_an_unknown_size_is_explained():
    open_batch = network("momentum", model=wide)  # placeholders take any number of examples
    plain = caramel.ARModel(open_batch.context(), 2, pattern="shuffle").plan
    groups = [
        dataclasses.replace(group, pattern=FACTORS) if group.members == ("w1",) else group
        for group in plain.decision.groups
    ]
    plan = plain.deciding(groups=tuple(groups))
    facts = slow_processors(2)
    model = caramel.ARModel(open_batch.context(), 2, plan=plan, analyzers=facts)
    explained = model.explain()
    assert {g.members: g.size_bytes for g in explained.groups}["w1",] == 0
    chosen_itself = caramel.ARModel(open_batch.context(), 2, analyzers=facts).plan
    assert all(group.pattern != FACTORS for group in chosen_itself.decision.groups)


def test_a_model_on_accelerators_sends_no_factors_whatever_was_timed():
    devices = [f"/job:worker/task:{task}/device:GPU:0" for task in range(2)]
    facts = slow_processors(2)
    model = caramel.ARModel(job().context(), 2, device_list=devices, analyzers=facts)
    assert all(group.pattern != FACTORS for group in model.plan.decision.groups)


def test_sizes_of_factors_are_traced():
    """40 examples of 6, 700 and 3 numbers, of which the first are fed."""
    traced = network("momentum", model=wide)
    context = traced.context()
    table = profile_steps(context, feed=traced.feed, steps=2, use_cache=False)
    assert table.on_processor
    plan = caramel.ARModel(context, 2).plan
    sizes = {
        name: [table.traced_bytes[str(t)] for t in plan.gradient(name).factors.tensors]
        for name in ("w1", "w2")
    }
    assert sizes == {"w1": [8 * 40 * 6, 8 * 40 * 700], "w2": [8 * 40 * 700, 8 * 40 * 3]}


def test_curves_of_a_job_on_processors_know_factors():
    """Of one worker's profile, kept as JSON; the network is what bounds it."""
    context = network("momentum", model=deep, batch=5, number=5).context()
    timing = slow_processors(2)[0](context.op_graph)
    own = outline_of(context.op_graph, context.job, timing)
    outline = from_json_value(JobOutline, to_json_value(own))
    assert outline == own
    assert set(outline.free.products) == {"w", "w2", "w3"}
    hardware = hosts(2, 1e6, cores=1)
    by_them, plan = scale(outline, hardware, alone=hardware.hosts[0])
    on_others = dataclasses.replace(outline, on_processor=False)
    without, _ = scale(on_others, hardware, alone=hardware.hosts[0])
    assert any(group.pattern == FACTORS for group in plan.groups)
    assert by_them.planned_s < 0.5 * without.planned_s  # 0.8 MB of w2 against 18 KB


# Processors that turn out to differ --------------------------------------------------------------


def test_the_plans_without_factors_take_turns():
    """The watch for drift goes on, and neither this session nor a later one sends factors again."""
    job = network("momentum", model=deep, batch=5, number=10)
    model = caramel.ARModel(job.context(), 2, analyzers=slow_processors(2))
    assert model.plan.factored
    unlike = Unlike(1, "w1")
    short = TrialSettings(rounds=1, steps=1, skipped=1)
    with model.session(trials=short) as session:
        train_steps(session, job, 1)
        session._running.controllers.active.leave_factors(unlike)
        tried = {plan.name for plan in session.metrics().trials.plans}
        train_steps(session, job, 2 * len(tried) + 1)
        metrics = session.metrics()
        expected_s = metrics.expected_s
        with pytest.raises(PlanError, match="plan 'own' sends factors, from which the workers"):
            session.use("own")
        with pytest.raises(PlanError, match="all these plans send factors"):
            session.try_plans(plans=["own"])
        session.try_plans()
        again = {plan.name for plan in session.metrics().trials.plans}
    assert "plain" in tried
    assert len(tried) > 1
    assert tried <= again
    assert not any(model.variants.plan(name).factored for name in again)
    assert not any(model.variants.plan(name).factored for name in tried)
    assert metrics.trials.is_over
    (median_s,) = (p.median_s for p in metrics.trials.plans if p.name == metrics.plan)
    assert expected_s == median_s
    for trials, plan in (("auto", metrics.plan), (None, model._step.plans.own)):
        with model.session(trials=trials) as session:
            train_steps(session, job, 1)
            assert session.metrics().plan == plan
        assert not model.variants.plan(plan).factored


def test_where_nothing_was_tried_a_plan_like_the_first_goes_on_without_factors():
    job = network("momentum", model=deep, batch=5, number=10)
    model = caramel.ARModel(job.context(), 2, analyzers=slow_processors(2))
    decided = [(group.members, group.deferred) for group in model.plan.decision.groups]
    with model.session(trials=None) as session:
        train_steps(session, job, 2)
        session._running.controllers.active.leave_factors(Unlike(1, "w1"))
        train_steps(session, job, 2)
        name = session.metrics().plan
    plan = model.variants.plan(name)
    assert name == UNFACTORED
    assert not plan.factored
    assert [(group.members, group.deferred) for group in plan.decision.groups] == decided
    assert not any("factors are sent" in group.reason for group in plan.decision.groups)


def test_a_session_without_trials_tries_what_is_left():
    """One that begins with what proved the fastest in an earlier session, say."""
    job = network("momentum", model=deep, batch=5, number=10)
    model = caramel.ARModel(job.context(), 2, analyzers=slow_processors(2))
    model._step.plans.keep(OWN)
    assert model._step.plans.tried() == [OWN]
    with model.session() as session:
        train_steps(session, job, 1)
        session._running.controllers.active.leave_factors(Unlike(1, "w1"))
        trials = session.metrics().trials
        train_steps(session, job, 1)
    names = [plan.name for plan in trials.plans]
    assert len(names) > 1
    assert "plain" in names
    assert not any(model.variants.plan(name).factored for name in names)
    assert model._step.plans.tried() == names  # it was closed before one was chosen
