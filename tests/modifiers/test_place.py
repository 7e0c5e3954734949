"""What crosses between the devices of one replica: in the graph, in the plan, and in a run."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from caramel.core.consequences import Sending
from caramel.core.errors import InvariantError, PlanError, TrafficError
from caramel.core.names import TensorRef, in_replica, received, sent, sent_of
from caramel.core.placement import Placement, SendGate
from caramel.core.plan import Plan
from caramel.modifiers.crossings import Wiring
from caramel.modifiers.invariants import check_graph
from caramel.modifiers.pipeline import rewrite
from caramel.modifiers.traffic_audit import audit
from tests.support.networks import network, wide
from tests.support.placed import placed


@pytest.fixture(scope="module")
def job():
    return network("momentum", model=wide)


@pytest.fixture(scope="module")
def model(job):
    return placed(job, 2, seed=3)


def changed(model, change):
    """The graph of the model's plan, after `change` has been made to it by name of its nodes."""
    graph_def = rewrite(model.context.graph_def, model.plan).graph_def
    change({node.name: node for node in graph_def.node})
    return graph_def


def audited(model, change=lambda nodes: None):
    kinds = {op.type: op.op_def for op in model.graph.get_operations()}
    step = [in_replica(0, name) for name in (model.context.job.train_op, model.context.job.loss.op)]
    return audit(Wiring(changed(model, change), kinds.get), model.plan, step)


def a_sending(model, test=lambda sending: True) -> Sending:
    return next(each for each in model.plan.consequences.sendings if test(each))


def ends(sending: Sending) -> tuple[str, str]:
    """What sends a tensor, and what hands it on where it arrives."""
    tensor = in_replica(0, sending.tensor.op), sending.tensor.index, sending.target
    return sent(*tensor), received(*tensor)


def test_what_crosses_passes_an_op_on_each_side(model):
    placement = model.plan.placement
    nodes = {}
    changed(model, nodes.update)
    assert model.plan.consequences.sendings
    for sending in model.plan.consequences.sendings:
        leaving, arriving = ends(sending)
        assert nodes[leaving].device == placement.devices[sending.source]
        assert nodes[arriving].device == placement.devices[sending.target]
        assert list(nodes[arriving].input) == [leaving]
    for name, node in nodes.items():
        for text in node.input:
            source = nodes[text.lstrip("^").partition(":")[0]]
            if source.device != node.device:
                assert sent_of(source.name)[0] == "sent"
                assert sent_of(name) == sent_of(source.name)._replace(what="received")


def test_the_audit_counts_what_the_plan_says(model):
    tasks = model.plan.placement.devices
    expected = {}
    for sending in model.plan.consequences.sendings:
        pair = tasks[sending.source], tasks[sending.target]
        expected[pair] = expected.get(pair, 0) + (sending.bytes or 0)
    assert audited(model).bytes == expected == model.traffic.bytes


def test_an_edge_that_crosses_by_itself_is_named(model):
    sending = a_sending(model)
    leaving, arriving = ends(sending)

    def forget(nodes):
        reader = next(n for n in nodes.values() if arriving in n.input)
        reader.input[list(reader.input).index(arriving)] = nodes[leaving].input[0]

    with pytest.raises(TrafficError, match=f"'{in_replica(0, sending.tensor.op)}.*no such tran"):
        audited(model, forget)


def test_what_the_plan_does_not_send_is_named(model):
    sending = a_sending(model, lambda each: each.bytes)
    fewer = [each for each in model.plan.consequences.sendings if each != sending]
    consequences = dataclasses.replace(model.plan.consequences, sendings=tuple(fewer))
    plan = dataclasses.replace(model.plan, consequences=consequences)
    graph_def = rewrite(model.context.graph_def, plan).graph_def
    kinds = {op.type: op.op_def for op in model.graph.get_operations()}
    with pytest.raises(TrafficError, match="bytes cross from /job:worker/task:.*the plan says"):
        audit(Wiring(graph_def, kinds.get), plan, [in_replica(0, model.context.job.train_op)])


def test_ops_on_a_device_that_is_not_of_the_placement_are_found(model):
    def move(nodes):
        nodes[in_replica(0, model.context.job.loss.op)].device = "/job:worker/task:7"

    with pytest.raises(InvariantError, match="is on /job:worker/task:7 but belongs to worker 0"):
        check_graph(changed(model, move), model.plan)


def test_tensors_are_sent_in_the_order_of_gates(job, model):
    """Each waits for the arrival of the one before; the same bits come out."""
    plan = model.plan
    own = [s for s in plan.consequences.sendings if (s.source, s.target) == (0, 1)]
    order = job.context().op_graph.topological_order()
    own.sort(key=lambda s: order.index(s.tensor.op))
    gates = tuple(
        SendGate(later.tensor, earlier.tensor, 1) for earlier, later in itertools.pairwise(own)
    )
    gated = plan.deciding(placement=dataclasses.replace(plan.placement, gates=gates))
    own_model = placed(job, 2, plan=gated)
    nodes = {node.name: node for node in own_model.graph.as_graph_def().node}
    for gate in gates:
        later = sent(in_replica(0, gate.tensor.op), gate.tensor.index, 1)
        earlier = received(in_replica(0, gate.after.op), gate.after.index, 1)
        assert f"^{earlier}" in nodes[later].input
    with model.session(trials=None) as session, own_model.session(trials=None) as other:
        other.assign(session.variables())
        assert [session.step(job.feed) for _ in range(3)] == [
            other.step(job.feed) for _ in range(3)
        ]


def test_a_gate_of_what_is_not_sent_is_refused(job, model):
    nothing = TensorRef(model.context.job.train_op)
    sending = a_sending(model)
    gate = SendGate(nothing, sending.tensor, sending.target)
    plan = model.plan.deciding(placement=dataclasses.replace(model.plan.placement, gates=(gate,)))
    with pytest.raises(PlanError, match="a gate of the placement is about .*, which is not sent"):
        placed(job, 2, plan=plan)


def test_placements_that_cannot_be_are_refused():
    with pytest.raises(PlanError, match="names device 'a' twice"):
        Placement(("a", "a"), ((), ()))
    with pytest.raises(PlanError, match="names op 'x' twice"):
        Placement(("a", "b"), (("x",), ("x",)))
    with pytest.raises(PlanError, match="2 devices and 1 lists"):
        Placement(("a", "b"), (("x",),))
    with pytest.raises(PlanError, match="to device 2; there are 1"):
        Placement(("a",), (("x",),), (SendGate(TensorRef("x"), TensorRef("y"), 2),))


def test_plans_with_a_placement_are_kept_as_text(job, model):
    plan = Plan.from_json(model.plan.to_json())
    assert plan == model.plan
    assert placed(job, 2, plan=plan).plan == model.plan
    old = json.loads(model.plan.deciding(placement=None).to_json())
    del old["decision"]["placement"], old["consequences"]["sendings"]
    assert Plan.from_json(json.dumps(old)).placement is None
