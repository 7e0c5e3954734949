"""Which ops of a graph prepare steps: what initialises, fills, starts and reads?

They run in the copy of the graph that trains, without a step. So nothing that a plan adds may let
them wait for part of one.
"""

from __future__ import annotations

from caramel.core.facts import TrainingJob
from caramel.core.graph import OpGraph


def preparing(graph: OpGraph, job: TrainingJob) -> list[str]:
    """What fills tables, initialises and reads variables, and starts input pipelines."""
    found = list(job.table_initializers)
    found += [name for v in job.variables for name in (v.initializer, v.read)]
    found += [op.name for op in graph if op.kind == "MakeIterator"]
    return found
