"""Which variables are sent to workers as soon as they were updated, for the next step?

What is pulled when a step begins travels beside its forward pass, in the order in which it is
needed. What is pulled ahead travels beside the backward pass, and beside gradients that still go
the other way. Gradients of the last layers are ready first, so their variables are the first that
can be pulled ahead. Variables of the first layers are worth it most, since a step begins with them,
if their gradients need not wait for others (`pushes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from caramel.core.decision import Gate
from caramel.planning.serving.course import Begin, Begins, Course

SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
"""Of all bytes, that are tried to be pulled ahead."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What is pulled ahead, and how long a step is predicted to take then, in seconds."""

    variables: frozenset[str]
    step_s: float


def choose_ahead(
    begins: Begins,
    may: Sequence[str],
    gates: Callable[[Begin], Sequence[Gate]] = lambda begin: (),
) -> Ahead:
    """What to pull ahead so that the step is the shortest.

    Args:
        may: the variables that may be pulled ahead.
        gates: what gradients wait for, by how the step begins.
    """
    variables, written = begins.plan.job.variable_of, begins.plan.job.gradient_of
    allowed = frozenset(may)
    needed = [name for name in begins.order if name in allowed]
    ready = [name for push in begins().pushes for name, _ in push.members if name in allowed]
    unwritten = [name for name in needed if name not in written]  # these stay on the workers

    @cache
    def step_s(ahead: frozenset[str]) -> float:
        begin = begins(ahead)
        return Course.of(begin, gates(begin)).step_s

    found = []
    for names in (ready, needed):
        first = dict.fromkeys([*unwritten, *names])
        found.append(shortest({n: variables[n].spec.bytes or 0 for n in first}, step_s))
    return min(found, key=lambda each: (each.step_s, len(each.variables)))


def shortest(sizes: Mapping[str, int], step_s: Callable[[frozenset[str]], float]) -> Ahead:
    """What to pull ahead of some variables: the shares of them with which a step is the shortest,
    and of these the least.

    Args:
        sizes: bytes of each variable, those first that are to go ahead first.
        step_s: how long a step takes with some of them ahead, in seconds.
    """
    tried: list[Ahead] = []
    for share in SHARES:
        left, chosen = share * sum(sizes.values()), set[str]()
        for name, size in sizes.items():
            if left <= 0:
                break
            chosen.add(name)
            left -= size
        ahead = frozenset(chosen)
        if not any(each.variables == ahead for each in tried):
            tried.append(Ahead(ahead, step_s(ahead)))
    return min(tried, key=lambda each: (each.step_s, len(each.variables)))
