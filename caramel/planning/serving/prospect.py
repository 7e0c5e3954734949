"""What can a search for an order bring at most, and how long does it take? Told before it is made.

Every step computes, and carries all parameters and gradients over the link of each server: no order
is faster than the longest of these. It is compared with the order that needs no times.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from caramel.core.payback import Payback
from caramel.planning.ordering.makespan import Makespan
from caramel.planning.ordering.search import EVALUATIONS
from caramel.planning.prospect import payback_at_most
from caramel.planning.serving.ahead import SHARES
from caramel.planning.serving.course import Begins, Course, begin_of

_TIMES = 2.0  # as long as trying orders takes all that a search does with them
_BEGINS = 4 * len(SHARES)  # of steps: variables ahead in two orders, without gates and with
_TRIES = 3  # of each, of which the shortest counts


def prospect_of(begins: Begins, may_go_ahead: Collection[str]) -> Payback:
    """What a search costs and may bring.

    Args:
        begins: of the plain plan, with the order in which variables are pulled without a search.
        may_go_ahead: the variables that may be pulled ahead.
    """
    plan, worker, order = begins.plan, begins.worker, begins.order
    course = Course.of(begins())
    # Ahead, what no step writes stays on the workers.
    stays = frozenset(may_go_ahead) - plan.job.gradient_of.keys()
    busy_s = {(-1, False): sum(span.end_s - span.begin_s for span in course.computed)}
    for sent in course.sent:
        if sent.is_gradient or sent.variable not in stays:
            key = sent.server, sent.is_gradient
            busy_s[key] = busy_s.get(key, 0.0) + sent.end_s - sent.begin_s
    makespan, numbers = Makespan(worker.graph, worker.times), list(range(len(worker.graph.recvs)))
    tried_s, begun_s = [], []
    for _ in range(_TRIES):
        begin_s = time.perf_counter()
        makespan.picoseconds(numbers)
        tried_s.append(time.perf_counter() - begin_s)
        begin_s = time.perf_counter()
        Course.of(begin_of(plan, worker, order, frozenset()))
        begun_s.append(time.perf_counter() - begin_s)
    pause_s = _TIMES * EVALUATIONS * min(tried_s)
    if plan.job.gradients and may_go_ahead:
        pause_s += _BEGINS * min(begun_s)
    return payback_at_most(pause_s, course.step_s, max(busy_s.values()))
