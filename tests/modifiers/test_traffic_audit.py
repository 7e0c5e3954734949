"""The traffic audit: bytes that cross between tasks are those of the plan, and no others."""

from __future__ import annotations

import pytest

import caramel
from caramel.core.errors import InvariantError, TrafficError
from caramel.core.names import in_replica, is_added, worker_of
from caramel.core.patterns import PATTERNS, frugal_patterns
from caramel.modifiers.crossings import Wiring
from caramel.modifiers.invariants import check_graph
from caramel.modifiers.traffic_audit import audit, planned_traffic
from caramel.runtime.execution.distributed_graph import DistributedGraph
from tests.support import networks
from tests.support.graphs import sent_traffic, traced_step
from tests.support.networks import Network, inputs, network, optimized, parameter, tf, tf1

NUMBER = 24


@pytest.fixture(scope="module")
def job() -> Network:
    return network("momentum", model=networks.wide, number=NUMBER)


@pytest.fixture(scope="module")
def sparse_job() -> Network:
    with tf.Graph().as_default() as graph:
        x, y, feed = inputs(NUMBER)
        rows = tf.gather(parameter("rows", [networks.CLASSES, networks.WIDTH]), y)
        logits = (x @ parameter("w", [networks.FEATURES, networks.WIDTH]) + rows) @ parameter(
            "v", [networks.WIDTH, networks.CLASSES]
        )
        loss = networks.cross_entropy(logits, y)
        train_op, raw = optimized(loss, networks.OPTIMIZERS["adagrad"])
    return Network(graph, train_op, loss, feed, raw)


def built(job: Network, workers: int, **options) -> caramel.ARModel:
    return caramel.ARModel(job.context(), workers=workers, check=True, **options)


def step_of(model: caramel.ARModel) -> list[str]:
    job = model.context.job
    return [in_replica(w, op) for w in range(model.plan.workers) for op in (job.train_op,)]


def audited(model: caramel.ARModel, change):
    """The audit of the model's graph after `change` has been made to it."""
    graph_def = model.graph.as_graph_def(add_shapes=True)
    nodes = {node.name: node for node in graph_def.node}
    change(nodes)
    definitions = {op.type: op.op_def for op in model.graph.get_operations()}
    return audit(Wiring(graph_def, definitions.get), model.plan, step_of(model))


# Plan, graph and run agree ----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_plan_graph_and_run_agree(job, pattern, workers):
    model = built(job, workers, pattern=pattern)
    planned = planned_traffic(model.plan)
    assert model.traffic == planned
    trace = traced_step(model, job.feed)
    assert sent_traffic(model, trace) == planned
    assert set(trace.sent.values()) == {1}, "nothing is sent twice to the same task"
    assert all(is_added(name) for name, _ in trace.sent)


@pytest.mark.parametrize("sparse", ["gather", "dense"])
def test_sparse_gradients_cross_as_planned(sparse_job, sparse):
    model = built(sparse_job, 3, sparse=sparse)
    planned = planned_traffic(model.plan)
    assert model.traffic == planned
    assert bool(planned.open_transfers) == (sparse == "gather")
    assert sent_traffic(model, traced_step(model, sparse_job.feed)) == planned


def test_tensorflows_notes_of_sizes_agree(job):
    """The only measurement; TensorFlow does not take notes of every transfer."""
    model = built(job, 2)
    received = traced_step(model, job.feed).received
    sizes = {
        (crossing.source, crossing.pair): {crossing.bytes}
        for crossing in wiring_of(model).crossings()
    }
    noted = {key: found for key, found in received.items() if is_added(key[0])}
    assert noted
    for key, found in noted.items():
        # TensorFlow rounds the memory of a small tensor up, to 64 bytes.
        assert {64 * -(-size // 64) for size in sizes[key]} == {64 * -(-s // 64) for s in found}


def wiring_of(model: caramel.ARModel) -> Wiring:
    definitions = {op.type: op.op_def for op in model.graph.get_operations()}
    return Wiring(model.graph.as_graph_def(add_shapes=True), definitions.get)


@pytest.mark.parametrize("pattern", frugal_patterns(4))
def test_everyone_sends_the_least_that_a_mean_needs(job, pattern):
    """2 (N - 1) / N of the gradients, to rounding to whole elements."""
    model = built(job, 4, pattern=pattern)
    total = sum(gradient.spec.bytes for gradient in model.plan.job.gradients)
    sent = sum(model.traffic.bytes.values())
    assert sent == 2 * 3 * total


def test_one_worker_sends_nothing(job):
    assert built(job, 1).traffic.bytes == {}


def test_waiting_for_all_inputs_sends_nothing_but_numbers_of_examples():
    with tf.Graph().as_default() as graph:
        pipeline = tf.data.Dataset.range(12).batch(2)
        ids = tf1.data.make_initializable_iterator(pipeline).get_next()
        w = parameter("w", [1])
        mean = tf1.get_variable("mean", [], tf.float64, trainable=False)
        values = tf.cast(ids, tf.float64)
        loss = tf.reduce_mean((values * w - 1.0) ** 2)
        train_op, raw = optimized(loss, networks.OPTIMIZERS["gradient_descent"])
        train_op = tf.group(train_op, mean.assign_sub(0.1 * (mean - tf.reduce_mean(values))))
    model = built(Network(graph, train_op, loss, {}, raw), 2)
    waits = [c for c in wiring_of(model).crossings() if c.tensor is None]
    assert [(c.source, c.consumer) for c in waits] == [
        ("caramel/worker_1/inputs_read", "caramel/worker_0/all_inputs_read"),
        ("caramel/worker_0/inputs_read", "caramel/worker_1/all_inputs_read"),
    ]
    gradient_and_count = 8 + 8
    assert sum(model.traffic.bytes.values()) == 2 * gradient_and_count


# Stray edges are named --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(job) -> caramel.ARModel:
    return built(job, 2, pattern="shuffle")


def test_an_unchanged_graph_passes(model):
    assert audited(model, lambda nodes: None) == model.traffic


def test_an_edge_between_replicas_is_named(model):
    def change(nodes):
        nodes["worker_0/Tanh"].input[0] = nodes["worker_1/Tanh"].input[0]

    with pytest.raises(TrafficError, match=r"'worker_1/BiasAdd:0' -> 'worker_0/Tanh'.*no such"):
        audited(model, change)


def test_a_control_edge_between_replicas_is_named(model):
    def change(nodes):
        nodes["worker_1/Tanh"].input.append("^worker_0/Tanh")

    with pytest.raises(TrafficError, match=r"'\^worker_0/Tanh' -> 'worker_1/Tanh' \(0 bytes\)"):
        audited(model, change)


def test_a_control_edge_that_nobody_planned_is_named_even_between_caramels_own_ops(model):
    means = [next(n for n in names_of(model, "RealDiv") if worker_of(n) == w) for w in range(2)]

    def change(nodes):
        nodes[means[1]].input.append(f"^{means[0]}")

    with pytest.raises(TrafficError, match=rf"'\^{means[0]}' -> '{means[1]}'"):
        audited(model, change)


def test_a_node_on_the_wrong_task_is_named(model):
    moved = next(name for name in names_of(model, "RealDiv") if worker_of(name) == 1)

    def change(nodes):
        nodes[moved].device = "/job:worker/task:0"

    with pytest.raises(TrafficError, match=rf"bytes cross from .* the plan says .*'{moved}"):
        audited(model, change)
    graph_def = model.graph.as_graph_def()
    change({node.name: node for node in graph_def.node})
    with pytest.raises(InvariantError, match=f"'{moved}' is on /job:worker/task:0 but belongs to"):
        check_graph(graph_def, model.plan)


def test_a_missing_transfer_is_an_error_too(model):
    complete = next(name for name in names_of(model, "IdentityN") if worker_of(name) == 0)

    def change(nodes):
        own = next(t for t in nodes[complete].input if worker_of(t.partition(":")[0]) == 0)
        for position, text in enumerate(nodes[complete].input):
            if worker_of(text.partition(":")[0]) == 1:
                nodes[complete].input[position] = own

    with pytest.raises(TrafficError, match=r"\d+ bytes cross from /job:worker/task:1 to"):
        audited(model, change)


def names_of(model: caramel.ARModel, kind: str) -> list[str]:
    return [op.name for op in model.graph.get_operations() if op.type == kind and is_added(op.name)]


def test_the_trace_sees_a_stray_edge(job):
    """The independent check is no tautology: it finds what the audit was not asked about."""
    model = built(job, 2)
    graph_def = model.graph.as_graph_def()
    nodes = {node.name: node for node in graph_def.node}
    reshapes = [name for name in names_of(model, "Reshape") if worker_of(name) == 1]
    stray = next(name for name in reshapes if "aggregated" in name)  # read by no condition
    nodes[stray].device = "/job:worker/task:0"
    model._graph = DistributedGraph()
    model._graph.add(graph_def)
    assert sent_traffic(model, traced_step(model, job.feed)) != model.traffic
