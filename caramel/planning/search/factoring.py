"""Which gradients are sent by their factors?

To send the factors of a gradient in its place saves the wire bytes and costs the device a product
for each other worker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from caramel.core.decision import FACTORS
from caramel.core.plan import Plan
from caramel.planning.candidate import Candidate, Outlook
from caramel.planning.options import Options
from caramel.planning.search.search import search

_QUICK = 24  # part of the budget that each quick search has
_LEAST_TASKS = 4000  # of it
_COARSE = 6  # numbers of factored gradients that are tried first,
_FINE = 4  # and then between the neighbours of the best of them
_FEWER = 2e-3  # of the step that further factors must save


def factored(
    outlook: Outlook,
    deferrable: Callable[[frozenset[str]], str | None],
    options: Options,
) -> tuple[Outlook, Candidate]:
    """The outlook with those gradients of its plain plan by their factors that are worth it.

    A product has to give the same bits on every worker. Kernels of alike processors do, and
    sessions compare (`runtime.steps.factor_comparison`). Those of accelerators need not (some add
    in the order in which their threads end), so `choose` factors nothing where an accelerator
    computes, or where it is not known what does.

    Returns:
        The outlook, the same if there are none; and the best plan without factors that was found
        quickly, the plain one if nothing was looked for.
    """
    order = worthwhile_factors(outlook)
    unplanned = Candidate("plain", outlook.plain.decision.groups, ordered=False)
    if not order:
        return outlook, unplanned
    # Those that save most for what they cost come first; for how many of them, a few numbers are
    # tried, each with a plan that is searched quickly.
    known: dict[int, tuple[float, Outlook, Candidate]] = {}
    tasks = max(_LEAST_TASKS, options.budget_tasks // _QUICK)
    quick = dataclasses.replace(options, budget_tasks=tasks)

    def step_s(count: int) -> float:
        if count not in known:
            own = outlook
            if count:
                own = dataclasses.replace(outlook, plain=by_factors(outlook.plain, order[:count]))
            found = search(own, [], deferrable=deferrable, options=quick)
            longer = 1 + _FEWER * count / len(order)
            known[count] = found.best.step_s * longer, own, found.best.candidate
        return known[count][0]

    coarse = _spread(0, len(order), _COARSE)
    best = min(coarse, key=step_s)
    at = coarse.index(best)
    first, last = coarse[max(0, at - 1)], coarse[min(len(coarse) - 1, at + 1)]
    best = min([best, *_spread(first, last, _FINE + 2)], key=step_s)
    return known[best][1], known[0][2]


def by_factors(plan: Plan, parameters: Sequence[str]) -> Plan:
    """The plain plan with the gradients of some parameters by their factors."""
    chosen = frozenset(parameters)
    groups = [
        dataclasses.replace(group, pattern=FACTORS) if group.members[0] in chosen else group
        for group in plan.decision.groups
    ]
    return plan.deciding(groups=tuple(groups))


def worthwhile_factors(outlook: Outlook) -> list[str]:
    """Parameters whose factors take less than their gradients, those that save most for what they
    cost first."""
    plain, hardware = outlook.plain, outlook.hardware
    others = plain.workers - 1
    slowdown = max(host.slowdown for host in hardware.hosts)
    worth: dict[str, float] = {}
    for group in plain.decision.groups:
        product = outlook.free.products.get(group.members[0])
        if product is None or not group.is_summed:
            continue
        size = plain.bytes(group)
        # An aggregation sends 2 (N - 1) / N of the gradient.
        saved_s = others * (2 * size / plain.workers - product.bytes) / hardware.bytes_per_s
        added_s = hardware.reduce_s_per_byte * size / (hardware.cores or 1)
        cost_s = others * (slowdown * product.seconds + added_s)
        if saved_s > cost_s:
            worth[group.members[0]] = saved_s / cost_s if cost_s else math.inf
    return sorted(worth, key=lambda name: -worth[name])


def _spread(first: int, last: int, count: int) -> list[int]:
    """About so many numbers from the first to the last one, both included."""
    if count < 2 or last - first < count:
        return list(range(first, last + 1))
    return sorted({first + round(n * (last - first) / (count - 1)) for n in range(count)})
