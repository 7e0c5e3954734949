"""Peers whose computation is emulated: the same waits for all, each worker's its own."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peers import data
from benchmarks.peers.data import Case, Kernel, initial_values, kernels_of, prepared
from benchmarks.peers.plain import PLANNED
from benchmarks.peers.rank import Rank
from benchmarks.peers.validate import validate
from benchmarks.tests.beds import needs_namespaces
from caramel.cluster.processes import free_ports

# 14.4 microseconds on a K80 become some 50 ms.
CASE = Case("tiny", 4, steps=5, warm_up=1, timeout_s=200, accelerator="K80", slowdown=3500.0)
ASSIGNED = replace(CASE, updates="none")
EARLY_S = 1e-3  # what a wait may end before its time

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def plain(bed):
    peer = peers.get("plain")
    return peers.run(peer, bed, CASE, peer.settings()[0])


@pytest.fixture(scope="module")
def in_turn(bed):
    """Without updates: a plan and plain Caramel, whose blocks have alternated in one session."""
    first, plain = PLANNED.start_beside_plain(
        bed, ASSIGNED, {"pattern": "ring"}, {"pattern": "shuffle"}
    )
    with first:
        for number in (1, 2):
            assert len(first.block(2)) == len(plain.block(1)) + 1 == 2
            assert [len(each.step_s) for each in (first, plain)] == [2 * number, number]
        results = [plain.result(), first.result()]
    assert all(process.poll() is not None for process in first.run.processes)
    return results


def computation_s(case=CASE):
    kernels = kernels_of(prepared(case, 2).directory)
    return sum(kernel.forward_s + kernel.backward_s for kernel in kernels)


# On two hosts ------------------------------------------------------------------------------------


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("name", "setting", "case"),
    [
        ("alone", 0, CASE),
        ("parameter_servers", 1, CASE),
        ("mpi", 0, CASE),
        ("mirrored", 2, ASSIGNED),
    ],
)
def test_an_emulated_step_counts_and_takes_its_kernels_time(
    bed, plain, in_turn, name, setting, case
):
    peer = peers.get(name)
    if peer.available():
        pytest.skip(f"{name}: {peer.available()}")
    reference = plain if case is CASE else in_turn[0]
    results = [reference, peers.run(peer, bed, case, peer.settings()[setting])]
    assert [each.problems for each in validate(results)] == [(), ()]
    for result in results:
        assert min(result.step_s) > computation_s() - EARLY_S
        initial = initial_values(prepared(case, 2).directory)
        for parameter, value in result.read_parameters().items():
            assert not np.array_equal(value, initial[parameter])


@needs_namespaces
@pytest.mark.namespaces
def test_two_plans_take_turns_in_one_session(in_turn):
    assert [each.problems for each in validate(in_turn)] == [(), ()]
    assert [each.peer for each in in_turn] == ["plain", "planned"]
    assert [each.setting["pattern"] for each in in_turn] == ["shuffle", "ring"]
    assert [each.facts["plan"] for each in in_turn] == ["beside", "own"]
    assert all(min(each.step_s) > computation_s() - EARLY_S for each in in_turn)


def test_plans_take_turns_in_one_session_where_nothing_is_updated_only():
    with pytest.raises(peers.PeerError, match="nothing is updated"):
        PLANNED.start_beside_plain(None, CASE, {}, {})


# What is prepared --------------------------------------------------------------------------------


def test_cases_that_differ_in_how_they_are_run_share_what_is_prepared():
    assert prepared(ASSIGNED, 2) is prepared(replace(CASE, steps=7, warm_up=3), 2)


def test_layers_are_in_forward_order_and_have_all_the_time():
    kernels = kernels_of(prepared(CASE, 2).directory)
    assert [kernel.shapes for kernel in kernels] == [
        ((3, 3, 3, 8), (8,)),
        ((512, 512), (512,)),
        ((512, 10), (10,)),
    ]
    assert all(0 < kernel.forward_s < kernel.backward_s for kernel in kernels)
    assert 0.03 < computation_s() < 0.1


def test_layers_are_read_without_tensorflow(tmp_path):
    text = '[{"shapes": [[2, 3], [3]], "forward_s": 0.1, "backward_s": 0.2}]'
    (tmp_path / data.KERNELS).write_text(text)
    assert kernels_of(tmp_path) == [Kernel(((2, 3), (3,)), 0.1, 0.2)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"updates": "some"}, "updates are 'real' or 'none', not 'some'"),
        ({"slowdown": 0.0}, "a slowdown of 0.0 means nothing"),
        ({"accelerator": None}, "are for emulated accelerators; name one"),
    ],
)
def test_a_case_that_means_nothing_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        replace(CASE, **fields)


def test_large_constants_are_mapped_from_one_file(tmp_path):
    import tensorflow as tf

    from benchmarks.peers.emulated import map_constants

    shapes = {"small": (3,), "large": (50, 20), "larger": (2000,)}
    with tf.Graph().as_default() as graph:
        constants = [tf.constant(0.5, tf.float32, shape, name) for name, shape in shapes.items()]
        for constant in constants:  # takes a tensor that nobody else holds for its result
            tf.add(constant, 1.0, name=f"{constant.op.name}_plus_1")
    path = tmp_path / "values.bin"
    mapped = map_constants(graph.as_graph_def(), path, least_bytes=4000)
    np.testing.assert_array_equal(np.fromfile(path, np.float32), np.full(2000, 0.5, np.float32))
    assert [node.name for node in mapped.node if node.op == "ImmutableConst"] == [
        "large/mapped",
        "larger/mapped",
    ]
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(mapped, name="")
    sums = [f"{name}_plus_1:0" for name in shapes]
    config = tf.compat.v1.ConfigProto()  # as Caramel's: optimizers would fold the sums
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        for _ in range(3):
            for value, shape in zip(session.run(sums), shapes.values(), strict=True):
                np.testing.assert_array_equal(value, np.full(shape, 1.5, np.float32))


# Workers -----------------------------------------------------------------------------------------


def rank_of(case, number, workers):
    return Rank(case, {}, number, workers, "", str(prepared(case, 2).directory), {})


def test_a_step_without_updates_assigns_the_gradients():
    import tensorflow as tf

    from benchmarks.peers import graph

    job = graph.build(rank_of(ASSIGNED, 0, 1))
    with tf.compat.v1.Session(graph=job.graph) as session:
        graph.initialise(session, job)
        gradients = session.run([gradient for gradient, _ in job.gradients])
        graph.step_of(session, job)()
        for gradient, value in zip(gradients, session.run(job.parameters).values(), strict=True):
            np.testing.assert_array_equal(value, gradient)


def step_of(case, number, cluster, server):
    """One worker's step on a parameter server's variables."""
    import tensorflow as tf

    from benchmarks.peers import graph

    task = f"/job:worker/task:{number}"
    place = tf.compat.v1.train.replica_device_setter(cluster=cluster, worker_device=task)
    job = graph.build(rank_of(case, number, 2), task=task, device=place)
    session = tf.compat.v1.Session(server.target, graph=job.graph)
    return job, session, session.make_callable([gradient for gradient, _ in job.gradients])


def test_workers_of_parameter_servers_compute_at_the_same_time():
    import tensorflow as tf

    from benchmarks.peers import graph

    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    cluster = tf.train.ClusterSpec({"ps": addresses[:1], "worker": addresses[1:]})
    tasks = [("ps", 0), ("worker", 0), ("worker", 1)]
    servers = [tf.distribute.Server(cluster, job_name=job, task_index=i) for job, i in tasks]
    case = replace(CASE, slowdown=210e3)  # even a busy machine adds little to such a step
    made = [step_of(case, number, cluster, servers[number + 1]) for number in range(2)]
    for number, (job, session, _) in enumerate(made):
        graph.initialise(session, job, chief=number == 0)
        emulation = [op for op in job.graph.get_operations() if op.name.startswith("emulation/")]
        assert {op.device for op in emulation} == {f"/job:worker/task:{number}"}
        assert {v.device for v in job.parameters.values()} == {"/job:ps/task:0"}

    threads = [threading.Thread(target=step) for _, _, step in made]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.perf_counter() - begin < 2 * computation_s(case)
