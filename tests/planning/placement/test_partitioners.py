"""Each partitioner places graphs of a few vertices as its section says, computed by hand."""

from __future__ import annotations

import pytest

from caramel.core.errors import PlanError
from caramel.planning.placement.partitioners import PARTITIONERS, partitioner_of
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.planning.placement.simulate import simulate
from tests.support.placement import constrained_diamond, diamond, digits, problem

DIAMOND = [
    ("batch_split", 2, "1110", 8.5),
    ("batch_split", 16, "1110", 5.875),
    ("critical_path", 2, "1011", 9.5),
    ("critical_path", 16, "1011", 5.125),
    ("mite", 2, "0011", 8.5),
    ("mite", 16, "0011", 5.875),
    ("dfs", 2, "1111", 5),
    ("dfs", 16, "1111", 5),
    ("heft", 2, "1111", 5),
    ("heft", 16, "1011", 5.125),
    ("peft", 2, "1111", 5),
    ("peft", 16, "1111", 5),
    ("cpop", 2, "1111", 5),
    ("cpop", 16, "1011", 5.125),
]


@pytest.mark.parametrize(("name", "rate", "placement", "makespan_s"), DIAMOND)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_diamond(name, rate, placement, makespan_s, scheduler):
    graph = diamond(rate)
    placed = PARTITIONERS[name](graph)
    assert placed == digits(placement)
    assert simulate(graph, placed, scheduler).makespan_s == makespan_s


@pytest.mark.parametrize(("seed", "placement"), [(0, "1111"), (1, "1010"), (2, "0111")])
def test_a_hash_picks_devices_by_the_seed(seed, placement):
    assert PARTITIONERS["hash"](diamond(2), seed=seed) == digits(placement)


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_what_must_be_together_and_where_it_must_be(name, scheduler):
    graph = constrained_diamond()
    placed = PARTITIONERS[name](graph)
    assert placed == digits("1011")
    assert simulate(graph, placed, scheduler).makespan_s == 9.5


def test_a_path_for_which_no_device_has_room_is_divided_among_the_fastest():
    graph = problem(
        (1, 1, 1, 1), [(0, 1, (1,)), (1, 1, (2,)), (2, 1, (3,))], (1, 3, 2), 1, memory=2
    )
    # The last one puts nothing out: the fastest device, which is full, has room for it.
    assert PARTITIONERS["critical_path"](graph) == digits("1121")


def test_an_unknown_partitioner_is_named():
    with pytest.raises(PlanError, match="no partitioner 'best'; there are hash, batch_split"):
        partitioner_of("best")
