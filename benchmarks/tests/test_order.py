"""The benchmark of orders: what it counts, and that a quick run is valid."""

from __future__ import annotations

import io
import json
from itertools import combinations

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given
from rich.console import Console

from benchmarks import order
from benchmarks.order_client import SERVER, WORKER, arrivals, emulated, measure, placed
from benchmarks.results import Row
from benchmarks.testbed import missing
from caramel.cluster.servers import embedded_servers
from tests.support.commands import quick_benchmark

orders = st.integers(0, 8).flatmap(
    lambda n: st.tuples(st.permutations(range(n)), st.permutations(range(n)))
)


@given(orders)
def test_the_distance_is_the_share_of_pairs_that_stand_the_other_way_round(both):
    one, other = both
    pairs = list(combinations(sorted(one), 2))
    swapped = [(one.index(a) < one.index(b)) != (other.index(a) < other.index(b)) for a, b in pairs]
    expected = sum(swapped) / len(pairs) if pairs else 0.0
    assert order.kendall_distance(one, other) == pytest.approx(expected)
    assert order.kendall_distance(other, one) == pytest.approx(expected)


def test_a_reversed_order_has_distance_one():
    assert order.kendall_distance([0, 1, 2, 3], [3, 2, 1, 0]) == 1.0


def test_orders_of_different_things_have_no_distance():
    with pytest.raises(ValueError, match="different things"):
        order.kendall_distance([0, 1], [0, 2])


def test_unique_orders_are_counted_and_times_summed_up():
    steps = [[[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [2, 1, 0]]]
    found = order.statistics(steps, [1.0, 2.0, 3.0])
    assert (found["traced_steps"], found["unique_orders"]) == (3, 2)
    assert found["steps_with_several_orders"] == 1
    assert found["distances_to_first"] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert found["spread_s"] == pytest.approx(1.8)
    assert (found["median_s"], found["max_s"], found["variation"]) == (2.0, 3.0, 0.5)


def traced(*transfers):
    metadata = tf.compat.v1.RunMetadata()
    stats = metadata.step_stats.dev_stats.add(device="/job:worker/replica:0/task:0/device:CPU:0")
    for op, source, target, begin_us, taken_us in transfers:
        devices = [f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in (source, target)]
        stats.node_stats.add(
            node_name="RecvTensor",
            all_start_micros=begin_us,
            all_end_rel_micros=taken_us,
            timeline_label=f"[1.0MB] [1.3Gb/s] edge_12_{op} from {devices[0]} to {devices[1]}",
        )
    return metadata


def test_a_parameter_has_arrived_with_its_last_transfer_to_worker_0():
    metadata = traced(
        ("a/chunk", 1, 0, 10, 5),
        ("b/chunk", 1, 0, 11, 6),
        ("a/sum", 1, 0, 12, 10),
        ("b/sum", 0, 1, 12, 90),
        ("other", 1, 0, 12, 90),
    )
    known = {"a/chunk": "a", "a/sum": "a", "b/chunk": "b", "b/sum": "b"}
    assert arrivals(metadata, known.get) == ("b", "a")


def test_variables_and_their_users_are_on_the_server_and_kernels_on_the_worker():
    context = emulated("seq_32", 1)
    graph_def, reads = placed(context)
    device = {node.name: node.device for node in graph_def.node}
    assert sorted(reads.values()).count("layer_00/weights") >= 1
    for variable in context.job.variables:
        assert device[variable.handle] == SERVER
        assert device[variable.initializer] == SERVER
    for gradient in context.job.given_gradients:
        assert device[gradient.values.op] == WORKER
    for node in graph_def.node:
        if node.op in ("AssignVariableOp", "ReadVariableOp") and node.input[0] in (
            variable.handle for variable in context.job.variables
        ):
            assert node.device == SERVER
        elif node.op in ("SleepDataset", "MutexLock", "ConsumeMutexLock"):
            assert node.device == WORKER


def test_a_system_that_fails_costs_its_own_row_only(tmp_path, monkeypatch):
    def measure(cell, system, settings):
        if system == "planned":
            raise RuntimeError("the client failed:\nAbortedError: received twice")
        facts = {**order.statistics([[[0, 1]], [[1, 0]]], [1.0, 2.0]), "transfers": 2}
        return Row({**order._described(cell), "system": system}, (1.0, 2.0), facts)

    monkeypatch.setattr(order, "_measure", measure)
    said = Console(file=io.StringIO(), width=200)
    cells = (order.Cell("seq_32", 4, systems=("all_reduce", "planned")),)
    file = order.run(order.Settings(cells, warm_up=1), "order", tmp_path, said)
    rows = {row["what"]["system"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["all_reduce"]["samples_s"] == [1.0, 2.0]
    assert rows["planned"]["invalid"] == "failed: AbortedError: received twice"
    assert "received twice" in said.file.getvalue()


@pytest.mark.parametrize("system", order.UNORDERED)
def test_every_step_without_a_plan_has_each_parameter(system):
    """Between servers of this process, which send each other what hosts would."""
    case = {"network": "seq_32", "batch": 4, "rounds": 3, "warm_up": 1, "timed": 2}
    servers = list(embedded_servers(2).addresses)
    measured = measure({**case, "system": system, "workers": servers, "network_repeats": 1})
    assert len(set(measured["transfers"])) == 32
    assert measured["bytes"] == 32 * 2**20
    orders = {"parameter_server": 1, "all_reduce": 2}[system]
    assert len(measured["orders"]) == 3
    assert system == "parameter_server" or measured["incomplete"] == 0
    assert {len(step) for step in measured["orders"]} == {orders}
    for step in measured["orders"]:
        assert [sorted(each) for each in step] == [list(range(32))] * orders
    assert len(measured["samples_s"]) == 2
    assert min(measured["samples_s"]) > 0


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_order_benchmark_gives_valid_numbers(tmp_path):
    rows = quick_benchmark("order", tmp_path)["rows"]
    assert [row["what"]["system"] for row in rows] == list(order.QUICK.cells[0].systems)
    for row in rows:
        assert row["invalid"] is None
        assert len(row["samples_s"]) == order.QUICK.cells[0].rounds
        assert 1 <= row["facts"]["unique_orders"] <= 2 * order.QUICK.cells[0].rounds
        assert 1 < row["facts"]["transfers"] <= 32
        assert row["facts"]["sent_over_needed"] >= 1
    assert (tmp_path / "order-quick.png").stat().st_size > 1000
