"""Predictions follow the calibration; by default they are as before, when costs were constants.

The literal numbers were computed by the code that had these constants.
"""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.calibration import DEFAULT
from caramel.core.measurements import AggregationTimes, Measurements
from caramel.core.time_facts import NetworkModel, TransferCost
from caramel.planning.candidate import Candidate
from caramel.planning.from_profile import outlook_of
from caramel.simulation.assumed import AssumedHost, assumed_hardware
from caramel.simulation.hardware import hardware_of
from caramel.simulation.network_model import fit_network
from tests.support.outlines import OUTLINE, TIMING

COSTS = {
    "shuffle": TransferCost(1e-3, 1.7e-8),
    "ring": TransferCost(2e-3, 1.6e-8, busy_s_per_byte=1.5e-8),
}
NETWORK = NetworkModel(4, COSTS, 1e8, 100_000, empty_s=3e-4, request_s=5e-5)
ON_PROCESSORS = dataclasses.replace(TIMING, cores=2)


def step_s(hardware):
    """A step in which two gradients go together, and the others alone."""
    outlook = outlook_of(OUTLINE, hardware, "shuffle")
    first, second, *rest = outlook.plain.decision.groups
    joined = dataclasses.replace(first, members=first.members + second.members)
    return outlook.predict(Candidate("joined", (joined, *rest))).step_s


def assumed(timing, networks=(), *, bits_per_s=1e9, calibration=DEFAULT):
    hosts = [AssumedHost(bits_per_s, bits_per_s)] * 4
    return assumed_hardware(hosts, 1e-4, timing, networks, calibration)


@pytest.mark.parametrize(
    ("timing", "expected_s"),
    [
        (TIMING, [0.4939475040000001, 0.40656242069787224, 0.4328314092936171]),
        (ON_PROCESSORS, [0.49259750400000013, 0.40548242069787227, 0.43175140929361705]),
    ],
)
def test_by_default_predictions_are_as_before(timing, expected_s):
    hardware = [hardware_of(NETWORK, timing), assumed(timing), assumed(timing, [NETWORK])]
    assert [step_s(each) for each in hardware] == expected_s


MEASURED = Measurements(
    2,
    (
        AggregationTimes("exchange", 64, (1e-3, 1.1e-3)),
        AggregationTimes("exchange", 4 * 2**20, (40e-3, 41e-3)),
        AggregationTimes("exchange", 4096, (7e-3, 8e-3), tensors=64),
    ),
    (3e-4, 4e-4),
)


def test_asking_for_a_message_takes_a_share_of_what_it_costs():
    assert fit_network(MEASURED).request_s == 4.607572834581304e-05
    twice = dataclasses.replace(DEFAULT, request_share=0.9)
    found = fit_network(MEASURED, calibration=twice)
    assert found.request_s == pytest.approx(2 * 4.607572834581304e-05)


@pytest.mark.parametrize(
    ("name", "timing", "bits_per_s"),
    [
        ("reduce_s_per_byte", TIMING, 1e10),
        ("copy_s_per_byte", TIMING, 1e10),
        ("handling_s_per_byte", TIMING, 1e10),
        ("message_s", TIMING, 1e10),
        ("transfer_s", TIMING, 1e10),
        ("request_s", TIMING, 1e10),
        ("processor_s_per_message", ON_PROCESSORS, 1e10),
        ("processor_s_per_byte", dataclasses.replace(TIMING, cores=1), 2e9),
    ],
)
def test_a_machine_on_which_transfers_cost_more_takes_longer(name, timing, bits_per_s):
    """Where links are so fast that they do not hide it."""
    costly = DEFAULT.with_measured({name: 2 * getattr(DEFAULT, name)})
    usual_s, longer_s = (
        step_s(assumed(timing, bits_per_s=bits_per_s, calibration=each))
        for each in (DEFAULT, costly)
    )
    assert longer_s > usual_s + 1e-4


def test_what_a_measured_aggregation_takes_besides_the_wire_leaves_the_link_faster():
    costly = DEFAULT.with_measured({"handling_s_per_byte": 2e-9})
    only = {"shuffle": COSTS["shuffle"]}
    network = dataclasses.replace(NETWORK, costs=only)
    usual, other = (hardware_of(network, TIMING, each) for each in (DEFAULT, costly))
    assert other.bytes_per_s > usual.bytes_per_s
    assert other.handling_s_per_byte == 2e-9
