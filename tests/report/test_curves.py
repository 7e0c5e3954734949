"""The picture of how a job scales."""

from __future__ import annotations

import pytest

from caramel.report.curves import round_numbers


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (1.7, 70, [2, 5, 10, 20, 50]),
        (0.438, 0.683, [0.45, 0.5, 0.55, 0.6, 0.65]),
        (1, 1e4, [1, 10, 100, 1000, 10000]),
        (0.0021, 0.0025, [0.0021, 0.0022, 0.0023, 0.0024, 0.0025]),
    ],
)
def test_marks_of_an_axis_are_round_numbers(low, high, marks):
    assert round_numbers(low, high) == marks
