"""What a step is limited by: what it saves if there were any amount of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caramel.core.decision import Group
from caramel.core.workload import Piece, Size, Workload
from caramel.planning.what_if.limits import saved_by
from caramel.simulation.conditions import Conditions
from caramel.simulation.simulate import simulate_groups
from tests.support.simulations import PATTERNS, hosts

# 2 s of computation, then 2048 bytes among two workers: each sends as many.
WORK = Workload((Piece("b", 2.0, yields=("p",)),))


def saved(hardware, workload=WORK, **group):
    def predict(other):
        groups = [Group("g", ("p",), "shuffle", **group)]
        return simulate_groups(groups, (), Conditions({"p": Size(512, 4)}, workload, other)).step_s

    return saved_by(
        predict(hardware),
        predict,
        hardware,
        computation_s=workload.computation_s,
        sent_bytes=2048,
    )


def test_a_step_is_shorter_without_each_of_its_parts():
    hardware = hosts(
        *(2, 1024.0),
        latency_s=dict.fromkeys(PATTERNS, 0.25),
        handling_s_per_byte=0.125 / 1024,
        gaps_s_per_byte={"shuffle": 0.0625 / 1024},
        reduce_s_per_byte=0.5 / 1024,
    )
    assert saved(replace(hardware, message_s=0.125)) == pytest.approx(
        {"computation": 2.0, "wire": 2.0, "latency": 0.5, "processor": 0.375 + 0.5 + 0.25},
        rel=1e-5,
    )


def test_asking_for_messages_is_what_a_processor_does():
    assert saved(hosts(2, 1024.0, request_s=0.25))["processor"] == pytest.approx(0.5)


def test_where_the_wire_is_hidden_it_limits_nothing():
    workload = Workload((Piece("f", 3.0), Piece("b", 1.0, yields=("p",))))
    found = saved(hosts(2, 1024.0), workload, deferred=True)
    assert found == pytest.approx(
        {"computation": 2.0, "wire": 0.0, "latency": 0.0, "processor": 0.0}, abs=1e-4
    )


def test_a_free_wire_leaves_the_processor_what_it_has_to_do():
    """Transfers take half of it for 2 s, in which 3 s of computation get done in 4 s."""
    workload = Workload((Piece("f", 3.0), Piece("b", 0.0, yields=("p",))))
    busy = hosts(2, 1024.0, cores=1, processor_s_per_byte=0.5 / 1024)
    found = saved(busy, workload, deferred=True)
    assert found["wire"] == pytest.approx(0.0, abs=1e-4)
    assert found["processor"] == pytest.approx(1.0, abs=1e-4)


def test_a_free_wire_leaves_the_processor_what_it_has_to_add():
    """For 0.5 s of the forward pass."""
    workload = Workload((Piece("f", 3.0), Piece("b", 0.0, yields=("p",))))
    adding = hosts(2, 1024.0, cores=1, processor_s_per_byte=0.0, reduce_s_per_byte=0.5 / 1024)
    found = saved(adding, workload, deferred=True)
    assert found["wire"] == pytest.approx(0.0, abs=1e-4)
    assert found["processor"] == pytest.approx(0.5)


def test_handling_messages_is_the_processors_work():
    """Each of two rounds has one, while the forward pass is computed."""
    workload = Workload((Piece("f", 3.0), Piece("b", 1.0, yields=("p",))))
    found = saved(hosts(2, 1024.0, processor_s_per_message=0.25), workload, deferred=True)
    assert found["processor"] == pytest.approx(0.5)
