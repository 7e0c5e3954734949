"""Trains the job of the pictures on running workers, and writes the page that explains it.

    PYTHONPATH=.:docs python docs/pages.py MODEL CLUSTER PROFILE PAGE

MODEL is ARModel, PSModel or PlacedModel; CLUSTER are addresses, or JSON of workers and servers.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from digits_job import BATCH, make_context

import caramel
from caramel.core.profile import Profile

STEPS, TRACED = 40, 5
MEMORY = "20MiB"
"""Of each device, on none of which the whole job has room."""


def make_model(name: str, context: caramel.Context, workers: caramel.Cluster, profile: Path) -> Any:
    """The model of that name."""
    if name == "PlacedModel":
        # Times are those of a worker's part, and sizes too.
        known = Profile.load(profile)
        return caramel.PlacedModel(context, workers, memory=MEMORY, profile=known, batch_size=BATCH)
    return getattr(caramel, name)(context, workers, profile=profile)


def main(name: str, cluster: str, profile: str, page: str) -> None:
    """Train, measure, explain."""
    context, own = make_context()
    workers = caramel.Cluster.parse(cluster)
    # Each worker has as much as what was profiled.
    several = workers.size if name != "PlacedModel" else 1
    feeds = {key: value if value is True else [*value] * several for key, value in own.items()}
    model = make_model(name, context, workers, Path(profile))
    with model.session() as session:
        for _ in range(STEPS):
            session.step(feeds)
        step_s = session.metrics().usual_step_s
        explained = model.explain(session.trace(TRACED, feeds), measured_step_s=step_s)
    explained.save_page(page)


if __name__ == "__main__":
    main(*sys.argv[1:])
