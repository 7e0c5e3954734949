"""Timelines of small steps, computed by hand (`small_steps`)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caramel.core.decision import Decided, Gate
from caramel.core.errors import PlanError
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.plan import Plan
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.core.time_facts import Link
from caramel.core.timeline import Span
from caramel.core.workload import Piece, Size, Update, Workload
from caramel.simulation.conditions import Conditions
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.loads import Load, load_of
from caramel.simulation.simulate import GroupTimes, simulate, simulate_groups, sizes_of
from tests.support.simulations import FREE, PATTERNS, hosts, unfolded
from tests.support.small_steps import (
    ADDING,
    BOTH,
    KIB_2,
    ONE_LAYER,
    RATE,
    TWO,
    TWO_LAYERS,
    computed,
    group,
    predicted,
    spans,
    update,
)


def test_one_worker_computes_and_sends_nothing():
    one = predicted(ONE_LAYER, hardware=hosts(1, RATE))
    assert one.timeline.spans == (
        Span("compute", "f", 0.0, 1.0),
        Span("compute", "b", 1.0, 3.0),
        Span("compute", "u_p", 3.0, 3.5),
    )
    assert (one.step_s, one.groups) == (3.5, {})


def test_a_group_of_one_worker_is_there_when_it_is_ready():
    one = predicted(ONE_LAYER, group("g", "p"), hardware=hosts(1, RATE))
    assert (one.step_s, one.groups) == (3.5, {"g": GroupTimes(3.0, 3.0)})


@pytest.mark.parametrize("hardware", [TWO, unfolded(TWO)])
def test_two_workers(hardware):
    two = predicted(ONE_LAYER, group("g", "p"), hardware=hardware)
    own = [
        Span("compute", "f", 0.0, 1.0),
        Span("compute", "b", 1.0, 3.0),
        Span("receive", "g", 3.0, 4.0, bytes=1024),
        Span("send", "g", 3.0, 4.0, bytes=1024),
        Span("receive", "g", 4.0, 5.0, bytes=1024),
        Span("send", "g", 4.0, 5.0, bytes=1024),
        Span("compute", "u_p", 5.0, 5.5),
    ]
    everything = [replace(span, worker=worker) for span in own for worker in (0, 1)]
    key = lambda s: (s.begin_s, s.end_s, s.worker, s.name, s.resource)  # noqa: E731
    assert sorted(two.timeline.spans, key=key) == sorted(everything, key=key)
    assert two.step_s == 5.5
    assert two.groups == {"g": GroupTimes(3.0, 5.0)}


@pytest.mark.parametrize("hardware", [TWO, unfolded(TWO)])
def test_two_groups_on_one_link(hardware):
    """g_q's second round and g_p's first one both begin at 3 s, and may go in any order."""
    two = predicted(TWO_LAYERS, *BOTH, hardware=hardware)
    assert spans(two) == [
        ("compute", "f_p", 0.0, 0.5),
        ("compute", "f_q", 0.5, 1.0),
        ("compute", "b_q", 1.0, 2.0),
        ("compute", "b_p", 2.0, 3.0),
        ("send", "g_q", 2.0, 3.0),
        ("send", "g_p", 3.0, 4.0),
        ("send", "g_q", 4.0, 5.0),
        ("compute", "u_q", 5.0, 5.5),
        ("send", "g_p", 5.0, 6.0),
        ("compute", "u_p", 6.0, 6.5),
    ]


@pytest.mark.parametrize("hardware", [TWO, unfolded(TWO)])
def test_a_gate_lets_a_group_wait_for_another(hardware):
    two = predicted(TWO_LAYERS, *BOTH, hardware=hardware, gates=[Gate("g_p", after="g_q")])
    assert two.groups == {"g_q": GroupTimes(2.0, 4.0), "g_p": GroupTimes(4.0, 6.0)}
    assert computed(two)["u_q"] == [4.0, 4.5]
    assert two.step_s == 6.5


def test_a_gate_may_name_a_group_that_stands_behind():
    two = predicted(TWO_LAYERS, *BOTH, gates=[Gate("g_q", after="g_p")])
    assert two.groups == {"g_p": GroupTimes(3.0, 5.0), "g_q": GroupTimes(5.0, 7.0)}


DEFERRED = (group("g_q", "q", deferred=True), group("g_p", "p"))


@pytest.mark.parametrize("hardware", [TWO, unfolded(TWO)])
def test_a_deferred_group_goes_beside_the_forward_pass_which_waits_for_its_update(hardware):
    two = predicted(TWO_LAYERS, *DEFERRED, hardware=hardware)
    assert spans(two) == [
        ("compute", "f_p", 0.0, 0.5),
        ("send", "g_q", 0.0, 1.0),
        ("send", "g_q", 1.0, 2.0),
        ("compute", "u_q", 2.0, 2.5),
        ("compute", "f_q", 2.5, 3.0),
        ("compute", "b_q", 3.0, 4.0),
        ("compute", "b_p", 4.0, 5.0),
        ("send", "g_p", 5.0, 6.0),
        ("send", "g_p", 6.0, 7.0),
        ("compute", "u_p", 7.0, 7.5),
    ]


def test_in_the_first_step_nothing_is_pending():
    first = predicted(TWO_LAYERS, *DEFERRED, pending=False)
    assert computed(first) == {
        "f_p": [0.0, 0.5],
        "f_q": [0.5, 1.0],
        "b_q": [1.0, 2.0],
        "b_p": [2.0, 3.0],
        "u_p": [5.0, 5.5],
    }
    assert first.groups == {"g_p": GroupTimes(3.0, 5.0)}


def test_a_gate_behind_a_deferred_group_counts_only_if_that_is_pending():
    gates = [Gate("g_p", after="g_q")]
    sizes = {"q": Size(1536, 4), "p": KIB_2}
    long = predicted(TWO_LAYERS, *DEFERRED, gates=gates, sizes=sizes)
    assert long.groups == {"g_q": GroupTimes(0.0, 6.0), "g_p": GroupTimes(9.0, 11.0)}
    first = predicted(TWO_LAYERS, *DEFERRED, gates=gates, sizes=sizes, pending=False)
    assert first.groups == {"g_p": GroupTimes(3.0, 5.0)}


def test_an_update_interrupts_the_forward_pass():
    """It arrives after 2 s of a piece of 3 s, which goes on when the update is done."""
    workload = Workload(
        (Piece("long", 3.0), Piece("f", 1.0, needs=frozenset("p")), Piece("b", 1.0, yields=("p",))),
        (update("p"),),
    )
    two = predicted(workload, group("g", "p", deferred=True))
    assert computed(two) == {
        "long": [0.0, 3.5],
        "u_p": [2.0, 2.5],
        "f": [3.5, 4.5],
        "b": [4.5, 5.5],
    }


def test_an_update_that_stays_does_not_wait_for_deferred_groups():
    """A step counter, say: what it waits for has arrived in the step before."""
    counter = Update("counter", 0.25, frozenset("pq"))
    workload = replace(TWO_LAYERS, updates=(*TWO_LAYERS.updates, counter))
    two = predicted(workload, *DEFERRED)
    assert computed(two)["u_p"] == [7.0, 7.5]
    assert computed(two)["counter"] == [7.5, 7.75]
    all_deferred = [replace(each, deferred=True) for each in DEFERRED]
    assert computed(predicted(workload, *all_deferred))["counter"] == [0.0, 0.25]


@pytest.mark.parametrize("hardware", [ADDING, unfolded(ADDING)])
def test_one_part_is_on_the_wire_while_another_is_added(hardware):
    """The first half's way back begins behind the second half, which is on the link at 4.5 s."""
    sizes = {"p": Size(1024, 4)}
    whole = predicted(ONE_LAYER, group("g", "p"), hardware=hardware, sizes=sizes)
    assert spans(whole)[2:] == [
        ("send", "g", 3.0, 5.0),
        ("reduce", "g", 5.0, 6.0),
        ("send", "g", 6.0, 8.0),
        ("compute", "u_p", 8.0, 8.5),
    ]
    halves = predicted(ONE_LAYER, group("g", "p", depth=2), hardware=hardware, sizes=sizes)
    assert spans(halves)[2:] == [
        ("send", "g", 3.0, 4.0),
        ("reduce", "g", 4.0, 4.5),
        ("send", "g", 4.0, 5.0),
        ("reduce", "g", 5.0, 5.5),
        ("send", "g", 5.0, 6.0),
        ("send", "g", 6.0, 7.0),
        ("compute", "u_p", 7.0, 7.5),
    ]


FAR = hosts(2, RATE, latency_s=dict.fromkeys(PATTERNS, 1.0))


@pytest.mark.parametrize("hardware", [FAR, unfolded(FAR)])
def test_one_part_is_sent_while_another_is_on_its_way(hardware):
    """Each half takes 1 s on the link and 1 s to arrive; the second is sent at 4 s, not at 5 s."""
    sizes = {"p": Size(1024, 4)}
    whole = predicted(ONE_LAYER, group("g", "p"), hardware=hardware, sizes=sizes)
    assert whole.groups == {"g": GroupTimes(3.0, 9.0)}
    halves = predicted(ONE_LAYER, group("g", "p", depth=2), hardware=hardware, sizes=sizes)
    assert halves.groups == {"g": GroupTimes(3.0, 8.0)}
    sent = [(begin_s, end_s) for kind, _, begin_s, end_s in spans(halves) if kind == "send"]
    assert sent == [(3.0, 5.0), (4.0, 6.0), (5.0, 7.0), (6.0, 8.0)]  # until it is there


def test_the_others_wait_for_a_slower_worker():
    """Its values are there at 6 s. Those to be added go out behind the sum that it has made."""
    slow = replace(TWO, hosts=(Host(RATE, RATE), Host(RATE, RATE, slowdown=2.0)))
    two = predicted(ONE_LAYER, group("g", "p"), hardware=slow)
    assert spans(two, 0) == [
        ("compute", "f", 0.0, 1.0),
        ("compute", "b", 1.0, 3.0),
        ("send", "g", 3.0, 4.0),
        ("compute", "u_p", 8.0, 8.5),
        ("send", "g", 8.0, 9.0),
    ]
    assert spans(two, 1) == [
        ("compute", "f", 0.0, 2.0),
        ("compute", "b", 2.0, 6.0),
        ("send", "g", 6.0, 7.0),
        ("send", "g", 7.0, 8.0),
        ("compute", "u_p", 9.0, 10.0),
    ]
    assert two.groups == {"g": GroupTimes(3.0, 9.0)}


def test_a_slow_link_holds_up_what_goes_over_it():
    """0 to 1 takes 2 s in place of 1 s, in each of two rounds."""
    slow = replace(TWO, links=(Link(0, 1, 512.0, 0.0),))
    two = predicted(ONE_LAYER, group("g", "p"), hardware=slow)
    assert spans(two, 0, ("send",)) == [("send", "g", 3.0, 5.0), ("send", "g", 5.0, 7.0)]
    assert spans(two, 1, ("send",)) == [("send", "g", 3.0, 4.0), ("send", "g", 5.0, 6.0)]


def test_a_link_of_its_own_has_a_latency_of_its_own_and_messages_keep_it_busy_as_long_as_any():
    """0 to 1: 2 s of bytes, 0.25 s for the message, and 0.5 s until it is there; 1 to 0: 1.25 s.

    What 0 sends next is complete at 4.25 and goes when the link is free, from 5.25 to 7.5."""
    link = Link(0, 1, 512.0, 0.5)
    two = predicted(
        ONE_LAYER, group("g", "p"), hardware=replace(TWO, links=(link,), message_s=0.25)
    )
    assert spans(two, 1, ("send",)) == [("send", "g", 3.0, 4.25), ("send", "g", 5.75, 7.0)]
    assert two.groups == {"g": GroupTimes(3.0, 8.0)}


def test_a_load_tells_how_much_and_from_when_until_when():
    """Of a deferred group with a part of a gradient and a whole one, and of what never comes."""
    sizes = {"p": Size(10, 4), "q/0": Size(3, 4, "q"), "elsewhere": Size(1, 4)}
    deferred, stays = group("a", "q/0", "p", deferred=True), group("b", "elsewhere")
    first, second = (load_of(each, sizes, TWO_LAYERS) for each in (deferred, stays))
    assert first == Load(deferred, ("q", "p"), 13, 4, complete_at=3, urgency=0)
    assert second == Load(stays, ("elsewhere",), 1, 4, complete_at=None, urgency=4)
    assert (first.bytes, first.copy_s(replace(TWO, copy_s_per_byte=0.5))) == (52, 26.0)
    assert second.copy_s(replace(TWO, copy_s_per_byte=0.5)) == 0.0


def test_pieces_take_longer_where_ops_do():
    pieces = Workload((Piece("f", 1.0, ops=2), Piece("b", 3.0)))
    assert pieces.piece_seconds(0.0) == (1.0, 3.0)
    assert pieces.piece_seconds(0.25) == (1.5, 3.25)
    assert pieces.piece_seconds(0.0) == (1.0, 3.0)


def test_an_empty_group_is_there_at_once():
    two = predicted(ONE_LAYER, group("g", "p"), sizes={"p": Size(0, 4)})
    assert two.groups == {"g": GroupTimes(3.0, 3.0)}


def test_each_op_and_each_step_takes_the_runtime_some_time():
    costly = hosts(1, RATE, op_s=0.125, step_s=0.25)
    workload = Workload(
        (Piece("f", 1.0, ops=2), Piece("b", 1.0, ops=1, yields=("p",))), (update("p"),)
    )
    one = predicted(workload, hardware=costly)
    assert computed(one) == {"f": [0.0, 1.25], "b": [1.25, 2.375], "u_p": [2.375, 3.0]}
    assert one.step_s == 3.25


def test_the_ring_takes_a_round_for_each_hop():
    """Three workers, 3072 bytes: four rounds of 1024 bytes."""
    three = predicted(
        ONE_LAYER,
        group("g", "p", pattern="ring"),
        hardware=hosts(3, RATE),
        sizes={"p": Size(768, 4)},
    )
    sent = [("send", "g", 3.0 + hop, 4.0 + hop) for hop in range(4)]
    assert spans(three, 0, ("send",)) == spans(three, 2, ("send",)) == sent


def test_a_plan_is_simulated_with_its_own_groups_gates_and_sizes():
    spec = TensorSpec("float32", (16, 32))
    gradients = tuple(AggregatedGradient(n, TensorRef(n), spec, ()) for n in "pq")
    job = PlannedJob(("a", "b"), "mean", (), gradients)
    plan = Plan(job, Decided(DEFERRED, gates=(Gate("g_p", after="g_q"),)))
    assert sizes_of(plan) == {"p": KIB_2, "q": KIB_2}
    assert simulate(plan, TWO_LAYERS, TWO).step_s == 7.5
    assert simulate(plan, TWO_LAYERS, TWO, pending=False).step_s == 5.5


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
@pytest.mark.parametrize("name", ["send_bytes_per_s", "receive_bytes_per_s", "slowdown"])
def test_hosts_that_cannot_be_are_refused(name, value):
    with pytest.raises(PlanError, match=f"host's {name} must be more than"):
        replace(Host(1.0, 1.0), **{name: value})


# Cost -------------------------------------------------------------------------------------------

RESNET_50 = [9408, *[36_864, 65_536, 16_384] * 16, 2_359_296, 2_048_000] * 2


def test_a_plain_plan_of_a_deep_network_on_eight_workers_is_few_tasks():
    """One worker stands for all: per group two rounds, an addition, and its begin and end."""
    names = [f"p{number}" for number in range(len(RESNET_50))]
    workload = Workload(
        (
            *(Piece(f"f_{n}", 1e-3, needs=frozenset([n])) for n in names),
            *(Piece(f"b_{n}", 2e-3, yields=(n,)) for n in reversed(names)),
        ),
        tuple(update(n, 1e-4) for n in names),
    )
    sizes = {n: Size(elements, 4) for n, elements in zip(names, RESNET_50, strict=True)}
    groups = [group(f"g_{n}", n) for n in names]
    alike = Hardware((Host(1e8, 1e8),) * 8, dict.fromkeys(PATTERNS, 2e-4), **FREE)
    eight = simulate_groups(groups, (), Conditions(sizes, workload, alike))
    assert len(eight._tasks.graph.names) == len(names) * (3 + 5)
