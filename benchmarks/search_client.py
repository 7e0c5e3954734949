"""Searches the plan of a cell, in the process of `benchmarks.search` once TensorFlow is loaded."""

from __future__ import annotations

import time

from benchmarks.peers.emulated import times_of
from benchmarks.peers.graph import context_of
from benchmarks.results import Row
from benchmarks.step.cells import Cell
from benchmarks.testbed import PAYLOAD_SHARE
from caramel import Context
from caramel.core.time_facts import TimingTable
from caramel.planning.from_profile import deferrable, outline_of, outlook_of
from caramel.planning.options import Options
from caramel.planning.search.search import search
from caramel.simulation.hardware import hardware_of
from caramel.simulation.network_model import assumed_network

LATENCY_S = 1.5e-3
"""Of one aggregation: about what is measured between the hosts of a bed."""


class Searches:
    """Searches plans, and builds the job of each network once."""

    def __init__(self, budget_tasks: int) -> None:
        self._options = Options(budget_tasks=budget_tasks)
        self._contexts: dict[tuple[str, int, int | None], Context] = {}

    def plan(self, cell: Cell) -> Row:
        """What a search found for a cell; its sample are the seconds of a processor."""
        context = self._context(cell)
        rate = PAYLOAD_SHARE * cell.mbit_per_s * 1e6 / 8
        network = assumed_network(cell.workers, rate, LATENCY_S)
        timing = TimingTable(times_of(cell.case(1), context))
        outline = outline_of(context.op_graph, context.job, timing)
        outlook = outlook_of(outline, hardware_of(network, timing), "shuffle")
        begin = time.process_time()
        found = search(outlook, [], deferrable=deferrable(outline), options=self._options)
        seconds = time.process_time() - begin
        return Row(
            {"network": cell.network, "workers": cell.workers, "rho": cell.rho},
            (seconds,),
            {
                "over_bound": found.best.step_s / outlook.least_s,
                "plain_over_bound": found.plain.step_s / outlook.least_s,
                "groups": len(found.best.candidate.groups),
                "tasks": found.tasks,
            },
        )

    def _context(self, cell: Cell) -> Context:
        key = cell.network, cell.batch, cell.image
        if key not in self._contexts:
            self._contexts[key] = context_of(cell.case(1))
        return self._contexts[key]
