"""Plans are tried when a job has trained for as long as it takes to gain back what trials cost."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from caramel.core.payback import Payback
from caramel.runtime.control.payback import payback_of
from caramel.runtime.control.step_times import StepTimes
from caramel.runtime.stalls.diagnosis import Forecast


@pytest.mark.parametrize(
    ("pause_s", "saved_s", "steps"),
    [(2.0, 0.01, 200), (0.0, 0.01, 0), (1.0, 0.3, 4), (1.0, 0.0, math.inf), (0.0, -0.1, math.inf)],
)
def test_steps_until_it_is_even(pause_s, saved_s, steps):
    assert Payback(pause_s, saved_s).steps == steps


def source(*, is_plain=True, **steps_s):
    """Plans of which these steps are predicted."""
    return SimpleNamespace(
        build_s=0.25,
        is_plain=lambda name: is_plain and name == "own",
        forecast=lambda name: None if steps_s[name] is None else Forecast(steps_s[name], {}),
    )


def test_trials_cost_what_the_first_plan_has_taken():
    times = StepTimes()
    for step_s in (1.5, 0.25, 0.5, 0.5):  # TensorFlow prepares the first one for a second
        times.record(step_s, is_usual=True)
    plans = source(own=0.5, searched=0.25, second=0.375)
    names = ["searched", "second"]
    assert payback_of(names, "own", plans, times, 0.75) == Payback(2 * 2.0, 0.25)
    assert payback_of(names, "own", plans, StepTimes(), 0.75) == Payback(2 * 1.0, 0.25)


def test_where_nothing_is_predicted_or_steps_have_drifted_nothing_is_known():
    plans = source(own=0.5, searched=None)
    assert payback_of(["searched"], "own", plans, StepTimes(), 1.0) is None
    plans = source(own=0.5, searched=0.25, is_plain=False)
    assert payback_of(["searched"], "own", plans, StepTimes(), 1.0) is None
