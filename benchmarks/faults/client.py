"""A training that faults disturb: ``python -m benchmarks.faults.client CASE``.

It goes on from its newest checkpoint if it is started again. Each step is told in a file, with the
time at which it ended and the numbers of its examples; at last the variables are written.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from caramel.cluster.quiet_start import quiet_start

with quiet_start():
    import caramel
    from benchmarks.faults.case import Case
    from benchmarks.faults.jobs import IDS, build, ids_of, model_of
    from caramel.core.errors import CheckpointError


def train(case: Case) -> None:
    """Train; the case says what, on which workers, and where to write."""
    kind, directory, checkpoints = case.kind, Path(case.directory), Path(case.checkpoints)
    job = build(kind)
    settings = caramel.Recovery(wait_s=case.wait_s, least_workers=case.count - 1)
    resumed = checkpoints if case.resumes else None
    at_last = checkpoints / "last.ckpt" if case.resumes else None
    not_saved = 0
    soon = caramel.ReplanSettings(least_step_s=1e-6, payback=0.0)
    with (
        _cluster(case) as cluster,
        model_of(kind, job, cluster).session(
            recover=settings,
            replanning=soon,
            resume=resumed,
            save_on_sigterm=at_last,
            lost_after_s=5.0,
        ) as session,
        (directory / "steps").open("a") as told,
    ):
        if job.starter is not None:
            session.run(job.starter)
        for step in range(session.steps_done, case.steps):
            fetches = IDS if kind == "pipeline" else None
            result = session.step(job.feeds(step), fetches)
            ids = result if kind == "pipeline" else ids_of(step)
            row = {"step": step, "at_s": time.time(), "ids": np.asarray(ids).ravel().tolist()}
            told.write(json.dumps(row) + "\n")
            told.flush()
            if (step + 1) % case.save_every == 0:
                # A disk that is full costs a checkpoint, and no training.
                try:
                    session.save(checkpoints / "m.ckpt", global_step=step + 1, keep=3)
                except CheckpointError:
                    not_saved += 1
        values = session.variables()
        recoveries = session.metrics().recoveries
        replicas = [session.variables(worker) for worker in range(session.plan.workers)]
    alike = all(np.array_equal(r[n], v) for r in replicas for n, v in values.items())
    named: dict[str, Any] = dict(values)
    np.savez(directory / "values.npz", **named)
    told_at_last = {
        "alike": alike,
        "not_saved": not_saved,
        "recoveries": [[r.took_s, r.workers, r.repeated, r.reason[:200]] for r in recoveries],
    }
    (directory / "end.json").write_text(json.dumps(told_at_last))


def _cluster(case: Case) -> caramel.Cluster:
    if case.tasks is None:
        return caramel.Cluster.local(case.count, parameter_servers=case.servers or None)
    workers, servers = case.tasks[: case.count], case.tasks[case.count :]
    return caramel.Cluster.of(workers, parameter_servers=servers or None)


if __name__ == "__main__":
    train(Case(**json.loads(sys.argv[1])))
