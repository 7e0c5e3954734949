"""What transfers cost this machine is measured; what cannot be keeps its default."""

from __future__ import annotations

import logging
import math

import pytest

from caramel.core.calibration import DEFAULT
from caramel.core.errors import ClusterError
from caramel.profiling import calibration as measuring
from caramel.profiling.calibration import measure_calibration

MEMORY = {"reduce_s_per_byte", "copy_s_per_byte"}
MESSAGES = {"processor_s_per_message", "transfer_s", "request_s"}


@pytest.fixture(name="quick")
def fixture_quick(monkeypatch):
    """Few steps of small tensors."""
    monkeypatch.setattr(measuring, "_REPEATS", 3)
    monkeypatch.setattr(measuring, "_TENSOR_BYTES", 2**20)
    return monkeypatch


def test_measured_costs_are_finite(quick):
    """On a machine that is busy messages may seem to take less than no time, or very long."""
    turns = []
    for measured, names in (
        (measuring._memory_costs, MEMORY),
        (measuring._message_costs, MESSAGES),
    ):
        found = measured(lambda *turn: turns.append(turn))
        assert set(found) == names
        assert all(math.isfinite(value) for value in found.values())
    assert turns[-1] == ("messages", 9, 9)


def test_what_is_measured_is_near_its_default(quick):
    quick.setattr(measuring, "_SANE", 1e6)
    found = measure_calibration()
    assert MEMORY <= set(found.measured) <= MEMORY | MESSAGES  # what is absurd is left out
    assert found.processor_s_per_byte == DEFAULT.processor_s_per_byte


@pytest.mark.parametrize("absurd", [0.0, -1e-9, math.inf, math.nan, 2e-9, 0.04e-9])
def test_what_is_absurd_keeps_its_default_and_is_logged(absurd, monkeypatch, caplog):
    good = 2 * DEFAULT.copy_s_per_byte
    found = {"reduce_s_per_byte": absurd, "copy_s_per_byte": good}
    monkeypatch.setattr(measuring, "_memory_costs", lambda report: found)
    monkeypatch.setattr(measuring, "_message_costs", lambda report: {})
    with caplog.at_level(logging.WARNING):
        assert measure_calibration() == DEFAULT.with_measured({"copy_s_per_byte": good})
    assert "reduce_s_per_byte keeps its default of 2.5e-10" in caplog.text


def test_what_cannot_be_measured_keeps_its_default_and_is_logged(monkeypatch, caplog):
    def failing(report):
        raise ClusterError("no port is free")

    found = {"copy_s_per_byte": 2e-10}
    monkeypatch.setattr(measuring, "_memory_costs", lambda report: found)
    monkeypatch.setattr(measuring, "_message_costs", failing)
    with caplog.at_level(logging.WARNING):
        assert measure_calibration() == DEFAULT.with_measured(found)
    assert "keep their defaults: no port is free" in caplog.text
