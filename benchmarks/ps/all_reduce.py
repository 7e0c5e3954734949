"""Caramel without parameter servers, on the same workers: ``python -m ... CASE RESULT``.

The plan that is predicted to be the fastest, and none, take turns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import caramel
from benchmarks.ps.cells import ALL_REDUCE
from benchmarks.ps.client import ACCELERATOR, Clock, job_of, take_turns
from benchmarks.workers import measured_profile

REPEATS = 5  # of each measurement of the network


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Samples with a plan and without."""
    context, feed = job_of(case)
    profile = measured_profile(context, case["workers"], accelerator=ACCELERATOR, repeats=REPEATS)
    model = caramel.ARModel(context, case["workers"], profile=profile, planner="search")
    plain = f"{ALL_REDUCE}, no plan"
    model.add_variant(model.decision.plain, plain)
    with model.session(trials=None, start_timeout_s=60, step_timeout_s=300) as session:
        samples_s = take_turns(session, ["own", plain], case["rounds"], feed, Clock(), {"own"})
    return {"samples_s": {ALL_REDUCE: samples_s["own"], plain: samples_s[plain]}}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
