"""The front of training with parameter servers: plans of one's own, and what cannot be."""

from __future__ import annotations

import dataclasses

import pytest

import caramel
from caramel.core.decision import Edge, Part, Pull
from caramel.core.errors import ClusterError, FeedError, PlanError, ProfileError
from caramel.core.plan import Plan
from caramel.core.profile import Profile
from caramel.core.time_facts import TimingTable
from caramel.core.util.fingerprint import graph_hash, this_machine
from caramel.planning.serving.observed_orders import sent_gradients
from caramel.simulation.network_model import assumed_network
from tests.support.control_flow import network as network_of
from tests.support.networks import network, perceptron, wide
from tests.support.serving import assert_same_run, gradients_in_order, run_model, served


@pytest.fixture(scope="module")
def job():
    return network("adam", model=wide)


@pytest.fixture(scope="module")
def plan(job) -> Plan:
    return served(job, 2, 2).plan


# Options -----------------------------------------------------------------------------------------


def test_no_servers_are_refused(job):
    with pytest.raises(ClusterError, match=r"2 workers and no parameter server, .*job ps"):
        caramel.PSModel(job.context(), 2)
    with pytest.raises(ClusterError, match="parameter server"):
        caramel.PSModel(job.context(), 2, 0)


def test_more_servers_than_parameters_are_refused():
    with pytest.raises(
        PlanError,
        match=r"6 parameter servers are too many: /job:ps/task:4, /job:ps/task:5 would have no "
        r"parameter to serve, since there are 4",
    ):
        served(network("adam"), 2, 6)  # of too few rows to be split


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ordering": "fifo"}, r"ordering must be one of 'search', .* or None, not 'fifo'"),
        ({"mode": "evaluation"}, "mode must be 'training' or 'inference', not 'evaluation'"),
        (
            {"in_flight_bytes": -5},
            "in_flight_bytes must be a whole number of bytes, at least 0, or",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(job, options, message):
    with pytest.raises(PlanError, match=message):
        served(job, 2, 2, **options)


def test_a_context_is_wanted():
    with pytest.raises(PlanError, match=r"PSModel takes a caramel.Context, not str"):
        caramel.PSModel("graph", 2, 1)


def test_without_times_the_order_is_tics_and_says_so(job):
    model = served(job, 2, 2, ordering="search")
    assert model.decision.source == "by TIC, because nothing is known of times"
    assert served(job, 2, 2).decision.source == "unordered"


def test_an_order_is_explained(job):
    model = served(job, 2, 2, ordering="tic", in_flight_bytes=0)
    explained = model.explain()
    assert [each.variable for each in explained.transfers] == [
        pull.variable for pull in model.plan.decision.pulls
    ]
    assert explained.step_s is None  # nothing was measured
    for text in ("by TIC", "/job:ps/task:1", "needs it", "nothing is known of times yet"):
        assert text in str(explained)
    with pytest.raises(PlanError, match="'explain_order' explains what workers receive"):
        model.steps[0].explain()


def test_metrics_tell_of_the_orders_of_traced_steps(job):
    """What `orders` measures of what `Session.trace` returned, and of what a job traces itself."""
    model = served(job, 2, 2, ordering="tic", in_flight_bytes=0)
    with model.session(trials=None) as session:
        loss, own = session.step(job.feed, [job.loss, caramel.per_worker(job.loss)])
        assert loss == pytest.approx(sum(own) / 2, rel=1e-12)
        assert own[0] != own[1]
        with pytest.raises(FeedError, match="with parameter servers there is one for all"):
            session.step(job.feed, caramel.per_worker("w1:0"))
        assert session.metrics().orders is None
        timelines = session.trace(2, job.feed)
        orders = session.metrics().orders
        assert orders == model.orders(timelines)
        assert (orders.plan, orders.steps) == (session.metrics().plan, 2)
        assert orders.out_of_place == 0.0
        assert 0.0 < orders.lower_s <= orders.upper_s
        session.step(job.feed)
        assert session.metrics().orders is orders
    assert all(text in str(model.explain(timelines)) for text in ("measured in 2 steps", "rho"))
    planning = served(job, 2, 2, ordering="search")
    replanning = caramel.ReplanSettings(first_after=1, traced=2, least_step_s=0.0, payback=0.0)
    with planning.session(replanning=replanning) as session:
        for _ in range(4):
            session.step(job.feed)
        assert session.metrics().orders.steps == 2
    with caramel.ARModel(job.context(), 2).session(trials=None) as session:
        session.trace(1, job.feed)
        assert session.metrics().orders is None


def test_gradients_arrive_in_the_planned_order(job):
    plan = gradients_in_order(served(job, 2, 2).plan)
    model = served(job, 2, 2, plan=plan)
    with model.session(trials=None) as session:
        session.step(job.feed)
        timelines = session.trace(3, job.feed)
        orders = session.metrics().orders
    assert orders.gradients_out_of_place == 0.0
    assert "0 % of gradients" in str(model.explain(timelines))
    # A machine that is busy may miss some transfers.
    planned = [[g.name for g in plan.decision.groups if plan.place(g) == p] for p in (-1, -2)]
    for timeline in timelines:
        for worker in range(2):
            sent = sent_gradients(plan, timeline, worker)
            assert sent
            for names in planned:
                own = [name for name in sent if name in names]
                assert own == [name for name in names if name in own]


def test_an_order_for_one_worker_is_made_from_a_profile(job):
    context = job.context()
    timing = TimingTable(dict.fromkeys(context.op_graph.ops, 0.001))
    networks = (assumed_network(2, 1e5, 1e-4),)
    own = graph_hash(context.graph_def)
    profile = Profile("2.21.0", this_machine(), own, timing, None, networks)
    model = caramel.PSModel(context, 1, 1, ordering="tac", profile=profile)
    assert model.decision.source.startswith("by TAC, from measured times")
    assert "ms; at best" in str(model.explain())
    with pytest.raises(ProfileError, match="another graph"):
        caramel.PSModel(context, 1, 1, profile=Profile("2.21.0", this_machine(), "other", timing))


# Plans -------------------------------------------------------------------------------------------


def test_a_plan_survives_json_and_is_carried_out(job):
    model = served(job, 2, 2, ordering="tic", in_flight_bytes=0)
    given = Plan.from_json(model.plan.to_json())
    assert given == model.plan
    assert given.decision.owners
    assert any(pull.after for pull in given.decision.pulls)
    again = served(job, 2, 2, plan=given)
    assert again.plan == model.plan
    assert_same_run(run_model(again, job, steps=2), run_model(model, job, steps=2))


def test_pulls_of_a_plan_may_be_changed(job, plan):
    names = sorted(pull.variable for pull in plan.decision.pulls)
    pulls = [Pull(names[0]), *(Pull(name, (names[0],)) for name in names[1:])]
    model = served(job, 2, 2, plan=plan.deciding(pulls=tuple(pulls)))
    assert model.plan.decision.pulls == tuple(pulls)
    assert model.decision.source == "given"
    assert_same_run(run_model(model, job, steps=2), run_model(served(job, 2, 2), job, steps=2))


def test_gradients_of_one_server_may_go_together(job, plan):
    decision = plan.decision
    own = [g for g in decision.groups if decision.server_of[g.members[0]] == 1]
    joined = dataclasses.replace(own[0], members=tuple(m for g in own for m in g.members))
    groups = (joined, *(g for g in decision.groups if g not in own))
    assert len(own) > 1
    model = served(job, 2, 2, plan=plan.deciding(groups=groups))
    assert_same_run(run_model(model, job, steps=2), run_model(served(job, 2, 2), job, steps=2))


def test_a_plan_of_the_other_kind_of_model_is_refused(job, plan):
    other = caramel.ARModel(job.context(), 2).plan
    with pytest.raises(PlanError, match=r"training without parameter servers; .*caramel.ARModel"):
        served(job, 2, 2, plan=other)
    with pytest.raises(PlanError, match=r"training with parameter servers; .*caramel.PSModel"):
        caramel.ARModel(job.context(), 2, plan=plan)


def test_a_plan_for_other_servers_or_workers_is_refused(job, plan):
    with pytest.raises(PlanError, match="its servers are lacking /job:ps/task:2"):
        served(job, 2, 3, plan=plan)
    with pytest.raises(PlanError, match="its devices are lacking /job:worker/task:2"):
        served(job, 3, 2, plan=plan)


def moved(plan: Plan) -> Plan:
    owners = [dataclasses.replace(o, server=1 - o.server) for o in plan.decision.owners]
    return plan.deciding(owners=tuple(owners))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (moved, r"the plan has 'b1' on server 1, the model on server 0: where variables live"),
        (lambda p: p.deciding(pulls=()), "the plan does not pull 'b1', which workers read"),
        (
            lambda p: p.deciding(pulls=(*p.decision.pulls, Pull("global_step"))),
            "the plan pulls 'global_step', which workers do not read in a step",
        ),
    ],
)
def test_a_plan_that_places_or_sends_otherwise_is_refused(job, plan, change, message):
    with pytest.raises(PlanError, match=message):
        served(job, 2, 2, plan=change(plan))


def test_what_workers_do_between_them_is_no_part_of_a_plan_with_servers(plan):
    groups = plan.decision.groups
    message = "neither split nor deferred"
    with pytest.raises(PlanError, match=message):
        plan.deciding(groups=tuple(dataclasses.replace(g, deferred=True) for g in groups))
    parts = (Part("w2", 0, 1024), Part("w2", 1024, 2100))
    halves = [dataclasses.replace(groups[0], name=p.name, members=(p.name,)) for p in parts]
    others = [g for g in groups if g.members != ("w2",)]
    with pytest.raises(PlanError, match=message):
        plan.deciding(parts=parts, groups=(*halves, *others))


def test_control_edges_of_a_plan_order_what_workers_do():
    job = network_of(perceptron)
    model = served(job, 2, 2)
    edges = (Edge("x", "Tanh"),)
    edged = served(job, 2, 2, plan=model.plan.deciding(edges=edges))
    for worker in range(2):
        tanh = edged.graph.get_operation_by_name(f"worker_{worker}/Tanh")
        assert f"worker_{worker}/x" in [op.name for op in tanh.control_inputs]


# Variants ----------------------------------------------------------------------------------------


def test_a_session_changes_between_orders_and_nothing_shows_it(job):
    model = served(job, 2, 2)
    model.add_variant(served(job, 2, 2, ordering="tic", in_flight_bytes=0).plan, "one order")
    model.add_variant(served(job, 2, 2, ordering="random").plan, "random")
    expected = run_model(served(job, 2, 2), job, steps=4)
    with model.session(trials=None) as session:
        losses = []
        for name in ("one order", "own", "random", "one order"):
            session.use(name)
            losses.append(session.step(job.feed))
        values = session.variables()
    assert losses == expected.losses
    for name, value in expected.values.items():
        assert (values[name] == value).all()


def test_a_variant_of_the_other_kind_or_with_other_servers_is_refused(job, plan):
    model = served(job, 2, 2)
    with pytest.raises(PlanError, match="without parameter servers"):
        model.add_variant(caramel.ARModel(job.context(), 2).plan, "other")
    with pytest.raises(PlanError, match="where variables live is the same for all plans"):
        model.add_variant(moved(plan), "moved")
    assert list(model.variants) == ["own"]
