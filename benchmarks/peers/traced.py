"""How long the ops of a case take: on one host, while the others train alone.

Hosts share the machine. Of its memory and caches each has only its part then, as it has when all
train; traced while the others are idle, steps of ResNet-50 took 8 % less (by hand).
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.data import Case, prepared
from benchmarks.peers.rank import Rank, leave
from benchmarks.peers.running import Run

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed

TIMING = "timing.json"
TRAINING, TRACED = "training", "traced"  # where the ranks meet


def trace(bed: Testbed, case: Case) -> None:
    """Have the ops of a case timed for `timing_of`, unless they are.

    Raises:
        PeerError: a process failed.
    """
    ready = prepared(case, len(bed.hosts))
    if (ready.directory / TIMING).exists():
        return
    directory = Path(tempfile.mkdtemp(prefix="traced-", dir=ready.directory))
    run = Run(__name__, bed, case, {}, len(bed.hosts), ready, directory)
    try:
        for number, host in enumerate(bed.hosts):
            run.start(host, run.command(number))
        for point in (TRAINING, TRACED):
            run.meet(point, case.timeout_s)
            run.release(point)
    finally:
        run.end()
    (directory / TIMING).rename(ready.directory / TIMING)


def timing_of(directory: str | Path) -> Any:
    """The `caramel.core.time_facts.TimingTable` of the first host, from what was prepared;
    None if nothing was traced there."""
    from caramel.core.time_facts import TimingTable
    from caramel.core.util.json_records import from_json_value

    path = Path(directory) / TIMING
    return from_json_value(TimingTable, json.loads(path.read_text())) if path.exists() else None


def main() -> None:
    """One host: the first one traces, the others train until it is done."""
    import caramel
    from benchmarks.peers import graph
    from caramel.core.util.json_records import to_json_value
    from caramel.profiling.ops import profile_steps

    rank = Rank.read()
    directory, config = Path(rank.directory), graph.config(rank.case)
    caramel.keep_memory()
    job = graph.build(rank.alone())
    if rank.number == 0:
        context = caramel.Context(job.graph, train_op=job.train_op, loss=job.loss)
        rank.meet(TRAINING)
        timing = profile_steps(context, device="/CPU:0", config=config, use_cache=False)
        (directory / TIMING).write_text(json.dumps(to_json_value(timing)))
    else:
        with graph.tf1.Session(graph=job.graph, config=config) as session:
            graph.initialise(session, job)
            step = graph.step_of(session, job)
            step()
            rank.meet(TRAINING)
            while not (directory / f"{TRACED}.0").exists():
                step()
    rank.meet(TRACED)
    leave()


if __name__ == "__main__":
    main()
