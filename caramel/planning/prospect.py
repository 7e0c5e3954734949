"""What can a search for a plan bring at most, and how long does it take? Told before it is made.

No plan is faster than what bounds every step: what has to be computed, or sent. So a search for a
job whose plain plan is near that bound brings nothing, however long it takes. `serving.prospect`
tells it of steps with parameter servers.
"""

from __future__ import annotations

import time

from caramel.core.payback import Payback
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.options import Options
from caramel.planning.search.factoring import worthwhile_factors

WORTH_PLANNING = 0.98
"""A plan is worth it if its step is predicted to take at most this part of what is done without."""

_PREDICTIONS = 2500
"""That a search makes if its budget allows it: 1,700 to 4,200 of networks of 4 to 24 layers."""

_TIMES = 2.0  # as long as predicting a plan takes all that a search does with it
_TRIES = 3  # of a prediction, of which the shortest counts: the first one prepares what others use


def prospect_of(outlook: Outlook, options: Options) -> Payback:
    """What a search costs and may bring.

    Args:
        outlook: for predictions.
        options: which optimizations may be used, and how much may be simulated.
    """
    plain = Candidate("plain", outlook.plain.decision.groups, ordered=False)
    seconds = []
    for _ in range(_TRIES):
        begin_s = time.perf_counter()
        prediction = outlook.predict(plain)
        seconds.append(time.perf_counter() - begin_s)
    predictions = min(_PREDICTIONS, options.budget_tasks / max(1, prediction.tasks))
    least_s = outlook.least_s
    if options.sends_factors and worthwhile_factors(outlook):  # then less has to be sent
        least_s = min(least_s, outlook.free.computation_s)
    return payback_at_most(_TIMES * min(seconds) * predictions, prediction.step_s, least_s)


def payback_at_most(pause_s: float, step_s: float, least_s: float) -> Payback:
    """What a search costs, and may bring where nothing is faster than a bound.

    Args:
        pause_s: how long it takes.
        step_s: the step without it.
        least_s: the bound. If the step is near it, nothing that is found could be worth it.
    """
    return Payback(pause_s, step_s - least_s if least_s <= WORTH_PLANNING * step_s else 0.0)
