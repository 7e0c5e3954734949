"""Trains in two sessions in turns, one of which takes snapshots: ``python -m ... CASE RESULT``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import caramel
from benchmarks import networks
from benchmarks.faults.snapshots import WITH, WITHOUT
from caramel.runtime.recovery import snapshots


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of each block of steps, of both, and after how many blocks a snapshot was taken."""
    taken: list[int] = []  # the block in which each was
    take = snapshots.Snapshots.take

    def counted(self: Any, running: Any, since: Any, progress: Any = None) -> None:
        take(self, running, since, progress)
        taken.append(len(samples_s[WITH]))

    snapshots.Snapshots.take = counted  # type: ignore[method-assign]
    job = networks.build(case["network"], batch=case["batch"], image=case["image"], dropout=0.0)
    context, feed = job.context(), job.feed()
    samples_s: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    with ExitStack() as stack:
        sessions = {}
        for way, recover in ((WITH, caramel.Recovery()), (WITHOUT, None)):
            model = caramel.ARModel(context, case["workers"], planner="plain")
            sessions[way] = stack.enter_context(model.session(trials=None, recover=recover))
        order = list(sessions)
        for number in range(case["first"] + case["blocks"]):
            for way in order:
                begin_s = time.perf_counter()
                for _ in range(case["steps"]):
                    sessions[way].step(feed)
                samples_s[way].append(time.perf_counter() - begin_s)
            order.reverse()
            print(number, {way: round(own[-1], 3) for way, own in samples_s.items()}, flush=True)
    first = case["first"]
    return {
        "samples_s": {way: own[first:] for way, own in samples_s.items()},
        "snapshots": sum(block >= first for block in taken),
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
