"""Emulated accelerators: the same job, with waits in place of kernels."""

from __future__ import annotations

import dataclasses
import functools
import time

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given

import caramel
from benchmarks import networks as papers
from benchmarks.emulate import (
    DEVICES,
    EmulationError,
    emulate,
    flops_times,
    kernel_times,
    traced_times,
)
from benchmarks.emulate.flops import flops_of
from benchmarks.emulate.merge import contract, gather_times
from benchmarks.emulate.region import computation
from caramel.core.errors import FeedError
from tests.support.networks import (
    frontier_of,
    inputs,
    network,
    optimized,
    parameter,
    state_of,
    tied,
)

tf1 = tf.compat.v1

# What a step may take beyond its kernels: 3 % for waits that end late and 20 ms for what is real (a
# call to the server, updates) on a machine that others use too.
RELATIVE, ABSOLUTE_S = 0.03, 0.02

TOTAL_S = 0.4  # of the kernels of a step, in jobs that several tests use

JOBS = {
    "momentum": lambda: network("momentum", dtype=tf.float32),
    "adam": lambda: network("adam", dtype=tf.float32),
    "clip": lambda: network("gradient_descent", "clip_by_global_norm"),
    "tied": lambda: network("momentum", "decay", model=tied, decayed_loss=True),
    "resnet_v2_50": lambda: papers.build("resnet_v2_50", batch=4, image=8),
    "inception_v1": lambda: papers.build("inception_v1", batch=4, image=16),
    "seq_32": lambda: papers.build("seq_32", batch=4),
}


@functools.cache
def job_of(name):
    return JOBS[name]()


@functools.cache
def context_of(name):
    return job_of(name).context()


@functools.cache
def emulated_of(name):
    return emulate(context_of(name), TOTAL_S)


@pytest.fixture(autouse=True, scope="module")
def fixture_forgotten():
    """The jobs go when the tests of this file are over."""
    yield
    for cached in (job_of, context_of, emulated_of):
        cached.cache_clear()


def branches(count):
    """A job whose loss is a sum of independent products, `product_0` to `product_{count - 1}`."""
    with tf.Graph().as_default() as graph:
        x, _, _ = inputs(8, tf.float32)
        products = [
            tf.matmul(x, parameter(f"w{n}", [6, 5], tf.float32), name=f"product_{n}")
            for n in range(count)
        ]
        loss = tf.add_n([tf.reduce_mean(product) for product in products])
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    return caramel.Context(graph, train_op=train_op, loss=loss)


def assigned_after_a_tenth_of_a_second():
    """An op that changes a variable; the dataset sleeps before its element and before its end."""
    variable = tf1.get_variable("late", [], tf.int64, trainable=False, use_resource=True)
    data = tf.data.Dataset.from_tensors(np.int64(1))
    data = tf.raw_ops.SleepDataset(
        input_dataset=data._variant_tensor,
        sleep_microseconds=tf.constant(50_000, tf.int64),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    element = tf.raw_ops.DatasetToSingleElement(
        dataset=data, output_types=[tf.int64], output_shapes=[[]]
    )
    return variable.assign_add(element[0], read_value=False)


def seconds_of_steps(session, steps=5):
    """The shortest of some steps, after the first: its wall clock and processor time, in s."""
    session.step()
    times = []
    for _ in range(steps):
        wall, processor = time.perf_counter(), time.process_time()
        session.step()
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    return min(times)


def kernel_spans(context, steps=1, devices=1):
    """Of each step, the kernels with their begin and end in seconds, in the order of their ends."""
    config = tf1.ConfigProto(device_count={"CPU": devices})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    spans = []
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(context.graph_def, name="")
        with tf1.Session(graph=graph, config=config) as session:
            session.run([variable.initializer for variable in context.job.variables])
            options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
            for _ in range(steps):
                metadata = tf1.RunMetadata()
                session.run(context.job.train_op, options=options, run_metadata=metadata)
                spans.append(sorted(_spans(metadata), key=lambda span: span[2]))
    return spans


def _spans(metadata):
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            if node.node_name.endswith("/emulated/slept"):
                begin = (node.all_start_micros + node.op_start_rel_micros) * 1e-6
                end = (node.all_start_micros + node.op_end_rel_micros) * 1e-6
                yield node.node_name.removesuffix("/emulated/slept"), begin, end


# Time -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["seq_32", "inception_v1"])
def test_a_step_takes_the_sum_of_its_kernels(name):
    with caramel.ARModel(emulated_of(name), workers=1).session() as session:
        wall, processor = seconds_of_steps(session)
    assert TOTAL_S * (1 - RELATIVE) < wall < TOTAL_S * (1 + RELATIVE) + ABSOLUTE_S
    assert processor < 0.7 * wall  # it sleeps: who counts the time away takes all of it


def test_ready_kernels_take_turns_on_a_device():
    context = emulate(branches(2), {"product_0": 0.05, "product_1": 0.05})
    steps = kernel_spans(context, steps=5)
    for (_, _, end), (_, begin, _) in steps:
        assert begin >= end - 1e-5
    # A kernel that begins late, because the one before it woke up late, still ends on time.
    assert max(last - begin for _, (_, begin, last) in steps) > 0.045
    with caramel.ARModel(context, workers=1).session() as session:
        wall, _ = seconds_of_steps(session)
    assert 0.1 * (1 - RELATIVE) < wall < 0.1 * (1 + RELATIVE) + ABSOLUTE_S


def test_kernels_of_different_devices_overlap():
    with tf.Graph().as_default() as graph:
        x, _, _ = inputs(8, tf.float32)
        losses = []
        for number in range(2):
            with tf.device(f"/device:CPU:{number}"):
                w = parameter(f"w{number}", [6, 5], tf.float32)
                losses.append(tf.reduce_mean(tf.matmul(x, w, name=f"product_{number}")))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(tf.add_n(losses))
    context = caramel.Context(graph, train_op=train_op, loss=losses[0])
    emulated = emulate(context, {"product_0": 0.1, "product_1": 0.1})
    for first, second in kernel_spans(emulated, steps=2, devices=2):
        assert abs(first[1] - second[1]) < 0.05


def test_the_order_of_ready_kernels_is_left_open():
    context = emulate(branches(8), {f"product_{n}": 0.002 for n in range(8)})
    orders = set()
    for _ in range(10):  # on a busy machine it may stay the same for a while
        steps = kernel_spans(context, steps=60)
        orders |= {tuple(name for name, _, _ in spans) for spans in steps}
        if len(orders) > 1:
            break
    assert len(orders) > 1


def test_a_kernel_waits_for_its_parameter():
    with tf.Graph().as_default() as graph:
        x, _, _ = inputs(8, tf.float32)
        w = parameter("w", [6, 5], tf.float32)
        with tf.control_dependencies([assigned_after_a_tenth_of_a_second()]):
            value = w.read_value()
        loss = tf.reduce_mean(tf.matmul(x, value, name="product"))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = emulate(caramel.Context(graph, train_op=train_op, loss=loss), {"product": 0.1})
    with caramel.ARModel(context, workers=1).session() as session:
        wall, _ = seconds_of_steps(session)
    assert 0.2 * (1 - RELATIVE) < wall < 0.2 * (1 + RELATIVE) + ABSOLUTE_S


def test_times_of_a_trace_become_waits():
    spans = kernel_spans(emulate(branches(1), {"product_0": 0.03}))[0]
    assert [name for name, _, _ in spans] == ["product_0"]
    metadata = tf1.RunMetadata()
    metadata.step_stats.dev_stats.add().node_stats.add(
        node_name="product_0", op_start_rel_micros=10, op_end_rel_micros=30_010
    )
    assert traced_times(metadata) == {"product_0": pytest.approx(0.03)}


# What is kept -----------------------------------------------------------------------------------


def parameters_behind(context):
    """Of each parameter's gradient, the parameters that have to be read before."""
    readers = {v.handle: v.name for v in context.job.variables if v.trainable}
    graph = context.op_graph
    behind = {}
    for cut in frontier_of(context).cuts:
        ancestors = graph.ancestors([cut.gradient.values.op])
        behind[cut.gradient.parameter] = {
            name for handle, name in readers.items() if handle in ancestors
        }
    return behind


def gradients_behind(context, marks):
    """Of each gradient, those that are complete before; `marks` names the op that says so."""
    graph = context.op_graph
    ops = {c.gradient.parameter: marks(c.gradient.values.op) for c in frontier_of(context).cuts}
    behind = {}
    for name, op in ops.items():
        ancestors = graph.ancestors([op])
        behind[name] = {other for other, mark in ops.items() if mark in ancestors}
    return behind


@pytest.mark.parametrize("job", [name for name in JOBS if name != "seq_32"])
def test_everything_but_the_computation_is_kept(job):
    context, emulated = context_of(job), emulated_of(job)
    assert emulated.job.variables == context.job.variables
    # Constants stand for gradients: nothing is added to them, and they have no factors.
    cuts = tuple(dataclasses.replace(cut, shared=()) for cut in frontier_of(context).cuts)
    assert frontier_of(emulated) == dataclasses.replace(frontier_of(context), cuts=cuts)
    before, after = state_of(context), state_of(emulated)
    for kind in ("parameters", "shared", "local"):
        assert getattr(after, kind) == getattr(before, kind)
    assert after.worker_dependent
    plan, emulated_plan = (caramel.ARModel(c, workers=2).plan for c in (context, emulated))
    assert emulated_plan.decision.groups == plan.decision.groups
    assert emulated_plan.job.local == plan.job.local
    assert all(gradient.factors is None for gradient in emulated_plan.job.gradients)
    without = tuple(dataclasses.replace(each, factors=None) for each in plan.job.gradients)
    assert emulated_plan.job.gradients == without
    groups = plan.decision.groups
    assert list(map(emulated_plan.bytes, groups)) == list(map(plan.bytes, groups))
    for cut in frontier_of(context).cuts:
        spec = emulated.op_graph.spec(cut.gradient.values)
        variable = context.job.variable(cut.gradient.parameter)
        assert (spec.dtype, spec.shape) == (variable.spec.dtype, variable.spec.shape)
        for name in cut.consumers:
            assert emulated.op_graph[name].inputs == context.op_graph[name].inputs


@pytest.mark.parametrize("job", [name for name in JOBS if name != "seq_32"])
def test_dependencies_of_gradients_are_kept(job):
    context, emulated = context_of(job), emulated_of(job)
    assert parameters_behind(emulated) == parameters_behind(context)
    original = gradients_behind(context, lambda op: op)
    assert gradients_behind(emulated, lambda op: f"{op}/emulated") == original


def test_kernels_are_few_and_their_sum_is_the_total():
    context, emulated = context_of("resnet_v2_50"), emulated_of("resnet_v2_50")
    seconds = [
        node.attr["value"].tensor.double_val[0]
        for node in emulated.graph_def.node
        if node.name.endswith("/emulated/seconds")
    ]
    assert sum(seconds) == pytest.approx(TOTAL_S)
    assert min(seconds) >= 0.002
    assert len(seconds) <= TOTAL_S / 0.002
    assert len(seconds) < len(computation(context).order) / 5


def test_kernels_of_an_emulated_job_are_known_without_a_trace():
    emulated = emulate(branches(2), {"product_0": 0.25, "product_1": 0.5})
    times = kernel_times(emulated)
    assert sorted(times.values()) == [0.25, 0.5]
    assert all(emulated.op_graph[name].kind == "DatasetToSingleElement" for name in times)


def test_parameters_reach_their_kernels_as_data():
    emulated = emulate(network("momentum").context(), 0.1)
    graph = emulated.op_graph
    reads = [op.name for op in graph if op.kind == "ReadVariableOp"]
    step = graph.ancestors([emulated.job.train_op])
    for name in reads:
        if name in step:
            assert any(
                name in [tensor.op for tensor in graph[reader].inputs]
                for reader in graph.consumers[name]
            )


# Training ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "updates"), [("resnet_v2_50", "real"), ("inception_v1", "none")])
def test_an_emulated_job_trains_on_two_workers(name, updates):
    job = job_of(name)
    real = updates == "real"
    context = emulated_of(name) if real else emulate(context_of(name), 0.1, updates=updates)
    model = caramel.ARModel(context, workers=2, check=True)
    gradient = job.gradients[0][0].name
    with model.session() as session:
        before = session.variables()
        values = session.step(fetches=[gradient])[0]  # one on each worker
        after = [session.variables(worker=worker) for worker in range(2)]
    assert np.asarray(values).shape == (2, *job.gradients[0][1].shape)
    for parameter_name in state_of(context).parameters:
        assert not np.array_equal(before[parameter_name], after[0][parameter_name])
        np.testing.assert_array_equal(after[0][parameter_name], after[1][parameter_name])
        if not real:
            np.testing.assert_allclose(after[0][parameter_name], 1e-3, rtol=1e-6)


def test_inputs_are_left_out_or_kept():
    job, context = job_of("seq_32"), context_of("seq_32")
    assert "examples" not in emulated_of("seq_32").op_graph
    kept = emulate(context, 0.05, inputs="keep")
    with caramel.ARModel(kept, workers=2).session() as session:
        session.step(job.feed())
        with pytest.raises(FeedError, match="nothing is fed for"):
            session.step()


def test_sparse_gradients_keep_their_rows():
    with tf.Graph().as_default() as graph:
        ids = tf1.placeholder(tf.int32, [None, 3])
        table = parameter("table", [10, 4], tf.float32)
        rows = tf.gather(table, ids)
        loss = tf.reduce_mean(tf.square(rows))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with pytest.raises(EmulationError, match="say with batch= how many examples"):
        emulate(context, 0.01)
    emulated = emulate(context, 0.01, batch=2)
    cut, original = frontier_of(emulated).cuts[0], frontier_of(context).cuts[0]
    assert cut == original
    assert emulated.op_graph.spec(cut.gradient.values).shape == (6, 4)
    with caramel.ARModel(emulated, workers=2).session() as session:
        assert np.isfinite(session.step())


# Arithmetic -------------------------------------------------------------------------------------


def test_arithmetic_is_counted_from_shapes():
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder(tf.float32, [None, 8, 8, 3], name="x")
        w = parameter("w", [3, 3, 3, 5], tf.float32)
        y = tf.nn.conv2d(x, w, strides=2, padding="SAME", name="conv")
        y = tf.reshape(y, [-1, 4 * 4 * 5])
        loss = tf.reduce_mean(tf.matmul(y, parameter("v", [80, 7], tf.float32), name="product"))
        train_op = tf1.train.GradientDescentOptimizer(0.1).minimize(loss)
    counted = flops_of(caramel.Context(graph, train_op=train_op, loss=loss), batch=2)
    convolution, product = 2 * (2 * 4 * 4 * 5) * (3 * 3 * 3), 2 * 2 * 80 * 7
    assert counted["conv"] == convolution
    assert counted["product"] == product
    assert counted["gradients/conv_grad/Conv2DBackpropFilter"] == convolution
    assert counted["gradients/product_grad/MatMul_1"] == product


@pytest.mark.parametrize(
    ("name", "batch", "images_per_s"), [("resnet_v1_50", 64, 51.9), ("vgg_16", 32, 35.4)]
)
def test_a_k80_is_about_as_fast_as_it_was_measured(name, batch, images_per_s):
    times = flops_times(papers.build(name).context(), device="K80", batch=batch)
    assert batch / sum(times.values()) == pytest.approx(images_per_s, rel=0.15)


def test_faster_devices_take_less_time():
    context = papers.build("alexnet_v2").context()
    totals = [
        sum(flops_times(context, device=d, batch=8).values()) for d in ("K80", "V100", "H100")
    ]
    assert totals == sorted(totals, reverse=True)
    assert set(DEVICES) >= {"K80", "T4", "V100", "H100"}


# Mistakes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ({"nothing": 1.0}, "'nothing', which is not an op of the graph"),
        ({"product_0": -1.0}, "'product_0' cannot take -1.0 s"),
        (float("nan"), "a step cannot take nan s"),
    ],
)
def test_wrong_times_are_refused(times, message):
    with pytest.raises(EmulationError, match=message):
        emulate(branches(1), times)


def test_an_unknown_device_is_refused():
    with pytest.raises(EmulationError, match="there is no device 'abacus'; there are K80, "):
        flops_times(branches(1), device="abacus", batch=2)


def test_a_loop_inside_the_computation_is_refused(control_flow):
    control_flow(False)
    with tf.Graph().as_default() as graph:
        x, _, _ = inputs(8, tf.float32)
        w = parameter("w", [6, 6], tf.float32)
        y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ w), [0, x])[1]
        loss = tf.reduce_mean(y)
        train_op, _ = optimized(loss, lambda step: tf1.train.GradientDescentOptimizer(0.1))
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    with pytest.raises(EmulationError, match="part of a v1 loop or conditional"):
        emulate(context, 0.1)


# Joining kernels --------------------------------------------------------------------------------


def test_short_kernels_hand_their_time_on():
    before = {"a": [], "b": ["a"], "c": ["b"], "d": ["b"]}
    seconds = {"a": 0.001, "b": 0.0015, "c": 0.003, "d": 0.0005}
    devices = dict.fromkeys(before, "")
    waits = gather_times(list(before), before, seconds, devices, 0.002)
    assert waits == {"b": pytest.approx(0.003), "c": 0.003}  # d's go back to b


def test_time_stays_on_its_device():
    before = {"a": [], "b": ["a"]}
    waits = gather_times(["a", "b"], before, {"a": 0.001}, {"a": "/gpu:0", "b": "/gpu:1"}, 0.002)
    assert waits == {"a": 0.001}


def test_what_takes_no_time_drops_out():
    before = {"a": [], "b": ["a"], "c": ["b"], "d": ["a", "b", "c"]}
    assert contract(list(before), before, {"a", "d"}) == {"a": (), "d": ("a",)}


@st.composite
def graphs(draw):
    """An acyclic graph, and which of its ops are needed."""
    size = draw(st.integers(1, 9))
    names = [f"op{n}" for n in range(size)]
    before = {
        name: draw(st.lists(st.sampled_from(names[:n]), unique=True)) if n else []
        for n, name in enumerate(names)
    }
    return before, draw(st.sets(st.sampled_from(names)))


def reachable(before, name):
    found = set()
    for source in before[name]:
        found |= {source} | reachable(before, source)
    return found


@given(graphs())
def test_joining_keeps_what_waits_for_what(graph):
    before, needed = graph
    after = contract(list(before), before, needed)
    assert needed <= set(after)
    for name in after:
        assert reachable(after, name) & needed == reachable(before, name) & needed


@given(graphs(), st.lists(st.floats(0, 0.005), min_size=9, max_size=9))
def test_joining_loses_no_time(graph, seconds):
    before, _ = graph
    times = dict(zip(before, seconds, strict=False))
    waits = gather_times(list(before), before, times, dict.fromkeys(before, ""), 0.002)
    assert sum(waits.values()) == pytest.approx(sum(times.values()))
