"""Aggregation alone, carried out by TensorFlow, of gradients that are fed."""

from __future__ import annotations

import numpy as np

from caramel.cluster.servers import embedded_servers
from caramel.core.names import TensorRef, in_replica, tensor_in_replica
from caramel.core.plan import Plan
from caramel.modifiers.aggregation.aggregate import aggregate
from caramel.modifiers.batch_weights import share, uneven, weigh
from caramel.modifiers.graph_writer import GraphWriter
from caramel.modifiers.invariants import check_graph
from caramel.native.session import GraphCall, GraphSession
from tests.support.graphs import session_config
from tests.support.networks import tf, tf1


def replicas(plan: Plan):
    """On every worker, raw gradients that are fed, and an op that reads each."""
    graph_def = tf1.GraphDef()
    writer = GraphWriter(graph_def)
    for worker, device in enumerate(plan.job.devices):
        for number, gradient in enumerate(plan.job.gradients):
            dtype, shape = gradient.spec.dtype, tf.TensorShape(gradient.spec.shape)
            raw = tensor_in_replica(worker, gradient.values)
            kind = "Placeholder"
            writer.add(
                raw.op, kind, device=device, outputs=[gradient.spec], dtype=dtype, shape=shape
            )
            read = in_replica(worker, f"read{number}")
            writer.add(read, "Identity", [raw], device=device, outputs=[gradient.spec], T=dtype)
    return graph_def


def aggregated_graph(plan: Plan):
    graph_def = replicas(plan)
    for modifier in (weigh, aggregate):
        graph_def = modifier(graph_def, plan)
        check_graph(graph_def, plan)
    return graph_def


def session_on(graph: tf.Graph, workers: int) -> tf1.Session:
    return tf1.Session(embedded_servers(workers).target, graph=graph, config=session_config())


def run(plan: Plan, values, shares=None) -> list[list[np.ndarray]]:
    """What the readers of each worker see, for `values[worker][gradient]`; run twice."""
    fed = {}
    for worker, own in enumerate(values):
        for gradient, value in zip(plan.job.gradients, own, strict=True):
            fed[tensor_in_replica(worker, gradient.values)] = value
        if shares is not None:
            fed[share(worker)] = shares[worker]
            fed[uneven(worker)] = True
    count = len(plan.job.gradients)
    read = [
        TensorRef(in_replica(worker, f"read{number}"))
        for worker in range(plan.workers)
        for number in range(count)
    ]
    # As Caramel's own sessions: a `tf.Graph` of this takes longer than all the rest.
    session = GraphSession(embedded_servers(plan.workers).target, session_config())
    try:
        session.extend(aggregated_graph(plan).SerializeToString())
        call = GraphCall(session, read, [], list(fed))
        first, second = (call(list(fed.values())) for _ in range(2))
    finally:
        session.close()
    for value, again in zip(first, second, strict=True):
        assert value.tobytes() == again.tobytes()
    return [first[start : start + count] for start in range(0, len(first), count)]


def random_values(plan: Plan, seed: int = 0) -> list[list[np.ndarray]]:
    random = np.random.RandomState(seed)
    return [
        [
            random.randint(-99, 99, g.spec.shape).astype(numpy_dtype(g.spec.dtype))
            if g.spec.dtype.startswith("int")
            else random.standard_normal(g.spec.shape).astype(numpy_dtype(g.spec.dtype))
            for g in plan.job.gradients
        ]
        for _ in plan.job.devices
    ]


def numpy_dtype(name: str):
    return tf.as_dtype(name).as_numpy_dtype


def assert_same_on_all_workers(results) -> None:
    for own in results[1:]:
        for value, first in zip(own, results[0], strict=True):
            assert value.dtype == first.dtype
            assert value.tobytes() == first.tobytes()
