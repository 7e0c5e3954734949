"""The garbage collector is held back while a graph is built or TensorFlow imported, no longer."""

from __future__ import annotations

import gc

import pytest

import caramel
from caramel.cluster.quiet_start import quiet_start
from caramel.core.errors import PlanError
from caramel.core.graph import OpGraph
from caramel.core.time_facts import NetworkModel, TimingTable
from caramel.core.util.gc_pause import held_back
from caramel.simulation.network_model import assumed_network
from tests.support.networks import network, wide


def test_it_is_as_before_afterwards_also_after_an_error():
    assert gc.isenabled()
    with held_back():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), held_back():
        divmod(1, 0)
    assert gc.isenabled()
    gc.disable()
    try:
        with held_back():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_building_holds_it_back_and_leaves_it_enabled():
    context = network("adam", model=wide).context()
    seen = []

    def timing(graph: OpGraph) -> TimingTable:
        seen.append(gc.isenabled())
        return TimingTable(dict.fromkeys(graph.ops, 0.001))

    def links() -> NetworkModel:
        return assumed_network(2, 1e8, 1e-4)

    model = caramel.ARModel(context, 2, analyzers=[timing, links])
    assert seen == [False]
    assert gc.isenabled()
    model.add_variant(model.plan, "again")
    assert gc.isenabled()
    with pytest.raises(PlanError):
        caramel.ARModel(context, 2, pattern="star")
    assert gc.isenabled()


def test_while_tensorflow_is_imported_it_is_held_back_until_that_ends(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")  # no child that hides messages
    with quiet_start() as end:
        assert not gc.isenabled()
        end()
        assert gc.isenabled()
    assert gc.isenabled()
