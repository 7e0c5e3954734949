"""How a job scales: predicted steps on hardware that nobody has measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caramel.core.calibration import DEFAULT
from caramel.core.errors import PlanError
from caramel.core.time_facts import NetworkModel, TimingTable, TransferCost
from caramel.planning.what_if.scaling import Scaled, Setting, coherent, scale, sweep
from caramel.simulation.assumed import (
    PAYLOAD_SHARE,
    AssumedHost,
    assumed_hardware,
)
from caramel.simulation.hardware import Host
from tests.support.outlines import OUTLINE, TIMING, WIDE_BYTES
from tests.support.simulations import PATTERNS

ALONE = Host(1.0, 1.0)
GBIT = 1e9


def hardware(workers, bits_per_s=GBIT, latency_s=1e-4, slowdowns=None, timing=TIMING, networks=()):
    slowdowns = slowdowns or [1.0] * workers
    hosts = [AssumedHost(bits_per_s, bits_per_s, slowdown) for slowdown in slowdowns]
    return assumed_hardware(hosts, latency_s, timing, networks)


# Hardware ---------------------------------------------------------------------------------------


def test_of_a_links_rate_a_share_is_payload_and_tensorflow_takes_its_time():
    two = hardware(2, latency_s=0.001)
    assert set(two.hosts) == {Host(PAYLOAD_SHARE * 1.25e8, PAYLOAD_SHARE * 1.25e8, 1.0)}
    assert set(two.latency_s.values()) == {DEFAULT.transfer_s + 0.001}
    assert (two.message_s, two.cores, two.step_s, two.excess) == (DEFAULT.message_s, None, 0.0, {})
    assert two.request_s == DEFAULT.request_s
    assert hardware(2, timing=TimingTable({"a": 1.0}, cores=2)).request_s == 0.0


def test_a_host_that_was_measured_says_what_asking_for_a_message_takes_if_that_is_less():
    costs = {"shuffle": TransferCost(0.004, 3e-8)}
    networks = [NetworkModel(2, costs, 5e7, 1, request_s=each) for each in (0.0, 2e-5, 1e-3)]
    assert hardware(2, networks=networks).request_s == 2e-5
    assert hardware(2, networks=networks[2:]).request_s == DEFAULT.request_s


def test_a_measured_network_says_what_transfers_take_besides():
    costs = {"shuffle": TransferCost(0.004, 3e-8), "ring": TransferCost(0.0009, 2e-8)}
    networks = [NetworkModel(n, costs, 5e7, 1, empty_s=n / 1000) for n in (4, 2)]
    timing = TimingTable({"a": 1.0}, cores=2, step_s=1.5)
    four = hardware(4, latency_s=0.5, timing=timing, networks=networks)
    # The ring has six rounds, of a chunk each.
    latencies = dict.fromkeys(PATTERNS, 0.5 + 0.00015 - DEFAULT.message_s)
    assert four.latency_s == pytest.approx(latencies)
    assert four.excess["ring"] == 1.0 < four.excess["shuffle"]
    assert (four.step_s, four.cores, four.hosts[0].slowdown) == (0.004, 2, 1.5)
    assert hardware(2, networks=networks).excess == {}


def test_the_latency_of_the_network_that_was_measured_is_not_that_of_another_one():
    far = NetworkModel(2, {"shuffle": TransferCost(0.03, 2e-8)}, 5e7, 1)
    near = hardware(2, latency_s=0.001, networks=[far])
    assert set(near.latency_s.values()) == {DEFAULT.transfer_s + 0.001}


@pytest.mark.parametrize("name", ["send_bits_per_s", "receive_bits_per_s", "slowdown"])
def test_hosts_that_cannot_be_are_refused(name):
    with pytest.raises(PlanError, match=f"host's {name} must be more than 0"):
        replace(AssumedHost(1.0, 1.0), **{name: 0})


# Steps ------------------------------------------------------------------------------------------


def test_one_setting():
    """A wire that takes longer than computation: planning hides the shorter one of them."""
    scaled, plan = scale(OUTLINE, hardware(2), alone=ALONE)
    wire_s = WIDE_BYTES / hardware(2).bytes_per_s
    computation_s = OUTLINE.free.computation_s
    assert scaled.alone_s == pytest.approx(computation_s)
    assert list(scaled.plain_s) == list(PATTERNS)
    assert max(wire_s, computation_s) < scaled.planned_s < min(scaled.plain_s.values())
    assert scaled.step_s == scaled.planned_s
    assert scaled.speedup == pytest.approx(2 * computation_s / scaled.step_s)
    assert scaled.efficiency == pytest.approx(computation_s / scaled.step_s)
    assert scaled.limited_by == "wire"
    assert max(scaled.saved_s, key=scaled.saved_s.get) == "wire"
    assert any(group.deferred for group in plan.groups)


def test_only_some_patterns_may_be_used():
    scaled, plan = scale(OUTLINE, hardware(4), alone=ALONE, patterns=("ring",))
    assert list(scaled.plain_s) == ["ring"]
    assert scaled.pattern == "ring"
    assert {group.pattern for group in plan.groups} == {"ring"}


@pytest.mark.parametrize(
    ("changes", "limited_by"),
    [
        ({"bits_per_s": 100 * GBIT}, "computation"),
        ({"bits_per_s": GBIT / 10}, "wire"),
        ({"bits_per_s": 100 * GBIT, "latency_s": 2.0}, "latency"),
    ],
)
def test_what_limits_a_step(changes, limited_by):
    scaled, _ = scale(OUTLINE, hardware(4, **changes), alone=ALONE)
    assert scaled.limited_by == limited_by


def test_where_every_chunk_takes_long_the_processor_limits_the_step():
    slow = replace(hardware(64, 100 * GBIT), message_s=0.01)
    assert scale(OUTLINE, slow, alone=ALONE)[0].limited_by == "processor"


def test_latency_favours_the_pattern_with_the_fewest_rounds():
    scaled, _ = scale(OUTLINE, hardware(16, latency_s=0.1), alone=ALONE)
    assert scaled.pattern == "shuffle"
    assert scaled.plain_s["shuffle"] < scaled.plain_s["halving_doubling"] < scaled.plain_s["ring"]


def test_a_slow_host_limits_all():
    alike, _ = scale(OUTLINE, hardware(3, 100 * GBIT), alone=ALONE)
    slowed, _ = scale(OUTLINE, hardware(3, 100 * GBIT, slowdowns=[1, 3, 1]), alone=ALONE)
    assert slowed.step_s > 3 * OUTLINE.free.computation_s > 2 * alike.step_s
    assert slowed.efficiency < 1 / 3
    assert slowed.limited_by == "computation"
    assert slowed.alone_s == alike.alone_s


def test_a_host_with_a_slow_link_limits_all():
    hosts = [AssumedHost(GBIT, GBIT)] * 2 + [AssumedHost(GBIT / 10, GBIT)]
    slowed, _ = scale(OUTLINE, assumed_hardware(hosts, 1e-4, TIMING), alone=ALONE)
    alike, _ = scale(OUTLINE, hardware(3), alone=ALONE)
    assert slowed.step_s > 3 * alike.step_s
    assert slowed.limited_by == "wire"


def test_of_several_settings_each_is_simulated():
    settings = {
        Setting(workers, rate, latency_s): hardware(workers, rate, latency_s)
        for workers, rate in ((2, GBIT), (4, 10 * GBIT))
        for latency_s in (1e-4, 0.01)
    }
    told = []
    found = sweep(OUTLINE, settings, alone=ALONE, progress=lambda *each: told.append(each))
    assert list(found) == list(settings)
    assert [scaled.workers for scaled in found.values()] == [2] * 2 + [4] * 2
    assert told == [(number, 4) for number in range(5)]
    for setting, scaled in found.items():
        slower = found[replace(setting, latency_s=0.01)]
        assert scaled.step_s <= slower.step_s
        assert slower.saved_s["latency"] >= slower.step_s - scaled.step_s - 1e-12
    again = sweep(OUTLINE, settings, alone=ALONE)
    assert again == found


def test_no_resource_saves_less_than_another_setting_shows():
    """At the lower rate the plan sends factors: that it is the rate, only the other row knows."""

    def scaled(step_s, **saved_s):
        usual = {"computation": 0.2, "wire": 0.0, "latency": 0.0, "processor": 0.0}
        return Scaled(4, 0.4, {"ring": 1.0}, step_s, "ring", "computation", {**usual, **saved_s})

    slow, fast, far = (Setting(4, 1e8, 0.0), Setting(4, 1e9, 0.0), Setting(4, 1e8, 0.03))
    more = Setting(8, 1e9, 0.0)
    found = {slow: scaled(0.8), fast: scaled(0.5), far: scaled(0.9), more: scaled(0.6)}
    told = coherent(found)
    assert list(told) == list(found)
    assert (told[slow].limited_by, told[slow].saved_s["wire"]) == ("wire", pytest.approx(0.3))
    assert told[far].saved_s["latency"] == pytest.approx(0.1)
    assert told[far].saved_s["wire"] == 0.0  # the other setting differs in more than the rate
    assert (told[fast], told[more]) == (found[fast], found[more])
