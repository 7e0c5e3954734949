"""Peers train one network on the same data, over the wire; what does not count is marked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import peers, testbed
from benchmarks.peers import validate as validation
from benchmarks.peers.base import PeerError, Result, evenly
from benchmarks.peers.data import Case, Examples, prepared
from benchmarks.peers.parameter_servers import Spread
from benchmarks.peers.traced import timing_of, trace
from benchmarks.peers.validate import difference, validate
from benchmarks.tests.beds import needs_namespaces

CASE = Case("tiny", batch=4, steps=5, warm_up=1, timeout_s=200, network_repeats=5)


@pytest.fixture(scope="module")
def alternating(bed):
    """Lone workers and plain Caramel, of which each has done two blocks of steps in turn."""
    alone, plain = peers.get("alone"), peers.get("plain")
    with alone.start(bed, CASE, {}) as first, plain.start(bed, CASE, plain.settings()[0]) as second:
        for number in range(1, 3):
            assert len(first.block(2)) == len(second.block(3, warm_up=0)) - 1 == 2
            assert [len(each.step_s) for each in (first, second)] == [2 * number, 3 * number]
        results = [first.result(), second.result()]
    assert_ended(first, second)
    return results


@pytest.fixture(scope="module")
def plain(alternating):
    return alternating[1]


def assert_ended(*running):
    assert all(process.poll() is not None for each in running for process in each.run.processes)


def run(bed, name, setting=0):
    peer = peers.get(name)
    if reason := peer.available():
        assert reason == "not installed"
        pytest.skip(f"{name}: {reason}")
    with peer.start(bed, CASE, peer.settings()[setting]) as running:
        running.block(CASE.steps, warm_up=CASE.warm_up)
        result = running.result()
    assert_ended(running)
    return result


# On two hosts ------------------------------------------------------------------------------------


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("mirrored", 2),
        ("parameter_servers", 0),
        ("mpi", 0),
        ("torch_ddp", 0),
        ("horovod", 0),
    ],
)
def test_a_peer_trains_as_plain_caramel_does_and_over_the_wire(bed, plain, name, setting):
    result = run(bed, name, setting)
    assert [each.problems for each in validate([plain, result])] == [(), ()]
    assert len(result.step_s) == CASE.steps
    assert (result.own_computation_s is not None) == (name in ("torch_ddp", "horovod"))
    assert result.versions
    assert result.median_s > 0.9 * sum(result.expected_bytes) / 2 * 8 / 200e6


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.processes
def test_blocks_of_two_peers_alternate(alternating):
    assert [each.problems for each in validate(alternating)] == [(), ()]
    assert all(each.processor_s > 0 for each in alternating)
    assert all(each.own_computation_s is None for each in alternating)
    assert all(each.versions for each in alternating)
    alone, plain = alternating
    assert difference(plain, alone) < validation.TOLERANCE


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.processes
def test_a_process_that_fails_says_why(bed):
    with pytest.raises(PeerError, match="unknown pattern|no pattern|'unheard of'"):
        peers.run(peers.get("plain"), bed, CASE, {"pattern": "unheard of"})


@needs_namespaces
@pytest.mark.namespaces
@pytest.mark.processes
def test_what_is_planned_from_is_traced_while_all_hosts_compute(plain):
    with testbed.Testbed(2, "4gbit") as bed:  # the network is measured, too
        result = peers.run(peers.get("planned"), bed, CASE, {"planner": "search"})
        trace(bed, CASE)  # which has been done
    assert [each.problems for each in validate([plain, result])] == [(), ()]
    assert result.facts["predicted_s"] > 0
    ready = prepared(CASE, 2).directory
    timing = timing_of(ready)
    assert timing.on_processor
    assert any("MatMul" in op for op in timing.seconds)
    (directory,) = ready.glob("traced-*")
    at = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    assert at["training.1"] < at["training.go"] < at["traced.0"] <= at["traced.1"]


# What counts -------------------------------------------------------------------------------------


def result_of(tmp_path, name, values, sent=(1e6, 1e6), case=CASE):
    path = tmp_path / f"{name}.npz"
    np.savez(path, **values)
    return Result(
        peer=name,
        setting={},
        case=case,
        step_s=(0.3, 0.1, 0.2),
        own_computation_s=None,
        tx_bytes=sent,
        processor_s=0.1,
        expected_bytes=(1e6, 1e6),
        parameters=str(path),
        versions={},
        load=0.0,
    )


def problems(*results):
    return [each.problems for each in validate(results)]


def test_equal_parameters_and_bytes_count(tmp_path):
    reference = result_of(tmp_path, "plain", {"w": np.array([1.0, -2.0])})
    rounded = result_of(tmp_path, "mpi", {"w": np.array([1.0, -2.0001])})
    assert problems(reference, rounded) == [(), ()]


def test_other_parameters_are_invalid(tmp_path):
    reference = result_of(tmp_path, "plain", {"w": np.array([1.0, -2.0])})
    other = result_of(tmp_path, "mpi", {"w": np.array([1.0, -2.001])})
    assert problems(reference, other) == [(), ("invalid: parameters differ by 5.0e-04",)]
    for values in ({"v": np.zeros(2)}, {"w": np.array([1.0, np.nan])}, {"w": np.zeros(3)}):
        bad = result_of(tmp_path, "mpi", values)
        assert problems(reference, bad)[1] == ("invalid: parameters differ by inf",)


def test_a_row_may_agree_with_one_device_instead(tmp_path):
    reference = result_of(tmp_path, "plain", {"w": np.array([1.0, -2.0])})
    truth = result_of(tmp_path, "alone", {"w": np.array([1.0, -2.01])})
    ring = replace(truth, peer="plain")
    assert problems(reference, truth) == [(), ()]
    assert problems(reference, ring) == [(), ("invalid: parameters differ by 5.0e-03",)]
    assert problems(reference, ring, truth) == [(), (), ()]


def test_without_plain_caramel_parameters_prove_nothing(tmp_path):
    values = {"w": np.ones(2)}
    elsewhere = result_of(tmp_path, "plain", values, case=replace(CASE, seed=2))
    lonely = result_of(tmp_path, "mpi", values)
    expected = ("invalid: no result of plain Caramel to compare with",)
    assert problems(elsewhere, lonely) == [(), expected]
    assert problems(replace(lonely, parameters=None)) == [()]


def test_bytes_that_did_not_cross_the_wire_do_not_count(tmp_path):
    values = {"w": np.ones(2)}
    reference = result_of(tmp_path, "plain", values)
    shared_memory = result_of(tmp_path, "mpi", values, sent=(1e6, 2e3))
    expected = "bytes do not match: host 1 sent 2,000 per step, not 1,000,000"
    assert problems(reference, shared_memory)[1] == (expected,)
    twice = result_of(tmp_path, "mpi", values, sent=(2e6, 2e6))
    assert "host 0 sent 2,000,000" in problems(reference, twice)[1][0]
    headers = 1e6 * (1 + 0.9 * validation.BYTES_TOLERANCE)
    within = result_of(tmp_path, "mpi", values, sent=(headers, headers))
    assert problems(reference, within)[1] == ()


# Parts -------------------------------------------------------------------------------------------


def test_expected_bytes_of_an_all_reduce_and_of_servers():
    assert evenly([600, 300], 3) == [1200.0] * 3
    mpi = peers.get("mpi")
    assert mpi.expected_bytes([600, 300], 2, {}) == [900.0] * 2
    assert mpi.expected_bytes([600, 300], 3, {}) == [900.0, 1800.0, 900.0]
    servers = peers.get("parameter_servers")
    assert servers.expected_bytes([600, 300], 3, {"servers": "one"}) == [1800.0, 900.0, 900.0]
    assert servers.expected_bytes([600, 300], 3, {"servers": "all"}) == [1500.0, 1200.0, 900.0]


def test_parameters_go_where_the_least_bytes_are():
    spread = Spread(2)
    assert [spread.place(size) for size in (5, 3, 1, 2, 4)] == [0, 1, 1, 1, 0]
    assert spread.loads == [9, 6]


def test_workers_read_every_second_example(tmp_path):
    path = tmp_path / "examples.bin"
    with path.open("wb") as file:
        for number in range(8):
            file.write(np.float32([number, -number]).tobytes() + np.int32(number).tobytes())
    batches = Examples((2,), 10, str(path)).read(1, 2, 2)
    assert [labels.tolist() for _, labels in batches] == [[1, 3], [5, 7]]
    assert batches[1][0].tolist() == [[5, -5], [7, -7]]


def test_a_result_is_json_and_has_a_median(tmp_path):
    result = result_of(tmp_path, "plain", {"w": np.ones(1)})
    assert result.to_json()["median_s"] == result.median_s == 0.2
    assert result.to_json()["case"]["network"] == "tiny"


def test_a_peer_that_is_not_there_says_so(monkeypatch, tmp_path):
    for name in ("torch_ddp", "horovod"):
        peer = peers.get(name)
        monkeypatch.setattr(f"benchmarks.peers.{name}.PYTHON", tmp_path / "python")
        assert peer.available() == "not installed"
        with pytest.raises(PeerError, match=f"{name} cannot run: not installed"):
            peers.run(peer, None, CASE, peer.settings()[0])
    with pytest.raises(PeerError, match="there is no peer 'nccl'; there are alone, plain"):
        peers.get("nccl")
