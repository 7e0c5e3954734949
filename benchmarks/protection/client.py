"""Trains a network on workers as they are and on protected ones: ``python -m ... CASE RESULT``."""

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
from benchmarks.emulate import emulate
from benchmarks.protection import PLAIN, SECURE

WARM_UP = 2


def measure(case: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Of each kind of workers: seconds of its steps, and their losses."""
    job = networks.build(case["network"], batch=case["batch"], image=case["image"], dropout=0.0)
    context, feed = job.context(), job.feed()
    if case["computation_s"] is not None:
        context, feed = emulate(context, case["computation_s"], batch=case["batch"]), {}
    addresses = case["workers"]
    clusters = {
        PLAIN: caramel.Cluster.of(addresses[PLAIN]),
        SECURE: caramel.Cluster.of(addresses[SECURE], certificates=case["certificates"]),
    }
    found: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        sessions = {}
        for kind, cluster in clusters.items():
            stack.enter_context(cluster)
            model = caramel.ARModel(context, cluster, planner="plain")
            sessions[kind] = stack.enter_context(model.session(trials=None))
            found[kind] = {"samples_s": [], "losses": []}
        order = list(sessions)
        for number in range(WARM_UP + case["rounds"]):
            for kind in order:
                begin_s = time.perf_counter()
                loss = float(sessions[kind].step(feed))
                if number >= WARM_UP:
                    found[kind]["samples_s"].append(time.perf_counter() - begin_s)
                found[kind]["losses"].append(loss)
            order.reverse()
    return found


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
