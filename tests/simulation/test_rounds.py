"""In which rounds patterns go over the links, and what links can do according to measurements."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caramel.core.calibration import DEFAULT
from caramel.core.decision import Group
from caramel.core.measurements import AggregationTimes, Measurements
from caramel.core.patterns import schedule
from caramel.core.time_facts import Link, NetworkModel, TimingTable, TransferCost
from caramel.core.workload import Piece, Size, Workload
from caramel.simulation.conditions import Conditions
from caramel.simulation.hardware import (
    Hardware,
    Host,
    hardware_of,
    network_of,
)
from caramel.simulation.network_model import fit_network, wire_shares
from caramel.simulation.rounds import (
    MOST_ROUNDS,
    Addition,
    Exchange,
    Message,
    Round,
    exchanges_of,
    rounds_of,
)
from caramel.simulation.simulate import GroupTimes, simulate_groups
from tests.support.simulations import PATTERNS, hosts


def test_shuffle_between_three_workers_is_two_exchanges_of_all_with_all():
    pairs = [(source, target) for target in range(3) for source in range(3) if source != target]
    there, back = exchanges_of("shuffle", 3)
    assert there == Exchange(
        tuple(Message(source, target, (target,), finished=False) for source, target in pairs),
        tuple(Addition(worker, (0, 1, 2), (worker,)) for worker in range(3)),
    )
    assert set(back.messages) == {Message(t, s, (t,), finished=True) for s, t in pairs}
    assert back.additions == ()


def test_chunks_that_go_together_are_one_message():
    """With halving and doubling, half of them go in the first round."""
    first, *_ = exchanges_of("halving_doubling", 4)
    assert first.messages[0] == Message(1, 0, (0, 2), finished=False)
    assert first.additions[0] == Addition(0, (0, 1), (0, 2))
    assert len(first.messages) == len(first.additions) == 4


@pytest.mark.parametrize(
    ("pattern", "rounds"),
    [
        ("shuffle", (Round(3.0, 3.0, 3), Round(3.0, 0.0, 3))),
        ("ring", (Round(1.0, 1.0, 1),) * 3 + (Round(1.0, 0.0, 1),) * 3),
        (
            "halving_doubling",
            (Round(2.0, 2.0, 2), Round(1.0, 1.0, 1), Round(2.0, 0.0, 2), Round(1.0, 0.0, 1)),
        ),
    ],
)
def test_rounds_of_four_workers_with_chunks_of_a_byte(pattern, rounds):
    assert rounds_of(pattern, 4, (1.0,) * 4) == rounds


def test_one_worker_needs_no_rounds():
    assert [rounds_of(pattern, 1, (1.0,)) for pattern in PATTERNS] == [()] * len(PATTERNS)


def test_empty_chunks_are_not_sent():
    assert rounds_of("shuffle", 2, (8.0, 0.0)) == (Round(4.0, 4.0, 0.5), Round(4.0, 0.0, 0.5))


def test_the_partner_of_an_extra_worker_is_the_busiest():
    """Three workers: the first one gets all from the third and half from the second."""
    first, *_ = rounds_of("halving_doubling", 3, (1.0, 1.0))
    assert first == Round(bytes=1.0, added=3.0, chunks=1.0, busiest=3.0)


def test_many_rounds_are_simulated_as_a_few_longer_ones():
    rounds = rounds_of("ring", 256, (1.0,) * 256)
    assert len(rounds) == MOST_ROUNDS == 64
    assert sum(each.count for each in rounds) == 510
    assert sum(each.bytes for each in rounds) == pytest.approx(510)
    assert sum(each.added for each in rounds) == pytest.approx(255)


@settings(max_examples=60)
@given(st.sampled_from(PATTERNS), st.integers(1, 20), st.data())
def test_rounds_carry_what_the_pattern_sends(pattern, workers, data):
    plan = schedule(pattern, workers)
    sizes = tuple(
        data.draw(st.lists(st.integers(0, 9), min_size=plan.chunks, max_size=plan.chunks))
    )
    sent = sum(plan.sent_elements(sizes).values())
    rounds = rounds_of(pattern, workers, tuple(map(float, sizes)))
    assert sum(each.bytes for each in rounds) * workers == pytest.approx(sent)
    messages = [m for exchange in exchanges_of(pattern, workers) for m in exchange.messages]
    assert sum(sizes[chunk] for m in messages for chunk in m.chunks) == sent


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6, 7, 8, 12, 16])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_busiest_link_is_that_of_the_network_model(pattern, workers):
    chunks = schedule(pattern, workers).chunks
    rounds = rounds_of(pattern, workers, (1.0 / chunks,) * chunks)
    shares = [each.bytes * each.busiest for each in rounds]
    assert shares == pytest.approx(wire_shares(schedule(pattern, workers)))


# Hardware ---------------------------------------------------------------------------------------

COSTS = {
    "shuffle": TransferCost(0.004, 1.8e-8),
    "ring": TransferCost(0.012, 1.7e-8),
    "halving_doubling": TransferCost(0.008, 2.4e-8),
    "exchange": TransferCost(0.003, 5e-8),
}


def aggregation_s(hardware, pattern, size_bytes):
    """What one aggregation takes."""
    workload = Workload((Piece("b", 0.0, yields=("p",)),))
    groups = [Group("g", ("p",), pattern)]
    conditions = Conditions({"p": Size(size_bytes // 4, 4)}, workload, hardware)
    return simulate_groups(groups, (), conditions).step_s


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_an_aggregation_takes_as_long_as_was_measured(pattern, workers):
    hardware = hardware_of(NetworkModel(workers, COSTS, 1e8, 100_000), TimingTable({}))
    for size in (2**14, 2**26):
        expected_s = COSTS[pattern].seconds(size)
        assert aggregation_s(hardware, pattern, size) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_aggregations_at_a_time_take_as_long_as_was_measured(pattern):
    """Alone what its line says; many at a time only for as long as they keep the links busy."""
    busy = {"shuffle": 1.7e-8, "ring": 1.5e-8, "halving_doubling": 2e-8, "exchange": 4e-8}
    costs = {
        name: replace(cost, residual=0.01, busy_s_per_byte=busy[name])
        for name, cost in COSTS.items()
    }
    network = NetworkModel(4, costs, 1.5 / 1.5e-8, 100_000)
    hardware = hardware_of(network, TimingTable({}))
    assert hardware.bytes_per_s == pytest.approx(1e8)
    expected_s = COSTS[pattern].seconds(2**26)
    assert aggregation_s(hardware, pattern, 2**26) == pytest.approx(expected_s, rel=1e-6)

    count, size = 16, 2**24
    names = tuple(f"p{number}" for number in range(count))
    workload = Workload((Piece("b", 0.0, yields=names),))
    groups = [Group(name, (name,), pattern) for name in names]
    sizes = dict.fromkeys(names, Size(size // 4, 4))
    step_s = simulate_groups(groups, (), Conditions(sizes, workload, hardware)).step_s
    assert step_s == pytest.approx(busy[pattern] * count * size, rel=0.05)


def test_the_fastest_pattern_says_what_a_link_carries():
    """Two workers, one byte: a byte over the link, half of it added on each side."""
    hardware = hardware_of(NetworkModel(2, COSTS, 1e7, 100_000), TimingTable({}, cores=2))
    wire_s = 1.7e-8 - DEFAULT.handling_s_per_byte - DEFAULT.reduce_s_per_byte / 2
    assert hardware.bytes_per_s == pytest.approx(1 / wire_s)
    # Two rounds each, or one, with one chunk of 40 us in each.
    latencies = {
        "shuffle": 0.00196,
        "ring": 0.00596,
        "halving_doubling": 0.00396,
        "exchange": 0.00296,
    }
    assert hardware.latency_s == pytest.approx(latencies)
    assert hardware.excess["ring"] == 1.0
    assert hardware.excess["shuffle"] == pytest.approx((wire_s + 1e-9) / wire_s)
    assert (hardware.cores, hardware.step_s, hardware.is_uniform) == (2, 0.0, True)


def test_links_that_differ_are_taken_one_by_one():
    links = (Link(0, 1, 1e8, 0.001), Link(1, 0, 5e7, 0.002))
    network = NetworkModel(2, COSTS, 5e7, 100_000, links)
    hardware = hardware_of(network, TimingTable({}))
    assert not hardware.is_uniform
    rates = [link.bytes_per_s for link in hardware.links]
    assert rates == pytest.approx(
        [1 / (1e-8 - DEFAULT.handling_s_per_byte), 1 / (2e-8 - DEFAULT.handling_s_per_byte)]
    )
    assert hardware.hosts == (Host(*rates), Host(*reversed(rates)))
    alike = NetworkModel(2, COSTS, 5e7, 100_000, (links[0], Link(1, 0, 0.95e8, 0.002)))
    assert hardware_of(alike, TimingTable({})).is_uniform


def test_a_host_whose_links_are_all_slow_is_slow_with_several_of_them_too():
    """Each link of worker 2 was measured alone with what that host can do."""
    pairs = list(itertools.permutations(range(3), 2))
    links = tuple(Link(*pair, 5e7 if 2 in pair else 1e8, 0.001) for pair in pairs)
    costs = {name: replace(cost, busy_s_per_byte=3e-8) for name, cost in COSTS.items()}
    hardware = hardware_of(NetworkModel(3, costs, 4e7, 100_000, links), TimingTable({}))
    own = [1 / (1 / each - DEFAULT.handling_s_per_byte) for each in (1e8, 5e7)]
    slow, fast = 4e7, 4e7 * own[0] / own[1]
    rates = [(host.send_bytes_per_s, host.receive_bytes_per_s) for host in hardware.hosts]
    assert rates == [pytest.approx((each, each)) for each in (fast, fast, slow)]
    assert hardware.bytes_per_s == pytest.approx(4e7)


def test_a_link_that_is_slower_than_its_hosts_is_taken_by_itself():
    pairs = list(itertools.permutations(range(3), 2))

    def model(rate):
        links = tuple(Link(*pair, rate if pair == (0, 1) else 1e8, 0.001) for pair in pairs)
        return hardware_of(NetworkModel(3, COSTS, rate, 100_000, links), TimingTable({}))

    slow = model(5e7)
    assert not slow.is_uniform
    assert len(set(slow.hosts)) == 1
    rates = {(link.source, link.target): link.bytes_per_s for link in slow.links}
    assert rates.pop((0, 1)) < 0.6 * min(rates.values())
    assert len(set(rates.values())) == 1
    assert model(8.5e7).is_uniform


def test_steps_take_longer_than_their_ops_and_an_empty_one_takes_time_too():
    network = replace(NetworkModel(4, COSTS, 1e8, 1), empty_s=0.04)
    hardware = hardware_of(network, TimingTable({"a": 2.0, "b": 1.0}, step_s=3.75))
    assert hardware.step_s == 0.04
    assert {host.slowdown for host in hardware.hosts} == {1.25}


def test_messages_cost_processors_that_compute_something():
    """0.15 ms of one core, where the steps were timed on two; nothing beside an accelerator."""
    network = NetworkModel(2, COSTS, 1e8, 100_000)
    assert hardware_of(network, TimingTable({}, cores=2)).processor_s_per_message == 0.075e-3
    assert hardware_of(network, TimingTable({})).processor_s_per_message == 0.0


def test_asking_for_messages_delays_accelerators_and_is_part_of_the_latency():
    """A processor that computes is busy with messages anyway."""
    network = NetworkModel(2, COSTS, 1e8, 100_000, request_s=1e-4)
    hardware = hardware_of(network, TimingTable({}))
    assert hardware.request_s == 1e-4
    # Two rounds with one chunk of 40 us in each, and each of them asked for in 100 us.
    assert hardware.latency_of("shuffle") == pytest.approx(0.00186)
    expected_s = COSTS["shuffle"].seconds(2**26)
    assert aggregation_s(hardware, "shuffle", 2**26) == pytest.approx(expected_s, rel=1e-6)
    assert hardware_of(network, TimingTable({}, cores=2)).request_s == 0.0


def test_a_worker_asks_for_all_messages_before_it_computes_and_sends():
    """Two chunks of 2,000 bytes each, at 1,000 bytes in a second, asked for in half a second."""
    hardware = replace(hosts(2), request_s=0.5)
    chain = (Piece("f", 1.0), Piece("b", 2.0, yields=("p",)))

    def predicted(deferred):
        groups = [Group("g", ("p",), "shuffle", deferred=deferred)]
        conditions = Conditions({"p": Size(1000, 4)}, Workload(chain), hardware)
        return simulate_groups(groups, (), conditions)

    in_step, deferred = predicted(False), predicted(True)
    assert in_step.groups["g"] == GroupTimes(4.0, 8.0)
    assert deferred.groups["g"] == GroupTimes(1.0, 5.0)
    assert (in_step.step_s, deferred.step_s) == (8.0, 5.0)
    spans = in_step.timeline.of_worker(0).spans
    computed = [(each.name, each.begin_s) for each in spans if each.resource == "compute"]
    assert computed == [("f", 1.0), ("b", 2.0)]


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_a_model_of_the_network_from_what_it_can_do(workers):
    network = NetworkModel(workers, COSTS, 1e8, 100_000, empty_s=0.01, request_s=5e-5)
    again = network_of(hardware_of(network, TimingTable({})))
    for name, cost in COSTS.items():
        assert again.costs[name].latency_s == pytest.approx(cost.latency_s)
        assert again.costs[name].s_per_byte == pytest.approx(cost.s_per_byte)
    assert (again.workers, again.empty_s, again.request_s) == (workers, 0.01, 5e-5)
    # 1.5 times latency over slope of shuffle, which is the fastest for 4 MB.
    assert again.threshold_bytes == pytest.approx(1.5 * 0.004 / 1.8e-8, abs=1)


def test_without_latency_slow_links_are_as_slow():
    links = (Link(0, 1, 1e8, 0.001), Link(1, 0, 5e7, 0.002))
    hardware = replace(hardware_of(NetworkModel(2, COSTS, 5e7, 1), TimingTable({})), links=links)
    free = hardware.with_latency(0.0)
    assert free.links == (Link(0, 1, 1e8, 0.0), Link(1, 0, 5e7, 0.0))
    assert set(free.latency_s.values()) == {0.0}


def test_the_wire_limit_is_that_of_the_worker_whose_links_carry_the_least_together():
    """One slow link of three workers can be gone round; a worker all of whose links are slow can
    not."""
    rates = {(0, 1): 100.0, (1, 0): 90.0, (0, 2): 70.0, (2, 0): 60.0, (1, 2): 50.0, (2, 1): 10.0}
    links = tuple(Link(*pair, rate, 0.0) for pair, rate in rates.items())
    hardware = Hardware((Host(100.0, 100.0),) * 3, {"shuffle": 0.0}, links)
    # Sends 170, 140, 70 and receives 150, 110, 120, of which its host carries 100.
    assert hardware.bytes_per_s == 70.0
    assert hardware.with_rates(2.0).bytes_per_s == 140.0
    assert hardware.with_rates(2.0).links[-1] == Link(2, 1, 20.0, 0.0)
    narrow = replace(hardware, hosts=(Host(100.0, 100.0), Host(100.0, 30.0), Host(100.0, 100.0)))
    assert narrow.bytes_per_s == 30.0


def test_the_same_hardware_with_something_else():
    hardware = hardware_of(NetworkModel(4, COSTS, 1e8, 1), TimingTable({}))
    assert hardware.with_rates(5.0).bytes_per_s == pytest.approx(5.0 * hardware.bytes_per_s)
    assert hardware.with_latency(0.5).latency_of("ring") == 0.5
    assert hardware.latency_of("ring") == pytest.approx(0.012 / 6 - 40e-6)
    # One round, with chunks for three others.
    assert hardware.latency_of("exchange") == pytest.approx(0.003 - 3 * 40e-6)
    assert hardware.latency_of("all_gather") == hardware.latency_of("exchange")


def test_a_link_that_lets_the_begin_through_at_once_is_not_taken_for_a_faster_one():
    """256 KB of each of two rounds are there at once, then 100 bytes go in a microsecond."""
    sizes = (64, 1_048_576, 4_194_304)

    def seconds(size):
        return 2 * max(0.0, size / 2 - 256_000) / 1e8 + 1e-3

    measured = Measurements(
        workers=2,
        aggregations=tuple(AggregationTimes("shuffle", s, (seconds(s),)) for s in sizes),
        empty_seconds=(0.0,),
    )
    network = fit_network(measured)
    assert network.costs["shuffle"].s_per_byte < 0.95e-8
    assert network.bytes_per_s == pytest.approx(1e8, rel=1e-3)
    assert hardware_of(network, TimingTable({})).bytes_per_s == pytest.approx(
        1 / (1e-8 - DEFAULT.handling_s_per_byte), rel=1e-3
    )
