"""Models planned for a slow network: transfers are worth to be deferred and gated."""

from __future__ import annotations

import caramel
from caramel.core.graph import OpGraph
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.simulation.network_model import assumed_network

FLAGS = ("serialization", "batching", "scheduling", "adaptive_depth")


def every_op_takes_a_millisecond(graph: OpGraph) -> TimingTable:
    return TimingTable({op.name: 1e-3 for op in graph if op.inputs})


def slow_network(workers):
    """A network slow enough for transfers to be deferred."""

    def network_model() -> NetworkModel:
        return assumed_network(workers, 1e5, 1e-4)

    return network_model


def model_of(context, workers, *, pattern="shuffle", **flags):
    facts = [every_op_takes_a_millisecond, slow_network(workers)]
    options = {"pattern": pattern, "planner": "paper", "in_flight_bytes": 0, **flags}
    return caramel.ARModel(context, workers, analyzers=facts, check=True, **options)
