"""What is explained of a placed step: of graphs computed by hand, and of random ones."""

from __future__ import annotations

import math

import pytest

from caramel.core.errors import PlanError
from caramel.core.explanation import Explanation
from caramel.core.names import TensorRef, received, sent
from caramel.core.placed_step import Alone, Crossing, DeviceUse, PlacedDevice, Stretch
from caramel.core.timeline import Span, Timeline
from caramel.planning.placement.explain import (
    alone_on_one,
    explain_placed,
    predicted_timeline,
    stretches,
)
from caramel.planning.placement.from_graph import PlacedGraph
from caramel.planning.placement.place import Placed, place
from caramel.planning.placement.planner import Layout
from caramel.planning.placement.simulate import simulate
from tests.support.placement import chain, digits, problem, random_problem


def layout_of(graph, placed):
    ops = tuple((vertex.name,) for vertex in graph.vertices)
    tensors = tuple(TensorRef(ops[tensor.source][0], 0) for tensor in graph.tensors)
    return Layout(PlacedGraph(graph, ops, tensors), placed, knows_times=True)


def explained_chain(**options):
    """Device 0 executes v0 and v1 until 4, device 1 gets 2 bytes until 6, and executes v2."""
    graph = chain(12)
    return explain_placed(layout_of(graph, place(graph, "critical_path")), **options)


def test_a_chain_over_two_devices():
    found = explained_chain(job="train", planner="critical_path")
    placed = found.placed
    assert (found.step_s, found.computation_s, found.wire_limit_s) == (10, 4, 2)
    assert (found.parameters, found.parameter_bytes, found.workers) == (3, 12, 2)
    assert (placed.path_bound_s, placed.work_bound_s) == (6, 4)
    # On one device 12 bytes stay, and what v1 reads and puts out is there at once.
    assert placed.alone == Alone(0, 6.0, 16, fits=False)
    assert placed.devices == (
        PlacedDevice("d0", 2, 8, 12, DeviceUse(4.0, 2, 0, 4)),
        PlacedDevice("d1", 1, 4, 12, DeviceUse(4.0, 0, 2, 2)),
    )
    assert placed.chain == (
        Stretch("ops", 0, ("v0", "v1"), 0.0, 4.0),
        Stretch("transfer", 1, ("v1",), 4.0, 6.0, 0.0, 2),
        Stretch("ops", 1, ("v2",), 6.0, 10.0),
    )
    assert placed.crossings == (Crossing("v1:0", 0, 1, 2, 4.0, 6.0, 6.0),)
    assert found.limited_by == "a dependency"
    changes = {each.change: (each.step_s, each.note) for each in found.what_if}
    assert changes["twice the bandwidth"] == (9.0, "")
    assert changes["devices twice as fast"] == (6.0, "")
    assert changes["all on device 0 (16 B)"] == (6.0, "which has less memory")


def test_what_waits_for_a_device_and_for_a_link_is_told():
    # v0 and v1 take turns on device 0; what v1 puts out waits until v0's is there.
    graph = problem((1, 1, 1), [(0, 4, (2,)), (1, 4, (2,))], (1, 1), 2)
    placement = digits("001")
    schedule = simulate(graph, placement, "fifo", links="one")
    assert schedule.makespan_s == 6
    assert stretches(graph, placement, schedule) == [
        Stretch("ops", 0, ("v0", "v1"), 0.0, 2.0, waiting_s=1.0),
        Stretch("transfer", 1, ("v1",), 2.0, 5.0, 1.0, 4),
        Stretch("ops", 1, ("v2",), 5.0, 6.0),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_pictures_agree_with_the_simulation(seed):
    graph = random_problem(seed, vertices=12, devices=3)
    placed = place(graph, "hash", "pct", links="one", seed=seed)
    timeline = predicted_timeline(layout_of(graph, placed))
    assert timeline.begin_s + timeline.step_s == pytest.approx(placed.makespan_s)
    for number, curve in enumerate(timeline.memory):
        resident = math.fsum(
            vertex.resident_bytes
            for vertex, on in zip(graph.vertices, placed.placement, strict=True)
            if on == number
        )
        assert curve.peak_bytes + resident == pytest.approx(placed.peaks[number])
    # The chain leaves no gap, and its parts are as long as the step.
    found = stretches(graph, placed.placement, placed.schedule)
    assert found[0].begin_s == 0
    assert [each.end_s for each in found[:-1]] == [each.begin_s for each in found[1:]]
    assert found[-1].end_s == placed.makespan_s
    assert all(each.waiting_s <= each.length_s + 1e-9 for each in found)


@pytest.mark.parametrize(
    ("memory", "alone"),
    [(12, Alone(0, 12.0, 16, fits=False)), (16, Alone(1, 6.0, 16, fits=True))],
)
def test_one_device_alone_is_the_fastest_that_has_room(memory, alone):
    tensors = [(0, 2, (1,)), (1, 2, (2,))]
    graph = problem((4, 4, 4), tensors, (1, 2), 1, memory=memory, resident=4)
    assert alone_on_one(graph) == alone


def test_what_was_measured_has_the_users_names_and_the_median():
    def traced(late_s):
        crossing = sent("worker_0/v1", 0, 1)
        return Timeline(
            (
                Span("compute", "worker_0/v0", 7.0, 9.0 + late_s, 0),
                Span("send", crossing, 9.5, 10.0, 0, 2),
                Span("receive", crossing, 9.5, 10.0, 1, 2),
                Span("compute", received("worker_0/v1", 0, 1), 10.0, 10.5, 1),
            ),
            "own",
        )

    found = explained_chain(measured=[traced(0.0), traced(0.5), traced(0.25)], measured_step_s=11.0)
    assert found.placed.devices[0].measured == DeviceUse(2.25, 2, 0, None)
    assert found.placed.devices[1].measured == DeviceUse(0.5, 0, 2, None)
    assert [(s.name, s.begin_s) for s in found.measured.spans] == [
        ("v0", 0.0),
        ("v1", 2.5),
        ("v1", 2.5),
        ("v1", 3.0),
    ]


def test_it_survives_json():
    found = explained_chain(measured_step_s=11.0)
    assert Explanation.from_json(found.to_json()) == found


def test_nothing_known_is_said():
    graph = problem((0, 0), [(0, 0, (1,))], (1, 1), 1)
    nothing = Placed((0, 0), simulate(graph, (0, 0)), (0.0, 0.0))
    with pytest.raises(PlanError, match="nothing is known of times or of sizes"):
        explain_placed(layout_of(graph, nothing))
