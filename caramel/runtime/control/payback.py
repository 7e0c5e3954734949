"""When do trials pay? Training pauses while the graphs of plans are made, and gains afterwards.

Nobody knows how long a job is going to train. So trials wait until it has done as many steps as it
takes to gain back what they cost. A job that ends before is left alone; one that goes on loses at
most as much as trials cost, compared with one that had known. (So one rents skis until the rent
has been their price, and buys them then.)
"""

from __future__ import annotations

from collections.abc import Sequence

from caramel.core.payback import Payback
from caramel.runtime.control.step_times import StepTimes
from caramel.runtime.job import PlanSource


def payback_of(
    names: Sequence[str], running: str, plans: PlanSource, times: StepTimes, placing_s: float
) -> Payback | None:
    """What it would cost and bring to try plans, from what the first one has taken.

    Args:
        names: the plans, whose graphs are not there yet.
        running: the one that has done the steps.
        plans: knows them.
        times: how long its steps took. In the first one TensorFlow has prepared its graph.
        placing_s: how long it took to place its graph on the workers, in seconds.

    Returns:
        None if it is not known: nothing is predicted, or another plan than the plain one runs.
        Then steps have drifted, and predictions are no measure.
    """
    found = [plans.forecast(name) for name in [running, *names]]
    predicted_s = [forecast.step_s for forecast in found if forecast is not None]
    if len(predicted_s) < len(found) or not plans.is_plain(running):
        return None
    usual_s = times.recent_median_s or 0.0
    preparing_s = max(0.0, (times.first_s or 0.0) - usual_s)
    pause_s = len(names) * (plans.build_s + placing_s + preparing_s)
    return Payback(pause_s, predicted_s[0] - min(predicted_s[1:]))
