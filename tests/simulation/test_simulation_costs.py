"""Timelines of small steps, computed by hand: what hosts, links and messages cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caramel.core.decision import ALL_GATHER, FACTORS
from caramel.core.workload import Piece, Product, Workload
from caramel.simulation.simulate import GroupTimes
from tests.support.simulations import PATTERNS, hosts, unfolded
from tests.support.small_steps import (
    ADDING,
    BOTH,
    ONE_LAYER,
    RATE,
    TWO,
    TWO_LAYERS,
    computed,
    group,
    predicted,
    spans,
    update,
)


def test_a_processor_computes_at_half_the_speed_while_it_transfers():
    workload = Workload((Piece("f", 2.0), Piece("b", 0.0, yields=("p",))), (update("p", 0.0),))
    both = replace(TWO, cores=1, processor_s_per_byte=0.5 / 1024)
    two = predicted(workload, group("g", "p", deferred=True), hardware=both)
    assert computed(two) == {"f": [0.0, 3.0]}


@pytest.mark.parametrize("unfold", [False, True])
def test_a_processor_does_not_compute_while_it_handles_messages(unfold):
    """One chunk goes in each of two rounds; the transfers themselves take as long as ever."""
    workload = Workload((Piece("f", 2.0), Piece("b", 0.0, yields=("p",))), (update("p", 0.0),))
    hardware = replace(TWO, processor_s_per_message=0.25)
    two = predicted(
        workload,
        group("g", "p", deferred=True),
        hardware=unfolded(hardware) if unfold else hardware,
    )
    assert computed(two)["f"] == [0.5, 2.5]
    assert spans(two, 0, ("send",)) == [("send", "g", 0.0, 1.0), ("send", "g", 1.0, 2.0)]


COPYING = hosts(2, RATE, cores=1, processor_s_per_byte=0.0, copy_s_per_byte=0.25 / 2048)
TWO_AND_MORE = Workload(
    (Piece("f", 1.0), Piece("b", 1.0, yields=("p", "q")), Piece("rest", 2.0)),
    (update("p", 0.0), update("q", 0.0)),
)


@pytest.mark.parametrize("hardware", [COPYING, unfolded(COPYING)])
@pytest.mark.parametrize("deferred", [False, True])
def test_a_processor_does_not_compute_while_it_lays_gradients_side_by_side(hardware, deferred):
    """It copies 4096 bytes in 0.5 s, also in the step before the one in which they go."""
    two = predicted(TWO_AND_MORE, group("g", "q", "p", deferred=deferred), hardware=hardware)
    assert computed(two) == {"f": [0.0, 1.0], "b": [1.0, 2.0], "rest": [2.5, 4.5]}
    begin_s = 0.0 if deferred else 2.5
    assert two.groups == {"g": GroupTimes(begin_s, begin_s + 4.0)}


def test_a_device_computes_while_gradients_are_laid_side_by_side():
    two = predicted(TWO_AND_MORE, group("g", "q", "p"), hardware=replace(COPYING, cores=None))
    assert computed(two) == {"f": [0.0, 1.0], "b": [1.0, 2.0], "rest": [2.0, 4.0]}
    assert two.groups == {"g": GroupTimes(2.5, 6.5)}


@pytest.mark.parametrize(("cores", "taken_s"), [(None, 0.0), (2, 0.25), (1, 0.5)])
@pytest.mark.parametrize("unfold", [False, True])
def test_what_a_core_adds_it_does_not_compute(unfold, cores, taken_s):
    """The sum is made from 1 s to 1.5 s, while "f" is computed for 3 s."""
    workload = Workload((Piece("f", 3.0), Piece("b", 0.0, yields=("p",))), (update("p", 0.0),))
    hardware = replace(ADDING, cores=cores, processor_s_per_byte=0.0)
    two = predicted(
        workload,
        group("g", "p", deferred=True),
        hardware=unfolded(hardware) if unfold else hardware,
    )
    assert computed(two) == {"f": [0.0, 3.0 + taken_s]}
    assert two.groups == {"g": GroupTimes(0.0, 2.5)}


@pytest.mark.parametrize(
    "cost",
    [
        {"latency_s": dict.fromkeys(PATTERNS, 0.25)},
        {"handling_s_per_byte": 0.25 / 1024},
        {"excess": dict.fromkeys(PATTERNS, 1.25)},
    ],
)
@pytest.mark.parametrize("unfold", [False, True])
def test_every_round_has_a_latency_and_handling_and_may_take_longer_than_its_bytes(cost, unfold):
    hardware = replace(TWO, **cost)
    two = predicted(ONE_LAYER, group("g", "p"), hardware=unfolded(hardware) if unfold else hardware)
    assert spans(two, 0, ("send",)) == [("send", "g", 3.0, 4.25), ("send", "g", 4.25, 5.5)]
    assert two.timeline.sent_bytes(0) == 2048


@pytest.mark.parametrize("unfold", [False, True])
def test_every_chunk_keeps_the_link_busy_for_some_time(unfold):
    """Two groups, of which each sends a chunk in each of its two rounds. The sum of the first goes
    behind the chunk that the second has sent before."""
    hardware = replace(TWO, message_s=0.25)
    two = predicted(TWO_LAYERS, *BOTH, hardware=unfolded(hardware) if unfold else hardware)
    assert two.groups == {"g_q": GroupTimes(2.0, 5.75), "g_p": GroupTimes(3.0, 7.0)}


def test_members_are_laid_side_by_side_first():
    copying = replace(TWO, copy_s_per_byte=0.25 / 1024)
    workload = Workload((Piece("b", 1.0, yields=("p", "q")),), (update("p"), update("q")))
    together = predicted(workload, group("g", "p", "q"), hardware=copying)
    assert together.groups == {"g": GroupTimes(2.0, 6.0)}
    alone = predicted(workload, group("g_p", "p"), group("g_q", "q"), hardware=copying)
    assert alone.groups["g_p"].begin_s == 1.0


def test_of_gathered_rows_only_the_latency_is_known():
    hardware = replace(TWO, latency_s={"shuffle": 0.125, "ring": 0.5})
    two = predicted(ONE_LAYER, group("g", "p", pattern=ALL_GATHER), hardware=hardware)
    assert two.groups == {"g": GroupTimes(3.0, 3.5)}


@pytest.mark.parametrize("unfold", [False, True])
def test_factors_go_once_to_everyone_and_are_multiplied_again_for_everyone(unfold):
    """Two workers send 512 bytes in 0.5 s, and compute 0.25 s; three send 1024 and compute 0.5."""
    again = replace(ONE_LAYER, products={"p": Product(512, 0.25)})
    for workers, arrives_s in ((2, 3.75), (3, 4.5)):
        hardware = hosts(workers, RATE)
        by_factors = predicted(
            again,
            group("g", "p", pattern=FACTORS),
            hardware=unfolded(hardware) if unfold else hardware,
        )
        assert by_factors.groups == {"g": GroupTimes(3.0, arrives_s)}
        assert by_factors.step_s == arrives_s + 0.5
        assert spans(by_factors)[-2:] == [
            ("reduce", "g", 3.0 + 0.5 * (workers - 1), arrives_s),
            ("compute", "u_p", arrives_s, arrives_s + 0.5),
        ]


@pytest.mark.parametrize("unfold", [False, True])
def test_a_worker_handles_its_factors_for_one_other_after_those_for_another(unfold):
    """1024 bytes for two others take 1 s on the wire, and 0.25 s besides for each 512."""
    hardware = replace(hosts(3, RATE), handling_s_per_byte=0.25 / 512)
    again = replace(ONE_LAYER, products={"p": Product(512, 0.0)})
    found = predicted(
        again,
        group("g", "p", pattern=FACTORS),
        hardware=unfolded(hardware) if unfold else hardware,
    )
    assert found.groups == {"g": GroupTimes(3.0, 4.5)}


def test_products_of_factors_are_added_up():
    """2048 bytes of one other worker, at 0.25 s for 1024."""
    adding = replace(TWO, reduce_s_per_byte=0.25 / 1024)
    again = replace(ONE_LAYER, products={"p": Product(512, 0.0)})
    two = predicted(again, group("g", "p", pattern=FACTORS), hardware=adding)
    assert two.groups == {"g": GroupTimes(3.0, 4.0)}


def test_factors_have_messages_and_latency_of_their_own():
    hardware = replace(TWO, latency_s={"shuffle": 0.125, "exchange": 0.5}, message_s=0.25)
    again = replace(ONE_LAYER, products={"p": Product(512, 0.0)})
    two = predicted(again, group("g", "p", pattern=FACTORS), hardware=hardware)
    assert two.groups == {"g": GroupTimes(3.0, 4.5)}  # 0.5 s, two messages, and the latency
