"""What transfers cost a machine: defaults, and what a machine has measured in their place."""

from __future__ import annotations

import math

import pytest

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.errors import ProfileError


def test_what_was_measured_takes_the_place_of_defaults():
    older = DEFAULT.with_measured({"transfer_s": 1e-4, "request_s": 2e-5})
    newer = DEFAULT.with_measured({"transfer_s": 3e-4, "message_s": 5e-5})
    joined = older.joined(newer)
    assert joined == Calibration(
        transfer_s=3e-4,
        request_s=2e-5,
        message_s=5e-5,
        measured=("transfer_s", "request_s", "message_s"),
    )
    assert older.joined(DEFAULT) == older


def test_sending_alone_costs_what_all_costs_without_the_additions():
    assert DEFAULT.sending_s_per_byte == 2.1e-9 - 0.125e-9


@pytest.mark.parametrize("wrong", [0.0, -1e-9, math.inf, math.nan])
def test_a_cost_is_a_positive_number(wrong):
    with pytest.raises(ProfileError, match="copy_s_per_byte must be more than 0 and finite"):
        Calibration(copy_s_per_byte=wrong)


def test_what_cannot_be_is_refused():
    with pytest.raises(ProfileError, match=r"nothing can have measured \['speed'\]"):
        Calibration(measured=("speed",))
    with pytest.raises(ProfileError, match="additions of 5e-09 s for each byte are more than"):
        Calibration(reduce_s_per_byte=5e-9)
