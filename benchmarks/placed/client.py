"""Measures a network that is spread over two workers: ``python -m ... CASE RESULT``.

The network is profiled where it is measured, on one of the workers. Ways take turns, one step each
in every round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import caramel
from benchmarks import networks
from benchmarks.placed.show import ALONE, ORDERED, UNORDERED

WARM_UP = 2


def measure(case: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each way: seconds of its steps, what was predicted of them, and what devices hold."""
    job = networks.build(case["network"], batch=case["batch"], image=case["image"])
    context, feed = job.context(), job.feed()
    profile = _profile(context, case, feed)
    first = caramel.Cluster.coerce(case["workers"]).devices[:1]
    alone = caramel.PlacedModel(context, case["workers"], device_list=first, profile=profile)
    memory = case["share"] * alone.memory_bytes[0]
    begin_s = time.perf_counter()
    placed = caramel.PlacedModel(
        context,
        case["workers"],
        memory=memory,
        partitioner=case["partitioner"],
        profile=profile,
        order="schedule",
    )
    took_s = time.perf_counter() - begin_s
    placed.add_variant(placed.decision.plain, UNORDERED)
    with alone.session(trials=None) as single, placed.session(trials=None) as both:

        def spread(name: str) -> float:
            both.use(name)
            return float(both.step(feed))

        ways: dict[str, Callable[[], float]] = {
            ALONE: lambda: float(single.step(feed)),
            ORDERED: lambda: spread("own"),
            UNORDERED: lambda: spread(UNORDERED),
        }
        found = _take_turns(ways, case["rounds"])
    for way, own in found.items():
        model = alone if way == ALONE else placed
        sent = sum(each.bytes or 0 for each in model.plan.consequences.sendings)
        own |= {
            "predicted_s": model.predicted_step_s,
            "memory_bytes": list(model.memory_bytes),
            "limit_bytes": None if way == ALONE else memory,
            "sent_bytes": sent,
            "edges": len(model.plan.decision.edges) if way == ORDERED else 0,
            "planning_s": None if way == ALONE else took_s,
        }
    return found


def _profile(
    context: caramel.Context, case: Mapping[str, Any], feed: Mapping[str, Any]
) -> caramel.core.profile.Profile:
    """What a step on the first worker alone tells."""
    first = caramel.Cluster.coerce(case["workers"]).devices[:1]
    model = caramel.PlacedModel(context, case["workers"], device_list=first)
    with model.session(trials=None) as session:
        for _ in range(WARM_UP):
            session.step(feed)
        return session.profile(case["traced"], feed)


def timed_steps(step: Callable[[], float], count: int) -> list[float]:
    """Seconds of some steps after those that warm up."""
    for _ in range(WARM_UP):
        step()
    samples_s = []
    for _ in range(count):
        begin_s = time.perf_counter()
        step()
        samples_s.append(time.perf_counter() - begin_s)
    return samples_s


def _take_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds of a step of each way in each round, and whether its last loss is a number."""
    samples_s: dict[str, list[float]] = {way: [] for way in ways}
    losses = {}
    for step in ways.values():
        for _ in range(WARM_UP):
            step()
    order = list(ways)
    for _ in range(rounds):
        for way in order:
            begin_s = time.perf_counter()
            losses[way] = ways[way]()
            samples_s[way].append(time.perf_counter() - begin_s)
        order = [*order[1:], order[0]]
    return {
        way: {"samples_s": own, "invalid": None if np.isfinite(losses[way]) else "loss"}
        for way, own in samples_s.items()
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
