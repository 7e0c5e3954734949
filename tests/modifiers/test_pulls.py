"""Workers receive variables in the planned order, before the step writes them, and nothing else
travels."""

from __future__ import annotations

import dataclasses

import pytest

import caramel
from caramel.core.devices import task_of
from caramel.core.errors import TrafficError
from caramel.core.names import (
    ONCE,
    ahead_from,
    gated,
    in_copy,
    in_replica,
    pull_of,
    pulled,
    pulled_ahead,
    pulled_from,
    pushed,
)
from caramel.modifiers.crossings import Wiring
from caramel.modifiers.defer import step_ops
from caramel.modifiers.traffic_audit import audit, planned_traffic
from tests.support.embeddings import embedding
from tests.support.networks import CLASSES, FEATURES, WIDTH, network
from tests.support.serving import gradients_in_order, served

WORKERS, SERVERS = 2, 2
PS = [f"/job:ps/task:{number}" for number in range(SERVERS)]
HOSTS = [f"/job:worker/task:{number}" for number in range(WORKERS)]


@pytest.fixture(scope="module")
def model() -> caramel.PSModel:
    return served(network("adam"), WORKERS, SERVERS, ordering="tic", in_flight_bytes=0)


def controls_of(model, name: str) -> list[str]:
    return [op.name for op in model.graph.get_operation_by_name(name).control_inputs]


def audited(model, change):
    """The audit of the model's graph after `change` has been made to it."""
    graph_def = model.graph.as_graph_def(add_shapes=True)
    nodes = {node.name: node for node in graph_def.node}
    change(nodes)
    definitions = {op.type: op.op_def for op in model.graph.get_operations()}
    step = [*step_ops(model.plan)]
    step += [in_replica(worker, model.plan.job.loss) for worker in range(WORKERS)]
    return audit(Wiring(graph_def, definitions.get), model.plan, step)


# The order ---------------------------------------------------------------------------------------


def test_a_read_on_a_server_waits_for_the_arrival_at_its_worker(model):
    decision = model.plan.decision
    assert sum(len(pull.after) for pull in decision.pulls) == len(decision.pulls) - SERVERS
    for pull in decision.pulls:
        server = decision.server_of[pull.variable]
        for worker in range(WORKERS):
            name = pulled_from(server, worker, pull.variable)
            read = model.graph.get_operation_by_name(name)
            assert read.type == "ReadVariableOp"
            assert task_of(read.device) == PS[server]
            assert controls_of(model, name) == [pulled(worker, before) for before in pull.after]


def test_what_reads_a_variable_waits_until_it_has_arrived(model):
    known = {op.name for op in model.graph.get_operations()}
    for reading in model.plan.consequences.serving.readings:
        for worker in range(WORKERS):
            own = in_replica(worker, reading.variable)
            arrived = model.graph.get_operation_by_name(pulled(worker, reading.variable))
            assert arrived.type == "AssignVariableOp"
            assert arrived.inputs[0].op.name == own
            for op in reading.waiting:
                if in_replica(worker, op) in known:
                    assert arrived.name in controls_of(model, in_replica(worker, op))


def test_writes_wait_for_the_reads_of_all_workers(model):
    serving, server_of = model.plan.consequences.serving, model.plan.decision.server_of
    read = {each.variable for each in serving.readings}
    written = [each for each in serving.written if each.variable in read]
    assert {each.variable for each in written} >= {"w1", "b1", "w2", "b2"}
    for each in written:
        reads = {pulled_from(server_of[each.variable], w, each.variable) for w in range(WORKERS)}
        for op in each.ops:
            assert reads <= set(controls_of(model, in_copy(ONCE, op)))


def test_what_is_sent_ahead_waits_for_writes_and_for_readers():
    plain = served(network("adam"), WORKERS, SERVERS)
    pulls = tuple(dataclasses.replace(p, ahead=True) for p in plain.plan.decision.pulls)
    model = served(network("adam"), WORKERS, SERVERS, plan=plain.plan.deciding(pulls=pulls))
    serving, server_of = model.plan.consequences.serving, model.plan.decision.server_of
    for pull in pulls:
        name = pull.variable
        writers = {in_copy(ONCE, op) for op in serving.writers_of[name]}
        reading = serving.reading_of[name]
        for worker in range(WORKERS):
            sent = ahead_from(server_of[name], worker, name)
            assert writers <= set(controls_of(model, sent))
            readers = {in_replica(worker, op) for op in reading.readers}
            assert readers
            assert readers <= set(controls_of(model, pulled_ahead(worker, name)))
            # It is there from the step before: what reads it waits for nothing.
            assert all(pulled(worker, name) not in controls_of(model, op) for op in readers)


def test_without_an_order_nothing_waits():
    model = served(network("adam"), WORKERS, SERVERS)
    pulls = [op for op in model.graph.get_operations() if pull_of(op.name) is not None]
    assert len(pulls) == WORKERS * len(model.plan.consequences.serving.readings)
    assert not any(op.control_inputs for op in pulls)


def test_writes_of_a_table_wait_for_the_rows_that_were_asked_for():
    model = served(embedding("adagrad"), WORKERS, 1)
    (remote,) = model.plan.consequences.serving.remote
    answers = {f"caramel/server_0/answer/{worker}/{remote.op}" for worker in range(WORKERS)}
    (written,) = (
        each for each in model.plan.consequences.serving.written if each.variable == "table"
    )
    for op in written.ops:
        assert answers <= set(controls_of(model, in_copy(ONCE, op)))


# Traffic -----------------------------------------------------------------------------------------


def test_bytes_between_each_pair_are_those_computed_by_hand(model):
    """Floats of 8 bytes: w1 6 x 5, w2 5 x 3, b1 5, b2 3. The longest first: w1 (240 bytes) on
    server 0, then w2 (120), b1 (40) and b2 (24) on server 1, which still has less."""
    sizes = {
        "w1": FEATURES * WIDTH * 8,
        "w2": WIDTH * CLASSES * 8,
        "b1": WIDTH * 8,
        "b2": CLASSES * 8,
    }
    assert {n: s for n, s in model.plan.decision.server_of.items() if n in sizes} == {
        "w1": 0,
        "w2": 1,
        "b1": 1,
        "b2": 1,
    }
    down = {PS[0]: 240, PS[1]: 120 + 40 + 24}
    expected = {(server, host): size for server, size in down.items() for host in HOSTS}
    # As much goes up, in gradients.
    expected |= {(host, server): size for (server, host), size in expected.items()}
    assert model.traffic.bytes == expected
    assert model.traffic.open_transfers == {}


def test_plan_and_graph_agree_also_on_rows():
    gathered = served(embedding("adagrad"), 3, 2, sparse="gather")
    assert gathered.traffic == planned_traffic(gathered.plan)
    host = HOSTS[1]
    for number in range(2):  # each server has a part of the table
        server = gathered.plan.decision.server_of[f"table/part_{number}"]
        # Row numbers go up, and rows come back; then rows of the gradient and their numbers go up.
        assert gathered.traffic.open_transfers[PS[server], host] == 1
        assert gathered.traffic.open_transfers[host, PS[server]] == 3


def test_an_unchanged_graph_passes(model):
    assert audited(model, lambda nodes: None) == model.traffic


def test_an_edge_between_workers_is_named(model):
    def change(nodes):
        nodes["worker_0/Tanh"].input[0] = nodes["worker_1/Tanh"].input[0]

    with pytest.raises(TrafficError, match=r"'worker_1/BiasAdd:0' -> 'worker_0/Tanh'.*no such"):
        audited(model, change)


def test_what_was_sent_for_another_worker_is_named(model):
    def change(nodes):
        nodes["worker_0/Tanh"].input[0] = "caramel/server_0/pull/1/w1"

    with pytest.raises(TrafficError, match=r"'caramel/server_0/pull/1/w1:0' -> 'worker_0/Tanh'"):
        audited(model, change)


def test_a_control_edge_that_is_no_gate_is_named(model):
    def change(nodes):
        nodes["caramel/server_0/pull/0/w1"].input.append("^worker_0/Tanh")

    with pytest.raises(
        TrafficError, match=r"'\^worker_0/Tanh' -> 'caramel/server_0/pull/0/w1' \(0 bytes\)"
    ):
        audited(model, change)


def test_a_gradient_waits_for_what_its_own_worker_has_sent():
    plain = served(network("adam"), WORKERS, 1)
    model = served(network("adam"), WORKERS, 1, plan=gradients_in_order(plain.plan))
    gates = model.plan.decision.gates
    assert len(gates) == 3
    for gate in gates:
        for worker in range(WORKERS):
            own = gated(gate.group, worker)
            assert controls_of(model, own) == [pushed(0, worker, gate.after)]
            arrived = model.graph.get_operation_by_name(pushed(0, worker, gate.after))
            assert task_of(arrived.device) == PS[0]
            assert [task_of(t.op.device) for t in arrived.inputs] == [HOSTS[worker]]
    assert model.traffic == plain.traffic
    own, other = gated(gates[0].group, 0), pushed(0, 1, gates[0].after)
    with pytest.raises(TrafficError, match=rf"'\^{other}' -> '{own}'"):
        audited(model, lambda nodes: nodes[own].input.append(f"^{other}"))


def test_a_pull_that_does_not_arrive_is_an_error_too(model):
    def change(nodes):
        nodes["caramel/worker_0/pulled/w1"].input[1] = "worker_0/x"

    with pytest.raises(TrafficError, match=r"bytes cross from /job:ps/task:0 to"):
        audited(model, change)
