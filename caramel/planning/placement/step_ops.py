"""Which ops of a step may wait for more than they do, and which not?"""

from __future__ import annotations

from dataclasses import dataclass

from caramel.analyzers.branches import predicates_around
from caramel.analyzers.preparing import preparing
from caramel.core.facts import TrainingJob
from caramel.core.graph import OpGraph
from caramel.planning.placement.from_graph import PlacedGraph

_CONTROL_FLOW = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"})


@dataclass(frozen=True)
class StepOps:
    """Ops of the steps of a job.

    Attributes:
        steady: that run in every step, and once: none in a v1 loop or conditional, which may end
            without a value for what waits.
        beside: that something else than a step runs, too, as what an initializer reads. If they
            waited for part of a step, that would run part of a step.
    """

    steady: frozenset[str]
    beside: frozenset[str]


def step_ops(layout: PlacedGraph, graph: OpGraph, job: TrainingJob) -> StepOps:
    """The ops of the steps of a job.

    Args:
        layout: has them all.
        graph: the single-device graph.
        job: its variables and tables.
    """
    around = predicates_around(graph)
    steady = frozenset(
        names[0]
        for names in layout.ops
        if len(names) == 1
        and names[0] in graph
        and not around[names[0]]
        and graph[names[0]].kind not in _CONTROL_FLOW
    )
    step = {name for names in layout.ops for name in names}
    first = preparing(graph, job)
    # Also what the user may have grouped with these. The rest of what no step runs (summaries, say)
    # runs in a copy of its own where ops are ordered (`planning.complete`).
    programs = set(first)
    for name in graph.topological_order():
        if name not in step and not programs.isdisjoint(graph[name].sources):
            programs.add(name)
    return StepOps(steady, frozenset(graph.ancestors(name for name in programs if name in graph)))
