"""What a session has on the workers is its own, and gone when it is closed."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import caramel
from caramel.cluster.servers import embedded_servers
from tests.support.containers import is_there
from tests.support.networks import network, wide
from tests.support.serving import served

tf1 = tf.compat.v1


@pytest.fixture(scope="module", name="job")
def fixture_job():
    return network("adam", model=wide)


def model_of(job, servers):
    return served(job, 2, servers) if servers else caramel.ARModel(job.context(), 2)


@pytest.mark.parametrize("servers", [0, 2])
def test_sessions_of_one_model_have_variables_of_their_own_until_they_are_closed(job, servers):
    model = model_of(job, servers)
    target = embedded_servers(2, parameter_servers=servers).target
    with model.session(trials=None) as session, model.session(trials=None) as other:
        initial = other.variables()
        session.step(job.feed)
        for name, value in other.variables().items():
            np.testing.assert_array_equal(value, initial[name])
        container = session._running.runner.containers.on_workers
        variable = "worker_1/" + model.plan.job.variables[0].handle
        own = target, "/job:worker/task:1", container, variable
        assert is_there(*own)
        session.close()
        assert not is_there(*own)
        other.step(job.feed)


@pytest.mark.parametrize("servers", [0, 1])
def test_what_a_user_put_in_a_container_ends_with_the_session(servers):
    """Variables of one name in two of them are two variables."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float64, [None], name="x")
        loss = tf.reduce_mean(x)
        for number in range(2):
            with tf1.container(f"users/{number}"):
                own = tf1.get_variable(f"w{number}", [], tf.float64, tf1.ones_initializer())
            own.handle.op._set_attr("shared_name", tf1.AttrValue(s=b"shared"))
            loss = loss + (own - number) ** 2
        updates = tf1.train.GradientDescentOptimizer(0.25).minimize(loss)
    context = caramel.Context(graph, train_op=updates, loss=loss)
    if servers:
        model = caramel.PSModel(context, 2, servers, check=True)
    else:
        model = caramel.ARModel(context, 2, check=True)
    target = embedded_servers(2, parameter_servers=servers).target
    device, copy = "/job:worker/task:0", "worker_0"
    if servers:
        device, copy = "/job:ps/task:0", "evaluation"
    with model.session(trials=None) as session:
        containers = session._running.runner.containers
        container = containers.on_servers if servers else containers.on_workers
        session.step({x: np.zeros(4)})
        assert session.variables() == {"w0": 0.5, "w1": 1.0}
        names = [f"{copy}/shared:users/{number}" for number in range(2)]
        assert all(is_there(target, device, container, name) for name in names)
    assert not any(is_there(target, device, container, name) for name in names)
