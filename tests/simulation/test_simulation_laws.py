"""What holds for every simulated step, and what a second simulator says of it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.core.patterns import chunk_sizes, schedule
from caramel.core.workload import Piece, Workload
from caramel.simulation.conditions import Conditions
from caramel.simulation.engine import Kind, run
from caramel.simulation.simulate import simulate_groups
from caramel.simulation.single_host import run_alone
from caramel.simulation.tasks import tasks_of
from tests.support.simulations import (
    ELEMENTS,
    FLOAT,
    Case,
    Reference,
    cases,
    costly,
    gated,
    hosts,
    uneven,
    unfolded,
)

some = settings(max_examples=60)
SIMPLE = ("shuffle", "ring")  # what the second simulator knows
HALVING = ("halving_doubling",)
COSTS = (
    "reduce_s_per_byte",
    "handling_s_per_byte",
    "copy_s_per_byte",
    "message_s",
    "processor_s_per_message",
    "request_s",
    "op_s",
)


@some
@given(costly(of=cases(patterns=SIMPLE)))
def test_workers_that_are_alike_take_as_long_as_the_second_simulator_says(case):
    assert case.predict().step_s == pytest.approx(Reference(case).step_s(), abs=1e-6)


@some
@given(uneven(of=costly(of=cases(workers=(2, 3), patterns=SIMPLE))))
def test_workers_that_differ_take_as_long_as_the_second_simulator_says(case):
    assert case.predict().step_s == pytest.approx(Reference(case).step_s(), abs=1e-6)


@some
@given(costly(of=cases(workers=(2, 3, 4, 6, 8), patterns=SIMPLE)))
def test_one_worker_stands_for_all_if_they_are_alike(case):
    one, all_ = case.predict(), case.predict(unfolded(case.hardware))
    assert one.step_s == pytest.approx(all_.step_s, abs=1e-6)
    for name, times in one.groups.items():
        assert times.begin_s == pytest.approx(all_.groups[name].begin_s, abs=1e-6)
        assert times.end_s == pytest.approx(all_.groups[name].end_s, abs=1e-6)


@some
@given(
    st.one_of(
        costly(of=cases(workers=(2, 4), patterns=HALVING, depths=(1,))),
        cases(workers=(8,), patterns=HALVING, depths=(1,)),
    )
)
def test_one_worker_stands_for_all_with_halving_and_doubling(case):
    """One group behind the other. From 8 workers on, a message may go before its round, while
    others still wait for theirs; that saves some latency."""
    case = replace(case, gates=gated(case.groups, case.sizes, in_flight_bytes=0))
    one, all_ = case.predict(), case.predict(unfolded(case.hardware))
    assert one.step_s == pytest.approx(all_.step_s, abs=1e-6)


@some
@given(st.one_of(costly(), uneven(), costly(of=cases(workers=(2, 8), depths=(1,)))))
def test_fewer_tasks_take_the_same_time(case):
    """What nobody waits for need not be a task of its own."""
    detailed, short = case.predict(), case.predict(detailed=False)
    assert short.step_s == pytest.approx(detailed.step_s, abs=1e-9)
    assert short.tasks <= detailed.tasks
    for name, times in detailed.groups.items():
        assert short.groups[name].end_s >= times.end_s - 1e-9
        assert short.groups[name].begin_s == pytest.approx(times.begin_s, abs=1e-9)


@some
@given(st.one_of(costly(), costly(of=cases(workers=(2, 8), depths=(1,)))), st.booleans())
def test_one_host_alone_does_everything_when_it_would_among_others(case, detailed):
    """Its simulation has a shorter way, without shares of links."""
    tasks = tasks_of(
        case.groups,
        case.gates,
        Conditions(case.sizes, case.workload, case.hardware),
        pending=case.pending,
        detailed=detailed,
    )
    assert tasks.folded
    alone = replace(case.hardware, hosts=case.hardware.hosts[:1])
    for times_s, others_s in zip(
        run_alone(tasks.graph, alone), run(tasks.graph, alone), strict=True
    ):
        assert times_s == pytest.approx(others_s, abs=1e-9)


def test_alike_workers_are_simulated_the_shorter_way(monkeypatch):
    """A search is three to five times as fast for it, which no result shows."""
    monkeypatch.setattr("caramel.simulation.simulate.run", None)
    workload = Workload((Piece("f", 1.0),))
    assert simulate_groups((), (), Conditions({}, workload, hosts(4))).step_s == 1.0


@some
@given(uneven())
def test_the_same_step_takes_the_same_time_every_time(case):
    first, second = case.predict(), case.predict()
    assert first.step_s == second.step_s
    assert first.timeline == second.timeline


@some
@given(costly())
def test_what_is_remembered_of_other_plans_changes_nothing(case):
    """A search simulates all plans under the same conditions."""
    conditions = Conditions(case.sizes, case.workload, case.hardware)
    others = [
        {"depth": 3},
        {"pattern": "shuffle"},
        {"pattern": "ring"},
        {"smallest_chunk_bytes": ELEMENTS * FLOAT},
        {"deferred": True},
    ]
    for other, detailed in itertools.product([{}, *others], (False, True)):
        changed = replace(case, groups=tuple(replace(each, **other) for each in case.groups))
        predicted = simulate_groups(
            changed.groups, case.gates, conditions, pending=case.pending, detailed=detailed
        )
        anew = changed.predict(detailed=detailed)
        assert (predicted.step_s, predicted.timeline) == (anew.step_s, anew.timeline)


@some
@given(st.one_of(costly(), uneven()))
def test_everything_waits_for_what_it_needs(case):
    predicted = case.predict()
    graph = predicted._tasks.graph
    for number, dependents in enumerate(graph.dependents):
        for other in dependents:
            assert predicted._begins_s[other] >= predicted._ends_s[number]
    for gate in case.gates:
        if {gate.group, gate.after} <= predicted.groups.keys():
            for before, after in zip(
                predicted._tasks.arrivals[gate.after],
                predicted._tasks.begins[gate.group],
                strict=True,
            ):
                assert predicted._ends_s[after] >= predicted._ends_s[before]


@some
@given(st.one_of(costly(), uneven()))
def test_no_step_is_shorter_than_its_longest_chain_or_than_what_a_worker_has_to_do(case):
    predicted = case.predict()
    graph, hardware = predicted._tasks.graph, case.hardware
    ends_s = [0.0] * len(graph.names)
    computed_s, sent_s, received_s = (defaultdict(float) for _ in range(3))
    begins_s = [0.0] * len(graph.names)
    for number in _in_order(graph):
        kind, host, amount = graph.kinds[number], graph.hosts[number], graph.amounts[number]
        alone_s = graph.latencies[number]
        if kind is Kind.COMPUTE:
            computed_s[host] += amount * hardware.hosts[host].slowdown
            alone_s += amount * hardware.hosts[host].slowdown
        elif kind is Kind.SEND:
            target = graph.targets[number]
            worth = amount * graph.worth[number]
            sent_s[host] += worth / hardware.hosts[host].send_bytes_per_s
            received_s[target] += worth / hardware.hosts[target].receive_bytes_per_s
            alone_s += worth / hardware.hosts[host].send_bytes_per_s
        else:
            alone_s += amount
        ends_s[number] = begins_s[number] + alone_s
        for other in graph.dependents[number]:
            begins_s[other] = max(begins_s[other], ends_s[number])
    least_s = max([*ends_s, *computed_s.values(), *sent_s.values(), *received_s.values()])
    assert predicted.step_s >= least_s - 1e-6


def _in_order(graph):
    """The tasks, each after what it waits for."""
    waits = list(graph.waits)
    ready = [number for number, count in enumerate(waits) if not count]
    while ready:
        number = ready.pop()
        yield number
        for other in graph.dependents[number]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)


@some
@given(st.one_of(costly(), uneven()), st.booleans())
def test_what_is_sent_is_what_the_patterns_send(case: Case, alike):
    if alike:
        case = replace(case, hardware=unfolded(case.hardware))
    sent, received = defaultdict(int), defaultdict(int)
    for group in case.travelling:
        plan = schedule(group.pattern, case.hardware.workers, depth=group.depth, shift=group.shift)
        sizes = chunk_sizes(case.bytes(group) // FLOAT, plan.chunks, FLOAT)
        for (source, target), elements in plan.sent_elements(sizes).items():
            sent[source, group.name] += FLOAT * elements
            received[target, group.name] += FLOAT * elements
    found = {"send": defaultdict(int), "receive": defaultdict(int)}
    for span in case.predict().timeline.spans:
        if span.resource in found:
            found[span.resource][span.worker, span.name] += span.bytes
    if case.hardware.is_uniform:  # each worker has the average
        sent, received, found["send"], found["receive"] = (
            _by_group(each) for each in (sent, received, found["send"], found["receive"])
        )
        assert found["send"] == pytest.approx(sent, abs=500)
        assert found["receive"] == pytest.approx(received, abs=500)
    else:
        assert (found["send"], found["receive"]) == (sent, received)


def _by_group(sizes):
    total = defaultdict(int)
    for (_, group), size in sizes.items():
        total[group] += size
    return total


@some
@given(
    cases(updates=st.just(0.0), depths=(1,)),
    st.sampled_from([1.1, 2.0, 10.0]),
    st.sampled_from([0.0, 0.125]),
)
def test_more_bandwidth_is_never_slower_if_groups_go_one_by_one(case, factor, latency_s):
    """Updates take no time here: one that is early may hold up a gradient that is waited for."""
    case = replace(case, gates=gated(case.groups, case.sizes, in_flight_bytes=0))
    slow = case.hardware.with_latency(latency_s)
    fast = slow.with_rates(factor)
    assert case.predict(fast).step_s <= case.predict(slow).step_s + 1e-9


@some
@given(uneven())
def test_a_free_network_leaves_computation(case):
    free = replace(
        case.hardware.with_rates(1e12).with_latency(0.0),
        **dict.fromkeys(COSTS, 0.0),
        gaps_s_per_byte={},
        cores=None,
    )
    deferred = {n for g in case.groups if g.deferred for n in g.members}
    work = case.workload
    updates_s = sum(
        u.seconds for u in work.updates if case.pending or not (u.moves_with & deferred)
    )
    slowest = max(host.slowdown for host in free.hosts)
    expected_s = slowest * (sum(p.seconds for p in work.chain) + updates_s) + free.step_s
    assert case.predict(free).step_s == pytest.approx(expected_s, abs=1e-6)
