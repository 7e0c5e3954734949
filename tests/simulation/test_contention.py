"""Computing takes longer where the processor also transfers."""

from __future__ import annotations

import pytest

from caramel.core.calibration import DEFAULT
from caramel.core.time_facts import TransferWindows, Window
from caramel.simulation.contention import stretched

WINDOWS = TransferWindows({"a": Window(0.8, 0.1), "b": Window(0.5, 0.2)}, 1.0, 0.3)


def test_windows_get_longer_by_the_processor_time_of_the_transfers():
    longer = stretched(WINDOWS, cores=2, sent_bytes=1.0 / DEFAULT.processor_s_per_byte)
    assert longer.computation_s == pytest.approx(1.5)
    assert longer.forward_s == pytest.approx(0.45)
    assert longer.windows["a"] == Window(pytest.approx(1.2), pytest.approx(0.15))
    assert longer.windows["b"] == Window(pytest.approx(0.75), pytest.approx(0.3))


def test_an_accelerator_computes_as_fast_as_before():
    assert stretched(WINDOWS, cores=None, sent_bytes=1e9) is WINDOWS
    nothing = TransferWindows({}, 0.0, 0.0)
    assert stretched(nothing, cores=1, sent_bytes=1e9) is nothing
