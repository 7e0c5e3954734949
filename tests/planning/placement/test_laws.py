"""What holds for each partitioner with each scheduler on any problem."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.planning.placement.bounds import least_makespan_s, path_bound_s, work_bound_s
from caramel.planning.placement.partitioners import PARTITIONERS
from caramel.planning.placement.schedulers import SCHEDULERS, path_times
from caramel.planning.placement.simulate import simulate
from tests.support.optimal_placement import optimum
from tests.support.placement import diamond, digits, problem, random_problem

NEARLY = 1e-9
PAIRS = list(itertools.product(PARTITIONERS, SCHEDULERS))
PROBLEMS = st.builds(
    random_problem,
    st.integers(0, 10**6),
    vertices=st.integers(1, 14),
    devices=st.integers(1, 4),
    constraints=st.booleans(),
    memory=st.sampled_from((math.inf, 200)),
    small=st.booleans(),
)
LINKS = st.sampled_from(("free", "one"))


def assert_it_is_a_schedule(graph, placement, schedule, links):
    """Precedence, one vertex at a time on each device, one transfer on each link."""
    begins, ends = schedule.begins, schedule.ends
    for number, vertex in enumerate(graph.vertices):
        took_s = vertex.operations / graph.devices[placement[number]].speed
        assert ends[number] == begins[number] + took_s
    arrivals = {(number, device): end for number, device, _, end in schedule.transfers}
    assert len(arrivals) == len(schedule.transfers), "a tensor goes to each device once"
    for number, tensor in enumerate(graph.tensors):
        for reader in tensor.readers:
            at_home = placement[reader] == placement[tensor.source]
            there = ends[tensor.source] if at_home else arrivals[number, placement[reader]]
            assert begins[reader] >= there
    for number, device, begin, end in schedule.transfers:
        tensor = graph.tensors[number]
        rate = graph.rates[placement[tensor.source]][device]
        assert begin >= ends[tensor.source]
        assert end - begin == pytest.approx(graph.latency_s + tensor.bytes / rate)
    assert_one_at_a_time(
        (placement[number], begins[number], ends[number]) for number in range(len(begins))
    )
    if links == "one":
        homes = [placement[tensor.source] for tensor in graph.tensors]
        assert_one_at_a_time(
            ((homes[number], device), begin, end)
            for number, device, begin, end in schedule.transfers
        )


def assert_one_at_a_time(spans):
    for (where, _, end), (other, begin, _) in itertools.pairwise(sorted(spans)):
        assert where != other or end <= begin


def assert_constraints_hold(graph, placement):
    for members, allowed in zip(graph.groups, graph.allowed, strict=True):
        (device,) = {placement[vertex] for vertex in members}
        assert device in allowed


@pytest.mark.parametrize(("partitioner", "scheduler"), PAIRS)
@settings(max_examples=15)
@given(graph=PROBLEMS, links=LINKS, seed=st.integers(0, 3))
def test_a_placed_step(partitioner, scheduler, graph, links, seed):
    placement = PARTITIONERS[partitioner](graph, seed=seed)
    assert_constraints_hold(graph, placement)
    schedule = simulate(graph, placement, scheduler, links=links)
    assert_it_is_a_schedule(graph, placement, schedule, links)
    assert schedule.makespan_s >= least_makespan_s(graph) * (1 - NEARLY)
    assert PARTITIONERS[partitioner](graph, seed=seed) == placement
    assert simulate(graph, placement, scheduler, links=links) == schedule


@given(graph=PROBLEMS, partitioner=st.sampled_from(list(PARTITIONERS)), data=st.data())
def test_with_a_held_order_a_faster_device_is_never_later(graph, partitioner, data):
    placement = PARTITIONERS[partitioner](graph)
    before = simulate(graph, placement)
    faster = data.draw(st.integers(0, len(graph.devices) - 1))
    devices = tuple(
        replace(device, speed=device.speed * 1.5) if number == faster else device
        for number, device in enumerate(graph.devices)
    )
    after = simulate(replace(graph, devices=devices), placement, order=before.order)
    assert all(
        late <= early * (1 + NEARLY) for late, early in zip(after.ends, before.ends, strict=True)
    )


@given(graph=PROBLEMS, partitioner=st.sampled_from(list(PARTITIONERS)), data=st.data())
def test_with_a_held_order_a_faster_link_is_never_later(graph, partitioner, data):
    placement = PARTITIONERS[partitioner](graph)
    before = simulate(graph, placement)
    devices = st.integers(0, len(graph.devices) - 1)
    faster = data.draw(devices), data.draw(devices)
    rates = tuple(
        tuple(rate * 1.5 if (a, b) == faster else rate for b, rate in enumerate(row))
        for a, row in enumerate(graph.rates)
    )
    latency_s = graph.latency_s * data.draw(st.sampled_from((0.5, 1.0)))
    after = simulate(
        replace(graph, rates=rates, latency_s=latency_s), placement, order=before.order
    )
    assert all(
        late <= early * (1 + NEARLY) for late, early in zip(after.ends, before.ends, strict=True)
    )


@given(graph=PROBLEMS, links=LINKS, scheduler=st.sampled_from(list(SCHEDULERS)))
def test_the_order_of_a_schedule_can_be_held_and_gives_it_again(graph, links, scheduler):
    placement = PARTITIONERS["hash"](graph)
    schedule = simulate(graph, placement, scheduler, links=links)
    if all(vertex.operations for vertex in graph.vertices):
        assert simulate(graph, placement, order=schedule.order, links=links).ends == schedule.ends


@pytest.mark.parametrize(("partitioner", "scheduler"), PAIRS)
def test_a_step_of_nothing(partitioner, scheduler):
    graph = problem([], [], (1, 2), 1)
    assert PARTITIONERS[partitioner](graph) == ()
    assert simulate(graph, (), scheduler).makespan_s == least_makespan_s(graph) == 0


def test_bounds_of_the_diamond():
    assert (path_bound_s(diamond(2)), work_bound_s(diamond(2))) == (3.5, pytest.approx(10 / 3))
    assert least_makespan_s(diamond(2)) == 3.5


def test_the_optimum_by_trying_all():
    assert [optimum(diamond(rate)) for rate in (2, 16)] == [5, 5]
    assert simulate(diamond(2), digits("1111")).makespan_s == 5


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), small=st.booleans(), constraints=st.booleans())
def test_nothing_is_better_than_the_optimum(seed, small, constraints):
    graph = random_problem(seed, vertices=5, small=small, constraints=constraints)
    least_s = optimum(graph)
    assert least_s >= least_makespan_s(graph) * (1 - NEARLY)
    for name, scheduler in PAIRS:
        makespan_s = simulate(graph, PARTITIONERS[name](graph), scheduler).makespan_s
        assert makespan_s >= least_s * (1 - NEARLY)


@given(seed=st.integers(0, 10**6), devices=st.integers(1, 4), constraints=st.booleans())
def test_each_choice_of_msr_has_the_highest_score_of_equation_13(seed, devices, constraints):
    graph = random_problem(seed, vertices=14, devices=devices, constraints=constraints)
    placement = PARTITIONERS["hash"](graph)
    schedule = simulate(graph, placement, "msr")
    begins, ends, paths = schedule.begins, schedule.ends, path_times(graph, placement)
    arrivals = {(number, device): end for number, device, _, end in schedule.transfers}

    def is_idle(device, now, choosing):
        # Devices choose in the order of their numbers.
        return not any(
            on == device and ends[n] > now and (begins[n], device) < (now, choosing)
            for n, on in enumerate(placement)
        )

    def score(vertex, now):
        own, found = placement[vertex], 0
        for other in graph.successors[vertex]:
            elsewhere = placement[other] != own
            only = all(ends[o] <= now for o in graph.predecessors[other] if o != vertex)
            idle = is_idle(placement[other], now, own)
            found += 1 + elsewhere + only + 5 * (elsewhere and only and idle)
        return found

    def there(number, device):
        source = graph.tensors[number].source
        return ends[source] if placement[source] == device else arrivals[number, device]

    for vertex in schedule.order:
        now, device = begins[vertex], placement[vertex]
        executable = [
            n
            for n, on in enumerate(placement)
            if on == device
            and begins[n] >= now
            and all(there(number, device) <= now for number in graph.inputs[n])
        ]
        assert vertex == max(executable, key=lambda n: (score(n, now), paths[n], -n))
