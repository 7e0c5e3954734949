"""A server outlives that a session is left while its ops wait there."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

import pytest
import tensorflow as tf

import caramel
from caramel.core.errors import WorkerLostError
from caramel.core.names import in_variant, variant_prefix
from caramel.native.session import GraphCall, GraphSession
from caramel.runtime.execution.containers import Containers
from caramel.runtime.execution.distributed_graph import GraphPart
from caramel.runtime.execution.leaving import Server, forget
from tests.support.containers import is_there
from tests.support.networks import network, wide
from tests.support.processes import wait_for, worker_pid

tf1 = tf.compat.v1

DEVICE = "/job:worker/task:0"


@dataclass
class Left:
    """What a call says that waits at a queue of a server."""

    error: tf.errors.OpError | None = None


def waiting(server, containers, variant):
    """A session with a variable, one of whose ops waits at a queue; and what becomes of that."""
    with tf.Graph().as_default() as graph, tf.device(DEVICE), graph.container("of-the-session"):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[], shared_name="variable")
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.constant(1.0, tf.float64), name="set")
        queue = tf.queue.FIFOQueue(1, [tf.bool], [[]], shared_name="tokens")
        queue.dequeue(name="wait")
    graph_def = graph.as_graph_def()
    for node in graph_def.node:
        if "container" in node.attr:
            node.attr["container"].s = containers.on_workers.encode()
    part = GraphPart(graph_def.SerializeToString(), variant, len(graph_def.node))
    config = tf1.ConfigProto(isolate_session_state=False)
    session = GraphSession(f"grpc://{server.address}", config, DEVICE)
    session.extend(part.graph_def, variant_prefix(variant))
    return session, part


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.processes
@pytest.mark.parametrize("variant", [0, 1])
def test_a_server_lives_on_when_what_waited_at_a_queue_is_cancelled_afterwards(variant):
    with caramel.Cluster.local(1) as cluster:
        server, containers, left = Server(DEVICE, cluster.targets[0]), Containers(), Left()
        session, part = waiting(server, containers, variant)
        GraphCall(session, [], [in_variant(variant, "set")], [])()

        def wait():
            try:
                GraphCall(session, [], [in_variant(variant, "wait")], [])()
            except tf.errors.OpError as error:
                left.error = error

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert not wait_for(lambda: left.error is not None, 1.0)
        own = f"grpc://{server.address}", DEVICE, containers.on_workers, "variable"
        assert is_there(*own)
        forget([part], containers, [server])
        session.close()
        thread.join(60)
        assert isinstance(left.error, tf.errors.OutOfRangeError | tf.errors.CancelledError)
        assert not is_there(*own)
        assert cluster.ended == ()


@pytest.mark.processes
@pytest.mark.usefixtures("forked_workers")
def test_who_is_left_after_a_loss_keeps_nothing_of_a_session_that_is_closed():
    job = network("adam", model=wide)
    with caramel.Cluster.local(2) as cluster:
        model = caramel.ARModel(job.context(), cluster)
        session = model.session(trials=None)
        session.step(job.feed)
        container = session._running.runner.containers.on_workers
        variable = "worker_0/" + model.plan.job.variables[0].handle
        own = f"grpc://{cluster.targets[0]}", DEVICE, container, variable
        assert is_there(*own)
        os.kill(worker_pid(cluster, 1), signal.SIGKILL)
        with pytest.raises(WorkerLostError):
            session.step(job.feed)
        session.close()
        assert wait_for(lambda: not is_there(*own))
