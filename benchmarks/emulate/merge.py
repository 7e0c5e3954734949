"""Few long waits in place of many short ones, with every dependency kept.

An op shorter than a grain hands its time on to the op that comes next, so time moves along the
dependencies by less than a grain at each step and none is lost. What then takes no time and means
nothing to the outside drops out; what waited for it waits for what it waited for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

Before = Mapping[str, Sequence[str]]


def gather_times(
    order: Sequence[str],
    before: Before,
    seconds: Mapping[str, float],
    devices: Mapping[str, str],
    grain_s: float,
) -> dict[str, float]:
    """The ops that wait, and how long, in seconds; the sum is that of `seconds`.

    Args:
        order: all ops, each after those it waits for.
        before: the ops that each op waits for.
        seconds: how long each op takes; 0 where it is missing.
        devices: where each op is; time stays on its device.
        grain_s: shortest wait; shorter times move to the first op that follows, or, where none
            does, to the nearest wait before.
    """
    heirs = _heirs(order, before, devices)
    handed = dict.fromkeys(order, 0.0)
    waits: dict[str, float] = {}
    for name in order:
        time = handed[name] + seconds.get(name, 0.0)
        if time <= 0:
            continue
        if time >= grain_s:
            waits[name] = time
        elif name in heirs:
            handed[heirs[name]] += time
        else:
            nearest = _nearest(name, before, waits, devices) or name
            waits[nearest] = waits.get(nearest, 0.0) + time
    return waits


def _heirs(order: Sequence[str], before: Before, devices: Mapping[str, str]) -> dict[str, str]:
    """The first op on the same device that waits for each op."""
    heirs: dict[str, str] = {}
    for name in order:
        for source in before[name]:
            if devices[source] == devices[name]:
                heirs.setdefault(source, name)
    return heirs


def _nearest(
    name: str, before: Before, waits: Mapping[str, float], devices: Mapping[str, str]
) -> str | None:
    """The op with a wait on the same device that the fewest steps lead back to."""
    level, seen = [name], {name}
    while level:
        following: list[str] = []
        for op in level:
            for source in before[op]:
                if source in waits and devices[source] == devices[name]:
                    return source
                if source not in seen:
                    seen.add(source)
                    following.append(source)
        level = following
    return None


def contract(
    order: Sequence[str], before: Before, needed: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """The ops that stay, each with the ops it waits for; none of these twice over.

    All `needed` ops stay, and others where leaving them out would take more edges than it saves.
    Which of the needed ops waits for which, directly or not, is as before.
    """
    sources = {name: dict.fromkeys(before[name]) for name in order}
    readers: dict[str, dict[str, None]] = {name: {} for name in order}
    for name in order:
        for source in before[name]:
            readers[source][name] = None
    for name in order:
        into, out = sources[name], readers[name]
        if name in needed or len(into) * len(out) > len(into) + len(out):
            continue
        for source in into:
            del readers[source][name]
            readers[source].update(out)
        for reader in out:
            del sources[reader][name]
            sources[reader].update(into)
        del sources[name], readers[name]
    return _without_detours([name for name in order if name in sources], sources)


def _without_detours(
    order: Sequence[str], sources: Mapping[str, Collection[str]]
) -> dict[str, tuple[str, ...]]:
    """Leave out an edge wherever a longer way leads between the same ops."""
    bit = {name: 1 << position for position, name in enumerate(order)}
    behind: dict[str, int] = {}  # as bits: the op and all that it waits for
    kept: dict[str, tuple[str, ...]] = {}
    for name in order:
        further = 0
        for source in sources[name]:
            further |= behind[source] ^ bit[source]
        kept[name] = tuple(source for source in sources[name] if not further & bit[source])
        behind[name] = bit[name] | further
        for source in kept[name]:
            behind[name] |= bit[source]
    return kept
