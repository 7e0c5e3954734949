"""Where nodes are placed: the task is the replica's, the device type the user's."""

from __future__ import annotations

import numpy as np
import pytest

import caramel
from caramel.core.devices import Device, merge, moved_replicas, task_of, without_task
from caramel.core.errors import CaramelError, ClusterError
from caramel.core.names import worker_of
from caramel.modifiers.traffic_audit import planned_traffic
from tests.support import networks
from tests.support.graphs import sent_traffic, traced_step
from tests.support.networks import network, run_on_one_device, tf, tf1

WORKER = "/job:worker/task:{}"
GPUS = [f"/job:worker/task:{task}/device:GPU:0" for task in range(2)]
SOFT = tf1.ConfigProto(allow_soft_placement=True)
TWO_CPUS = tf1.ConfigProto(device_count={"CPU": 2})


def pinned(device: str):
    """Two dense layers, the second on a device of its own."""

    def model(x):
        h = tf.tanh(x @ networks.parameter("w", [networks.FEATURES, networks.WIDTH]))
        with tf.device(device):
            return h @ networks.parameter("v", [networks.WIDTH, networks.CLASSES])

    return model


def built(job, workers, **options) -> caramel.ARModel:
    return caramel.ARModel(job.context(), workers=workers, check=True, **options)


# Names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "replica", "expected"),
    [
        ("", "/job:worker/task:1", "/job:worker/task:1"),
        ("/cpu:0", "/job:worker/task:1", "/job:worker/task:1/device:CPU:0"),
        ("/device:GPU:1", "/job:worker/task:1", "/job:worker/task:1/device:GPU:1"),
        ("/job:ps/task:7", "/job:worker/task:1", "/job:worker/task:1"),
        (
            "/job:localhost/replica:0/task:0/device:CPU:0",
            "/job:worker/task:1/device:GPU:0",
            "/job:worker/task:1/device:CPU:0",
        ),
        ("/cpu:*", "/job:worker/task:1", "/job:worker/task:1/device:CPU:0"),
        ("/gpu:0", "/job:chief/task:0/device:CPU:0", "/job:chief/task:0/device:GPU:0"),
    ],
)
def test_the_task_is_the_replicas_and_the_type_the_users(inner, replica, expected):
    assert merge(inner, replica) == expected


def test_parts_of_device_names():
    assert task_of("/job:worker/replica:0/task:3/device:GPU:1") == "/job:worker/task:3"
    assert task_of("/device:GPU:1") is None
    assert without_task("/job:worker/task:3/gpu:1") == "/device:GPU:1"
    assert without_task("/job:worker/task:3") == ""
    assert str(Device.parse("/CPU:0")) == "/device:CPU:0"


@pytest.mark.parametrize("name", ["worker:0", "/task", "/device:CPU:x", "/job:a/machine:3", "cpu"])
def test_malformed_names_are_refused(name):
    with pytest.raises(ClusterError, match="not a device name"):
        Device.parse(name)


# Every node names its task ----------------------------------------------------------------------


def test_every_node_names_the_task_of_its_worker():
    model = built(network("adam"), 3)
    for op in model.graph.get_operations():
        assert task_of(op.device) == WORKER.format(worker_of(op.name)), op.name


@pytest.mark.parametrize(("device", "kind"), [("/cpu:0", "CPU"), ("/gpu:0", "GPU")])
def test_pinned_ops_keep_their_type_and_move_with_the_replica(device, kind):
    job = network(model=pinned(device))
    model = built(job, 2)
    for worker in range(2):
        expected = f"/job:worker/task:{worker}/device:{kind}:0"
        op = model.graph.get_operation_by_name(f"worker_{worker}/matmul_1")
        assert Device.parse(op.device) == Device.parse(expected)
    config = None if kind == "CPU" else SOFT
    with model.session(config=config) as running:
        initial = running.variables()
        losses = [running.step(job.feed) for _ in range(3)]
    if kind == "CPU":
        expected_losses = run_on_one_device(job, initial, steps=3).losses
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-12)


def test_an_op_on_a_device_that_its_worker_lacks_is_an_error_unless_placement_is_soft(caplog):
    model = built(network(model=pinned("/gpu:0")), 2)
    message = "placed on '/device:GPU:0' by tf.device, which replica 0 lacks.*task:1 has CPU:0: "
    with pytest.raises(ClusterError, match=message):
        model.session()
    model.session(config=SOFT).close()
    assert "which replica 0 lacks; there they run on the CPU" in caplog.text


def test_devices_that_functions_name_are_looked_at_too():
    def model(x):
        w = networks.parameter("w", [networks.FEATURES, networks.CLASSES])

        @tf.function
        def product(x):
            with tf.device("/gpu:3"):
                return tf.matmul(x, w)

        return product(x)

    with pytest.raises(ClusterError, match="'/device:GPU:3' by tf.device"):
        built(network(model=model), 2).session()


# device_list ------------------------------------------------------------------------------------


def test_replicas_on_gpus_are_built_and_do_not_run_without_a_gpu():
    job = network("adam")
    model = built(job, 2, device_list=GPUS)
    for op in model.graph.get_operations():
        device = Device.parse(op.device)
        kind = "CPU" if "/marks/" in op.name else "GPU"  # what the client reads is on the processor
        assert (device.task, device.kind, device.index) == (worker_of(op.name), kind, 0), op.name
    assert model.traffic == planned_traffic(model.plan)
    message = "replica 0 is to be on '/job:worker/task:0/device:GPU:0', which does not exist"
    for config in (None, SOFT):
        with pytest.raises(ClusterError, match=f"{message}.*task:0 has CPU:0; .*task:1 has CPU:0"):
            model.session(config=config)


@pytest.mark.parametrize("cluster", [1, 2])
def test_a_device_that_some_worker_lacks_is_told(cluster):
    devices = [f"/job:worker/task:{cluster - 1}/cpu:{number}" for number in range(3)]
    model = built(network(number=24), cluster, device_list=devices)
    with pytest.raises(
        ClusterError, match=r"replica 2 .*CPU:2', which does not .*has CPU:0, CPU:1"
    ):
        model.session(config=TWO_CPUS)


@pytest.mark.parametrize("tasks", [1, 2])
def test_several_replicas_on_one_task(tasks):
    devices = [f"/job:worker/task:{t}/device:CPU:{i}" for t in range(tasks) for i in range(2)]
    job = network("momentum", number=24)
    model = built(job, tasks, device_list=devices)
    assert model.plan.workers == 2 * tasks
    with model.session(config=TWO_CPUS) as running:
        initial = running.variables()
        losses = [running.step(job.feed) for _ in range(3)]
    np.testing.assert_allclose(losses, run_on_one_device(job, initial, steps=3).losses, rtol=1e-12)
    assert model.traffic == planned_traffic(model.plan)
    assert sent_traffic(model, traced_step(model, job.feed, config=TWO_CPUS)) == model.traffic
    assert bool(model.traffic.bytes) == (tasks > 1)


def test_a_device_without_a_task_is_on_the_only_one():
    model = built(network(), 1, device_list=["/cpu:0", "/cpu:1"])
    assert model.plan.job.devices == (
        "/job:worker/task:0/device:CPU:0",
        "/job:worker/task:0/device:CPU:1",
    )


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["/job:worker/task:0", "/job:worker/task:2"], "'/job:worker/task:2'.*none of the cluster"),
        (["/job:ps/task:0"], "'/job:ps/task:0', which is on none"),
        (["/gpu:0", "/gpu:1"], "'/gpu:0', which is on none of the cluster's tasks: /job:worker"),
        (["/job:worker/task:0"] * 2, "names '/job:worker/task:0' more than once"),
        (["somewhere"], "'somewhere' is not a device name"),
        ([], "must be a list of device names"),
        ("/cpu:0", "device_list must be a list of texts, or None, not '/cpu:0'"),
    ],
)
def test_unknown_devices_are_refused(devices, message):
    with pytest.raises(CaramelError, match=message):
        built(network(), 2, device_list=devices)


def test_replicas_of_tasks_that_are_gone_move_to_those_with_the_fewest():
    tasks = [f"/job:worker/task:{number}" for number in range(5)]
    zero, _, two, _, four = tasks
    assert moved_replicas(tasks, [zero, two, four]) == (zero, zero, two, two, four)
    cpus = [f"{task}/device:CPU:0" for task in tasks[:3]]
    assert moved_replicas(cpus, [two]) == (cpus[2],) * 3
