"""The search is never worse than what it begins with, and finds the best of small problems."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.core.errors import PlanError
from caramel.planning.placement.chain import Link, critical_chain
from caramel.planning.placement.clusters import clustered
from caramel.planning.placement.memory import at_peak, overruns, peaks
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.place import place
from caramel.planning.placement.schedulers import SCHEDULERS
from caramel.planning.placement.search import search
from caramel.planning.placement.simulate import simulate
from caramel.planning.placement.stages import staged
from tests.planning.placement.test_laws import (
    NEARLY,
    assert_constraints_hold,
    assert_it_is_a_schedule,
)
from tests.support.optimal_placement import optimum
from tests.support.placement import (
    chain,
    constrained_diamond,
    diamond,
    digits,
    problem,
    random_problem,
)


def test_the_diamond():
    assert [search(diamond(rate)).makespan_s for rate in (2, 16)] == [5, 5]
    assert search(constrained_diamond()).makespan_s == optimum(constrained_diamond())


def test_nearly_all_small_problems_are_solved_as_well_as_they_can_be():
    graphs = [random_problem(seed) for seed in range(60)]
    solved = [search(graph).makespan_s <= optimum(graph) * (1 + NEARLY) for graph in graphs]
    assert sum(solved) >= 58


@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    constraints=st.booleans(),
    small=st.booleans(),
    links=st.sampled_from(("free", "one")),
)
def test_it_is_no_worse_than_any_partitioner_and_scheduler(seed, constraints, small, links):
    graph = random_problem(seed, vertices=30, devices=3, constraints=constraints, small=small)
    found = search(graph, links=links, budget=10_000)
    assert_constraints_hold(graph, found.placement)
    assert_it_is_a_schedule(graph, found.placement, found.schedule, links)
    for name, scheduler in itertools.product(PARTITIONERS, SCHEDULERS):
        other = simulate(graph, PARTITIONERS[name](graph), scheduler, links=links)
        assert found.makespan_s <= other.makespan_s
    for device in range(3):
        if all(device in allowed for allowed in graph.allowed):
            assert found.makespan_s <= simulate(graph, (device,) * 30).makespan_s
    assert search(graph, links=links, budget=10_000) == found


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), memory=st.integers(150, 900))
def test_what_it_finds_fits(seed, memory):
    graph = random_problem(seed, vertices=16, devices=3, memory=memory)
    try:
        found = search(graph, budget=5_000)
    except PlanError:
        # Then no partitioner finds anything either.
        for name in PARTITIONERS:
            with pytest.raises(PlanError):
                place(graph, name)
        return
    assert list(found.peaks) == peaks(graph, found.placement, found.schedule)
    assert not list(overruns(graph, found.peaks))


def test_what_fits_nowhere_is_refused():
    with pytest.raises(PlanError, match="no placement was found that fits: device 'd0' needs 10"):
        search(chain(8))


def test_what_fits_on_one_device_stays_there_if_links_are_slow():
    graph = problem((5, 5, 5, 5), [(0, 50, (1, 2)), (1, 50, (3,)), (2, 50, (3,))], (1, 1), 1)
    assert search(graph).makespan_s == 20


def test_nothing_is_spread_for_less_than_rounding():
    graph = problem((1, 1e-9), [], (1, 1), 1)
    assert simulate(graph, (0, 1)).makespan_s < search(graph).makespan_s
    assert search(graph).placement == (0, 0)


# Parts ------------------------------------------------------------------------------------------


def test_the_chain_of_the_diamond():
    graph, placement = diamond(2), digits("1110")
    schedule = simulate(graph, placement, "pct")
    # v3 waits for v1's tensor, v1 for its device, which executes v2 first, and v2 for v0's tensor.
    assert critical_chain(graph, placement, schedule) == [
        Link(3, 1, False),
        Link(1, 2, True),
        Link(2, 0, False),
        Link(0, None, False),
    ]


def test_groups_that_exchange_most_bytes_are_joined():
    graph = problem((1,) * 4, [(0, 9, (1,)), (1, 1, (2,)), (2, 8, (3,))], (1, 1), 1)
    assert clustered(graph, 2).groups == ((0, 1), (2, 3))
    assert clustered(graph, 3).groups == ((0, 1), (2,), (3,))


def test_uneven_clusters_have_room_in_a_part_of_a_device():
    # Even ones may have 8 of the 12 operations, and the first two vertices have 10.
    graph = problem((5, 5, 1, 1), [(0, 9, (1,)), (1, 8, (2,)), (2, 7, (3,))], (1,), 1, memory=40)
    assert clustered(graph, 3).groups == ((0,), (1, 2), (3,))
    assert clustered(graph, 3, room=0.5).groups == ((0, 1), (2,), (3,))
    assert clustered(graph, 2, room=0.5).groups == ((0, 1), (2, 3))
    assert clustered(graph, 2, room=0.25).groups == ((0,), (1,), (2, 3))


def test_stages_are_filled_in_the_order_of_the_step():
    # The vertices that put something out need 6 bytes, the last one 4.
    graph = chain(12)
    assert staged(graph, share=1, fill=1) == (0, 1, 1)
    assert staged(graph, share=1, fill=1.5) == staged(graph, share=1, fill=9) == (0, 0, 1)
    backwards = problem((1,) * 3, [(2, 1, (1,)), (1, 1, (0,))], (1, 1), 1, memory=9, resident=4)
    assert staged(backwards, share=0, fill=1.4) == (1, 0, 0)


def test_what_a_device_has_at_its_peak():
    graph, placement = chain(12), digits("001")
    schedule = simulate(graph, placement)
    assert peaks(graph, placement, schedule) == [12, 6]
    assert at_peak(graph, placement, schedule, 0) == {0: 6, 1: 6}
    assert at_peak(graph, placement, schedule, 1) == {2: 6}


def test_clusters_fit_on_a_device_and_may_be_somewhere():
    tensors = [(0, 9, (1,)), (1, 8, (2,)), (2, 7, (3,))]
    # v1 and v2 would need 15 bytes; v3 puts nothing out.
    limited = problem((1,) * 4, tensors, (1,), 1, memory=14)
    assert clustered(limited, 1).groups == ((0,), (1,), (2, 3))
    apart = {"v0": ("d0",), "v1": ("d1",)}
    graph = problem((0,) * 4, tensors, (1, 1), 1, constraints=apart)
    assert clustered(graph, 1).groups == ((0,), (1, 2, 3))


def test_without_a_budget_it_is_the_best_start():
    graph = random_problem(3, vertices=60, devices=4)
    best_s = min(
        simulate(graph, PARTITIONERS[name](graph), scheduler).makespan_s
        for name, scheduler in itertools.product(PARTITIONERS, SCHEDULERS)
    )
    alone_s = min(simulate(graph, (n,) * 60).makespan_s for n in range(4))
    assert search(graph, budget=0).makespan_s == min(best_s, alone_s)
