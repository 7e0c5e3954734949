"""Times of ops: what a trace says of each op, and steps that are really traced."""

from __future__ import annotations

import time

import numpy as np
import pytest

import caramel
from caramel.core.errors import ProfileError
from caramel.core.graph import Op, OpGraph
from caramel.core.time_facts import TimingTable
from caramel.core.util import disk_cache as kept
from caramel.profiling import ops as profiler
from caramel.profiling.ops import profile_steps
from caramel.runtime.traces.op_times import op_seconds, timing_table
from tests.support import networks
from tests.support.networks import tf, tf1

CPU, GPU = "/job:localhost/replica:0/task:0/device:CPU:0", "/device:GPU:0"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(kept.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


# What a trace says ------------------------------------------------------------------------------


def graph_of(*names, calls=()):
    ops = [Op(name, "Kind", "", (), ()) for name in names]
    ops += [Op(name, "While", "", (), (), functions=("body",)) for name in calls]
    return OpGraph({op.name: op for op in ops})


def stats_of(devices):
    """StepStats from device to (node name, milliseconds[, label])."""
    stats = tf1.RunMetadata().step_stats
    for name, nodes in devices.items():
        device = stats.dev_stats.add(device=name)
        for node, milliseconds, *label in nodes:
            device.node_stats.add(
                node_name=node,
                timeline_label=label[0] if label else "",
                op_start_rel_nanos=1000,
                op_end_rel_nanos=1000 + round(milliseconds * 1e6),
            )
    return stats


def milliseconds(devices, graph):
    found = op_seconds(stats_of(devices), graph)
    return {op: pytest.approx(seconds * 1e3) for op, seconds in found.items()}


def test_ops_on_a_cpu_have_their_wall_time():
    stats = {CPU: [("_SOURCE", 1), ("a", 2, "a = Kind()"), ("b/c", 3), ("zero", 0)]}
    assert milliseconds(stats, graph_of("a", "b/c", "zero", "idle")) == {"a": 2, "b/c": 3}


def test_an_op_that_runs_again_has_the_sum():
    assert milliseconds({CPU: [("a", 2), ("a", 3)]}, graph_of("a")) == {"a": 5}


def test_kernels_on_a_gpu_count_in_place_of_what_starts_them():
    stats = {
        "/job:localhost/replica:0/task:0/device:GPU:0": [("conv", 0.1), ("mul", 0.2)],
        f"{GPU}/stream:all": [("conv:Conv2D", 4), ("conv:Conv2D", 1)],
        f"{GPU}/stream:13": [("conv:Conv2D", 4)],
        f"{GPU}/stream:14": [("conv:Conv2D", 1)],
        f"{GPU}/memcpy": [("mul:MEMCPYHtoD", 7)],
        CPU: [("input", 3)],
    }
    expected = {"conv": 5, "mul": 0.2, "input": 3}
    assert milliseconds(stats, graph_of("conv", "mul", "input")) == expected


def test_single_streams_count_where_there_is_no_sum_of_them():
    stats = {
        "/gpu:0/stream:13": [("conv:Conv2D", 4)],
        "/gpu:0/stream:14": [("conv:Conv2D", 1)],
        "/gpu:1/stream:13": [("mul:Mul", 1)],
        "/gpu:1/stream:all": [("mul:Mul", 1)],
    }
    assert milliseconds(stats, graph_of("conv", "mul")) == {"conv": 5, "mul": 1}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("scope/conv:Conv2D", ""),
        ("scope/conv:Conv2D#id=3#", ""),
        ("volta_sgemm", "volta_sgemm@@scope/conv:Conv2D#id1"),
        ("volta_sgemm", "volta_sgemm@@scope/conv"),
        ("scope/conv", "anything at all"),
        ("scope/conv;more", ""),
    ],
)
def test_names_of_kernels_lead_to_their_op(name, label):
    stats = {f"{GPU}/stream:all": [(name, 2, label), ("nobody:Knows", 5), ("MEMCPYDtoH", 1)]}
    assert milliseconds(stats, graph_of("scope/conv", "conv")) == {"scope/conv": 2}


def test_what_runs_inside_of_a_call_counts_for_it():
    stats = {
        CPU: [
            ("loop/body/_1/add", 2),
            ("Func/loop/body/_1/input/_3", 1),
            ("loop/Identity", 4),
            ("other/body/add", 8),
            ("call", 7),
            ("call/inner", 6),
        ]
    }
    graph = graph_of("loop/Identity", "other", calls=("loop", "call"))
    assert milliseconds(stats, graph) == {"loop": 3, "loop/Identity": 4, "call": 7}


def test_old_traces_have_microseconds_only():
    stats = tf1.RunMetadata().step_stats
    node = stats.dev_stats.add(device=CPU).node_stats.add(node_name="a")
    node.op_start_rel_micros, node.op_end_rel_micros = 5, 25
    assert op_seconds(stats, graph_of("a")) == {"a": pytest.approx(20e-6)}


def test_the_least_time_counts_and_the_error_of_half_the_steps_is_told():
    steps = [{"a": 3.0, "b": 1.0}, {"a": 2.0, "b": 4.0}, {"a": 1.0, "b": 5.0}, {"a": 9.0, "c": 1.0}]
    # After two steps 2 + 1; after four 1 + 1 + 1.
    assert timing_table(steps) == TimingTable({"a": 1.0, "b": 1.0, "c": 1.0}, 4, 0.0)
    assert timing_table([{"a": 3.0}, {"a": 2.0}]).error == pytest.approx(0.5)
    assert timing_table([{"a": 3.0}]).error is None
    assert timing_table([{}, {}]).error is None


# Steps that are traced --------------------------------------------------------------------------


def convolutions():
    """A network whose convolution and multiplication take most of the time."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 32, 32, 8], name="x")
        kernel = tf1.get_variable("kernel", [3, 3, 8, 16])
        weight = tf1.get_variable("weight", [32 * 32 * 16, 10])
        hidden = tf.nn.relu(tf.nn.conv2d(x, kernel, 1, "SAME", name="conv"))
        logits = tf.matmul(tf.reshape(hidden, [-1, 32 * 32 * 16]), weight, name="dense")
        loss = tf.reduce_mean(tf.square(logits))
        train_op = tf1.train.AdamOptimizer(0.01).minimize(loss)
    return caramel.Context(graph, train_op=train_op, loss=loss)


def images(examples=16):
    return {"x:0": np.random.RandomState(0).rand(examples, 32, 32, 8).astype(np.float32)}


def test_times_of_a_real_network():
    context = convolutions()
    calls = []
    timing = profile_steps(context, feed=images(), progress=lambda *done: calls.append(done))
    assert calls[-1] == (12, 12)
    assert timing.steps == 10
    assert 0.0 <= timing.error < 10.0
    assert all(op in context.op_graph and seconds > 0 for op, seconds in timing.seconds.items())
    kinds = {context.op_graph[op].kind: timing.seconds[op] for op in timing.seconds}
    for kind in ("Conv2D", "Conv2DBackpropFilter", "MatMul", "ResourceApplyAdam"):
        assert kinds[kind] > 0.0
    assert timing.seconds["conv"] > timing.seconds.get("kernel/Assign", 0.0)

    with tf.Graph().as_default() as graph:  # the whole step, one op at a time
        tf.graph_util.import_graph_def(context.graph_def, name="")
        with tf1.Session(graph=graph, config=profiler._config(None)) as session:
            session.run([graph.get_operation_by_name(v.initializer) for v in context.job.variables])
            train = graph.get_operation_by_name(context.job.train_op)
            seconds = []
            for _ in range(5):
                begin = time.perf_counter()
                session.run(train, images())
                seconds.append(time.perf_counter() - begin)
            # What the graph does not know the size of, as it is when it is fetched.
            known = context.op_graph
            step = known.ancestors([context.job.train_op, context.job.loss.op])
            tensors = [
                f"{op.name}:{slot}"
                for op in known
                for slot, spec in enumerate(op.outputs)
                if op.name in step and spec.bytes is None and spec.dtype != "resource"
            ]
            assert len(tensors) > 10
            values = session.run(tensors, images())
    sizes = {tensor: value.nbytes for tensor, value in zip(tensors, values, strict=True)}
    assert timing.traced_bytes == sizes
    # Far apart, because the machine may be busy: that they are of the same order is all.
    assert 0.02 < sum(timing.seconds.values()) / min(seconds) < 20.0


def test_the_users_graph_and_variables_are_untouched():
    job = networks.built_network("momentum")
    with job.graph.as_default(), tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        values = session.run(tf1.global_variables())
        before = job.graph.as_graph_def()
        profile_steps(job.context(), feed=job.feed, steps=2)
        assert job.graph.as_graph_def() == before
        for value, other in zip(values, session.run(tf1.global_variables()), strict=True):
            np.testing.assert_array_equal(value, other)


def no_session(*args, **kwargs):
    raise AssertionError("nothing has to run")


def test_a_second_call_runs_nothing(monkeypatch):
    context = convolutions()
    first = profile_steps(context, feed=images(2), steps=2)
    monkeypatch.setattr(profiler.tf1, "Session", no_session)
    assert profile_steps(context, feed=images(2), steps=2) == first
    assert profile_steps(convolutions(), feed=images(2), steps=2) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda: (networks.network("adam"), {}),
        lambda: (networks.network(), {"steps": 3}),
        lambda: (networks.network(), {"device": "/CPU:0"}),
        lambda: (networks.network(), {"use_cache": False}),
        lambda: (networks.network(), {"config": tf1.ConfigProto(intra_op_parallelism_threads=1)}),
        lambda: (networks.network(number=4), {}),
        lambda: (networks.network(process="clip_by_norm"), {}),
    ],
)
def test_anything_else_is_traced_anew(monkeypatch, change):
    job = networks.network()
    profile_steps(job.context(), feed=job.feed, steps=2)
    other, options = change()
    monkeypatch.setattr(profiler.tf1, "Session", no_session)
    with pytest.raises(AssertionError, match="nothing has to run"):
        profile_steps(other.context(), **{"feed": other.feed, "steps": 2, **options})


def test_a_damaged_kept_result_is_traced_anew(cache):
    job = networks.network()
    first = profile_steps(job.context(), feed=job.feed, steps=2)
    (file,) = cache.iterdir()
    file.write_text("{")
    again = profile_steps(job.context(), feed=job.feed, steps=2)
    assert set(again.seconds) == set(first.seconds)
    assert profile_steps(job.context(), feed=job.feed, steps=2) == again


def test_a_feed_may_be_a_function_of_the_step():
    job, steps = networks.network(), []

    def feed(step):
        steps.append(step)
        return job.feed

    profile_steps(job.context(), feed=feed, steps=3)
    assert sorted(set(steps)) == [0, 1, 2, 3, 4]


def test_what_must_be_fed_is_named():
    job = networks.network()
    with pytest.raises(ProfileError, match=r"placeholder 'x' must be fed.*feed=\{'x:0'"):
        profile_steps(job.context())
    with pytest.raises(ProfileError, match="placeholder 'y'"):
        profile_steps(job.context(), feed={"x:0": job.feed["x:0"]})
    with pytest.raises(ProfileError, match="0 steps"):
        profile_steps(job.context(), feed=job.feed, steps=0)


def test_a_device_that_is_not_there_is_named():
    job = networks.network()
    with pytest.raises(ProfileError, match=r"no device '/GPU:7' here; there are /CPU:0"):
        profile_steps(job.context(), feed=job.feed, device="/GPU:7")


def test_ops_placed_on_a_worker_run_here():
    with tf.Graph().as_default() as graph, tf.device("/job:worker/task:3/device:CPU:0"):
        x, y, feed = networks.inputs(12)
        loss = networks.cross_entropy(networks.perceptron(x), y)
        train_op, raw = networks.optimized(loss, networks.OPTIMIZERS["adam"])
    job = networks.Network(graph, train_op, loss, feed, raw)
    assert profile_steps(job.context(), feed=job.feed, steps=1).seconds


def test_the_time_inside_loops_and_calls_counts_for_them(control_flow):
    for v2 in (True, False):
        control_flow(v2)

        def looped(x):
            again = tf.while_loop(
                lambda i, a: i < 5, lambda i, a: (i + 1, tf.tanh(a)), [0, x], name="loop"
            )[1]
            called = tf.function(lambda a: tf.tanh(a))(again)
            return networks.perceptron(tf.cond(tf.reduce_sum(x) > 0, lambda: called, lambda: -x))

        job = networks.network(model=looped)
        context = job.context()
        timing = profile_steps(context, feed=job.feed, steps=2)
        kinds = {context.op_graph[op].kind for op in timing.seconds}
        assert "PartitionedCall" in kinds or "StatefulPartitionedCall" in kinds
        assert ({"StatelessWhile", "While"} if v2 else {"Enter"}) & kinds


# Pipelines --------------------------------------------------------------------------------------


def pipeline_job(elements, *, batch=4, fed=False):
    with tf.Graph().as_default() as graph:
        count = tf1.placeholder(tf.int64, [], name="count") if fed else elements
        dataset = tf.data.Dataset.range(count).batch(batch, drop_remainder=True)
        iterator = tf1.data.make_initializable_iterator(dataset)
        x = tf.cast(iterator.get_next(), tf.float32)[:, None]
        weight = tf1.get_variable("w", [1, 1])
        loss = tf.reduce_mean(tf.square(x @ weight))
        train_op = tf1.train.GradientDescentOptimizer(1e-6).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    return context, iterator.initializer


def test_pipelines_are_started_and_start_again_when_they_end():
    context, initializer = pipeline_job(12)  # 3 steps
    timing = profile_steps(context, steps=5)
    assert timing.steps == 5
    assert "IteratorGetNext" in timing.seconds
    assert profile_steps(context, steps=2, initializers=[initializer]).steps == 2


def test_a_pipeline_that_is_empty_is_an_error():
    context, _ = pipeline_job(2)
    with pytest.raises(ProfileError, match="no element for a single step.*MakeIterator"):
        profile_steps(context)


def test_a_pipeline_that_nothing_starts_is_an_error():
    context, _ = pipeline_job(12)
    with pytest.raises(tf.errors.FailedPreconditionError):
        profile_steps(context, initializers=[])


def test_what_pipelines_are_fed_when_they_start():
    context, _ = pipeline_job(0, fed=True)
    with pytest.raises(ProfileError, match="placeholder 'count' must be fed"):
        profile_steps(context)
    assert profile_steps(context, feed={"count:0": 12}, steps=5).steps == 5
