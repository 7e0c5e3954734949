"""How does a job scale? Its step on given hardware, without a plan and with one, by simulation."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.decision import Group
from caramel.core.explanation import LimitedBy
from caramel.core.patterns import PATTERNS
from caramel.core.plan import Plan
from caramel.core.workload import JobOutline
from caramel.planning.candidate import Candidate, Outlook, sent_bytes
from caramel.planning.from_profile import deferrable, outlook_of, plan_of
from caramel.planning.options import Options
from caramel.planning.search.factoring import factored
from caramel.planning.search.search import search
from caramel.planning.what_if.limits import saved_by
from caramel.simulation.conditions import Conditions
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.simulate import simulate_groups, sizes_of

_AS_FAST = 5e-3  # of the step by which the pattern that is named first may be slower
_MOST_STARTS = 2
_JOINED_BYTES = (4_000_000, 16_000_000, 64_000_000)

BUDGET_TASKS = 20_000
"""How much is simulated to find a plan; a session that trains looks further."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """A job on some hardware.

    Attributes:
        workers: how many.
        alone_s: the step of one worker, as fast as the machine whose ops were timed.
        plain_s: the step if nothing is planned, by pattern.
        planned_s: the step with the best plan that was found.
        pattern: that in which most bytes go in the fastest of these plans.
        limited_by: the resource without whose limits that step would be shortest.
        saved_s: how much shorter, for each resource.
    """

    workers: int
    alone_s: float
    plain_s: Mapping[str, float]
    planned_s: float
    pattern: str
    limited_by: LimitedBy
    saved_s: Mapping[str, float]

    @property
    def step_s(self) -> float:
        """The fastest step."""
        return min(self.planned_s, *self.plain_s.values())

    @property
    def speedup(self) -> float:
        """How many times more examples all workers train on in a second than one does alone."""
        return self.workers * self.alone_s / self.step_s if self.step_s else 0.0

    @property
    def efficiency(self) -> float:
        """The speedup as a share of what it could be."""
        return self.speedup / self.workers


def scale(
    outline: JobOutline,
    hardware: Hardware,
    *,
    alone: Host,
    patterns: Sequence[str] = PATTERNS,
    starts: Sequence[Candidate] = (),
    budget_tasks: int = BUDGET_TASKS,
    calibration: Calibration = DEFAULT,
) -> tuple[Scaled, Candidate]:
    """Predict a job's step on some hardware; also returns the best plan that was found.

    Args:
        outline: the job.
        hardware: of at least two workers.
        alone: the worker that the speedup compares with.
        patterns: which ones may be used.
        starts: plans that were good on similar hardware.
        budget_tasks: how much is simulated to find a plan.
        calibration: the sizes that suit the machines.
    """
    plain = {
        pattern: Candidate(
            pattern, plan_of(outline, hardware.workers, pattern).decision.groups, ordered=False
        )
        for pattern in patterns
    }
    real = outlook_of(outline, hardware, patterns[0], calibration)
    plain_s = {name: real.predict(candidate).step_s for name, candidate in plain.items()}
    least_s = min(plain_s.values())
    fastest = next(name for name in patterns if plain_s[name] <= (1 + _AS_FAST) * least_s)
    planned = plan_for(outline, hardware, fastest, patterns, starts, budget_tasks, calibration)
    planned_s = real.predict(planned).step_s
    best, step_s = planned, planned_s
    if plain_s[fastest] <= planned_s:  # a budget may end before anything better is found
        best, step_s = plain[fastest], plain_s[fastest]
    saved_s = saved_by(
        step_s,
        lambda other: dataclasses.replace(real, hardware=other).predict(best).step_s,
        hardware,
        computation_s=outline.free.computation_s,
        sent_bytes=sent_bytes(_with_groups(real, best), outline.free),
    )
    one = dataclasses.replace(hardware, hosts=(alone,), links=())
    scaled = Scaled(
        workers=hardware.workers,
        alone_s=simulate_groups((), (), Conditions({}, outline.free, one)).step_s,
        plain_s=plain_s,
        planned_s=planned_s,
        pattern=_main_pattern(best, real) or fastest,
        limited_by=max(saved_s, key=lambda name: saved_s[name]),
        saved_s={str(name): seconds for name, seconds in saved_s.items()},
    )
    return scaled, planned


@dataclass(frozen=True, slots=True)
class Setting:
    """One of several things that a job may run on.

    Attributes:
        workers: how many.
        bits_per_s: of the links; None if each worker has its own.
        latency_s: of the network, one way.
    """

    workers: int
    bits_per_s: float | None
    latency_s: float


def sweep(
    outline: JobOutline,
    hardware: Mapping[Setting, Hardware],
    *,
    alone: Host,
    patterns: Sequence[str] = PATTERNS,
    calibration: Calibration = DEFAULT,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[Setting, Scaled]:
    """A job in each of several settings; what was good in one is tried in the next ones too.

    Args:
        outline: the job.
        hardware: what workers and links can do in each setting.
        alone: the worker that speedups compare with.
        patterns: which ones may be used.
        calibration: the sizes that suit the machines.
        progress: is told how many settings are done, and of how many.
    """
    found: dict[Setting, Scaled] = {}
    plans: dict[Setting, Candidate] = {}
    for number, (setting, own) in enumerate(hardware.items()):
        progress(number, len(hardware))
        # The last ones first.
        near = [plans[each] for each in reversed(plans) if _is_near(each, setting)]
        found[setting], plans[setting] = scale(
            outline,
            own,
            alone=alone,
            patterns=patterns,
            starts=near[:_MOST_STARTS],
            calibration=calibration,
        )
    progress(len(hardware), len(hardware))
    return coherent(found)


def coherent(found: Mapping[Setting, Scaled]) -> dict[Setting, Scaled]:
    """The same, where no resource saves less than another setting shows that more of it does.

    What a resource saves is found with one plan. With more of it another plan may be better: one
    that sends gradients in place of their factors, say.
    """
    return {setting: _beside(setting, scaled, found) for setting, scaled in found.items()}


def _beside(setting: Setting, scaled: Scaled, found: Mapping[Setting, Scaled]) -> Scaled:
    saved_s = dict(scaled.saved_s)
    for other, own in found.items():
        for name, field in (("wire", "bits_per_s"), ("latency", "latency_s")):
            if _has_more(other, setting, field):
                saved_s[name] = max(saved_s[name], scaled.step_s - own.step_s)
    limited_by: Any = max(saved_s, key=lambda name: saved_s[name])
    return dataclasses.replace(scaled, saved_s=saved_s, limited_by=limited_by)


def _has_more(other: Setting, setting: Setting, field: str) -> bool:
    """Whether the one has a better network, and all else alike."""
    mine, theirs = getattr(setting, field), getattr(other, field)
    if mine is None or theirs is None:
        return False
    if dataclasses.replace(other, **{field: mine}) != setting:
        return False
    return bool(theirs > mine if field == "bits_per_s" else theirs < mine)


def _is_near(one: Setting, other: Setting) -> bool:
    """Whether settings differ in one thing only."""
    return sum(a != b for a, b in zip(astuple(one), astuple(other), strict=True)) == 1


def plan_for(
    outline: JobOutline,
    hardware: Hardware,
    plain_pattern: str,
    patterns: Sequence[str] = PATTERNS,
    starts: Sequence[Candidate] = (),
    budget_tasks: int = BUDGET_TASKS,
    calibration: Calibration = DEFAULT,
) -> Candidate:
    """The best plan that is found for some hardware.

    Where workers differ, it is one for as many that are all like the slowest. Factors are sent if
    processors compute and any pattern may be used.
    """
    outlook = outlook_of(outline, _alike(hardware), plain_pattern, calibration)
    costs = {name: outlook.network.costs[name] for name in patterns}
    outlook = dataclasses.replace(
        outlook, network=dataclasses.replace(outlook.network, costs=costs)
    )
    options = Options(budget_tasks=budget_tasks)
    if outline.on_processor and set(patterns) == set(PATTERNS):
        outlook, _ = factored(outlook, deferrable(outline), options)
    starts = [*starts, *(_joined(outlook, size) for size in _JOINED_BYTES)]
    found = search(outlook, starts, deferrable=deferrable(outline), options=options)
    return found.best.candidate


def _joined(outlook: Outlook, most_bytes: int) -> Candidate:
    """All gradients in the order in which they are ready, joined up to some size, sent at once."""
    ready = outlook.ordered.ready_s
    groups: list[Group] = []
    size, last_dtype = 0, ""
    for group in sorted(outlook.plain.decision.groups, key=lambda g: ready.get(g.members[0], 0.0)):
        own = outlook.plain.bytes(group) if group.is_summed else most_bytes + 1
        dtype = outlook.plain.gradient(group.members[0]).spec.dtype
        if groups and size + own <= most_bytes and dtype == last_dtype:
            members = groups[-1].members + group.members
            groups[-1] = dataclasses.replace(groups[-1], members=members)
            size += own
        else:
            groups.append(dataclasses.replace(group, name=f"group_{len(groups)}"))
            size, last_dtype = own, dtype
    return Candidate("joined", tuple(groups))


def _alike(hardware: Hardware) -> Hardware:
    """Workers that are all like the slowest in each respect."""
    hosts = hardware.hosts
    slowest = Host(
        min(host.send_bytes_per_s for host in hosts),
        min(host.receive_bytes_per_s for host in hosts),
        max(host.slowdown for host in hosts),
    )
    return dataclasses.replace(hardware, hosts=(slowest,) * len(hosts), links=())


def _main_pattern(candidate: Candidate, outlook: Outlook) -> str:
    """The pattern in which most bytes go."""
    sizes = sizes_of(outlook.plain, candidate.parts)
    total: Counter[str] = Counter()
    for group in candidate.groups:
        if group.is_summed:
            total[group.pattern] += sum(sizes[name].bytes for name in group.members)
    return max(total, key=lambda name: total[name], default="")


def _with_groups(outlook: Outlook, candidate: Candidate) -> Plan:
    """A plan with the groups of a candidate."""
    parts, groups = candidate.parts, candidate.groups
    return outlook.plain.deciding(parts=parts, groups=groups)
