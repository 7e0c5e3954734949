"""The distributed graph, put together plan by plan."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from caramel.capture.context import Context
from caramel.core.names import in_replica
from caramel.core.plan import Plan
from caramel.core.util.progress import working
from caramel.core.util.stopwatch import Stopwatch
from caramel.modifiers.crossings import Wiring
from caramel.modifiers.defer import moved_ops, step_ops
from caramel.modifiers.invariants import check_graph
from caramel.modifiers.pipeline import MODIFIERS, STEP_MODIFIERS, Modifier, rewrite
from caramel.modifiers.share_state import stand_beside
from caramel.modifiers.traffic_audit import Traffic, audit
from caramel.runtime.execution.distributed_graph import DistributedGraph


class Assembly:
    """A graph in which the plans of one job, or of several steps of it, stand side by side.

    Args:
        stopwatch: told how long each part takes.
        check: look after each modifier for what it has broken.

    Attributes:
        graph: the distributed graph.
    """

    def __init__(self, stopwatch: Stopwatch, *, check: bool = False) -> None:
        self._stopwatch, self._check = stopwatch, check
        self.graph = DistributedGraph()
        self._lock = threading.Lock()  # sessions of one model may be used by different threads

    @working("building the distributed graph")
    def add(self, context: Context, plan: Plan) -> tuple[int, Traffic]:
        """Add the nodes that carry a plan out; returns their number and what a step sends.

        Those of the first plan, whose number is 0, also do what is no training step.

        Args:
            context: the job whose step it is.
            plan: complete.

        Raises:
            TrafficError: a step would send something else than the plan says; the graph is left as
                it was.
            GraphError: there is too much of it.
        """
        with self._lock:
            number = len(self.graph.parts)
            if number == 0:
                graph_def, traffic = self._rewritten(context, plan, MODIFIERS)
                self.graph.add(graph_def)
            else:
                graph_def, traffic = self._rewritten(context, plan, STEP_MODIFIERS)
                self.graph.add(stand_beside(graph_def, plan, number), number)
        self._stopwatch.note("serialise")
        return number, traffic

    def _rewritten(
        self, context: Context, plan: Plan, modifiers: Sequence[Modifier]
    ) -> tuple[Any, Traffic]:
        check = check_graph if self._check else None
        done = rewrite(context.graph_def, plan, modifiers=modifiers, check=check)
        self._stopwatch.add(done.seconds)
        traffic = _audit(context, done.graph_def, plan)
        self._stopwatch.note("audit")
        self._stopwatch.tell(f"{len(done.graph_def.node)} nodes, {plan.workers} workers")
        return done.graph_def, traffic


def _audit(context: Context, graph_def: Any, plan: Plan) -> Traffic:
    functions = {function.signature.name for function in graph_def.library.function}
    known = tf.Graph()

    def definition_of(kind: str) -> Any:
        return None if kind in functions else known.op_def_for_type(kind)

    loss = context.job.loss.op
    step = [*step_ops(plan), *moved_ops(plan)]
    step += [in_replica(worker, loss) for worker in range(plan.workers)]
    return audit(Wiring(graph_def, definition_of), plan, step)
