"""Timelines of small steps, computed by hand.

A link carries 1024 bytes/s in each direction and nothing else takes time unless a test says so. Two
workers that aggregate 2048 bytes by `shuffle` send each other 1024, add, and send 1024 back: 2 s.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulations import FREE, PATTERNS, hosts, unfolded

from caramel.errors import PlanError
from caramel.facts import Link
from caramel.graph import TensorSpec
from caramel.names import TensorRef
from caramel.plan import ALL_GATHER, FACTORS, AggregatedGradient, Gate, Group, Plan
from caramel.simulation.conditions import Conditions
from caramel.simulation.hardware import Hardware, Host
from caramel.simulation.loads import Load, load_of
from caramel.simulation.simulate import GroupTimes, simulate, simulate_groups, sizes_of
from caramel.timeline import Span
from caramel.workload import Piece, Product, Size, Update, Workload

RATE = 1024.0
KIB_2 = Size(512, 4)
TWO = hosts(2, RATE)


def group(name, *members, pattern="shuffle", **options):
    return Group(name, members, pattern, **options)


def update(parameter, seconds=0.5):
    own = frozenset([parameter])
    return Update(f"u_{parameter}", seconds, own, own, own)


ONE_LAYER = Workload(
    (Piece("f", 1.0, needs=frozenset("p")), Piece("b", 2.0, yields=("p",))), (update("p"),)
)
TWO_LAYERS = Workload(
    (
        Piece("f_p", 0.5, needs=frozenset("p")),
        Piece("f_q", 0.5, needs=frozenset("q")),
        Piece("b_q", 1.0, yields=("q",)),
        Piece("b_p", 1.0, yields=("p",)),
    ),
    (update("q"), update("p")),
)
BOTH = (group("g_q", "q"), group("g_p", "p"))


def predicted(workload, *groups, hardware=TWO, gates=(), sizes=None, pending=True):
    sizes = sizes or dict.fromkeys("pq", KIB_2)
    return simulate_groups(groups, gates, Conditions(sizes, workload, hardware), pending=pending)


def spans(prediction, worker=0, resources=("compute", "reduce", "send")):
    """What one worker does, and what it sends: (resource, name, begin, end)."""
    return [
        (span.resource, span.name, round(span.begin_s, 9), round(span.end_s, 9))
        for span in prediction.timeline.spans
        if span.worker == worker and span.resource in resources
    ]


def computed(prediction, worker=0):
    """When a worker computes what."""
    return {name: times for _, name, *times in spans(prediction, worker, ("compute",))}


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


ADDING = hosts(2, RATE, reduce_s_per_byte=0.5 / 1024)


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


def test_a_processor_computes_at_half_the_speed_while_it_transfers():
    workload = Workload((Piece("f", 2.0), Piece("b", 0.0, yields=("p",))), (update("p", 0.0),))
    both = replace(TWO, cores=1, processor_s_per_byte=0.5 / 1024)
    two = predicted(workload, group("g", "p", deferred=True), hardware=both)
    assert computed(two) == {"f": [0.0, 3.0]}


@pytest.mark.parametrize("unfold", [False, True])
def test_a_processor_does_not_compute_while_it_handles_messages(unfold):
    """One chunk goes in each of two rounds; the transfers themselves take as long as ever."""
    workload = Workload((Piece("f", 2.0), Piece("b", 0.0, yields=("p",))), (update("p", 0.0),))
    hardware = replace(TWO, processor_s_per_message=0.25)
    two = predicted(
        workload,
        group("g", "p", deferred=True),
        hardware=unfolded(hardware) if unfold else hardware,
    )
    assert computed(two)["f"] == [0.5, 2.5]
    assert spans(two, 0, ("send",)) == [("send", "g", 0.0, 1.0), ("send", "g", 1.0, 2.0)]


COPYING = hosts(2, RATE, cores=1, processor_s_per_byte=0.0, copy_s_per_byte=0.25 / 2048)
TWO_AND_MORE = Workload(
    (Piece("f", 1.0), Piece("b", 1.0, yields=("p", "q")), Piece("rest", 2.0)),
    (update("p", 0.0), update("q", 0.0)),
)


@pytest.mark.parametrize("hardware", [COPYING, unfolded(COPYING)])
@pytest.mark.parametrize("deferred", [False, True])
def test_a_processor_does_not_compute_while_it_lays_gradients_side_by_side(hardware, deferred):
    """It copies 4096 bytes in 0.5 s, also in the step before the one in which they go."""
    two = predicted(TWO_AND_MORE, group("g", "q", "p", deferred=deferred), hardware=hardware)
    assert computed(two) == {"f": [0.0, 1.0], "b": [1.0, 2.0], "rest": [2.5, 4.5]}
    begin_s = 0.0 if deferred else 2.5
    assert two.groups == {"g": GroupTimes(begin_s, begin_s + 4.0)}


def test_a_device_computes_while_gradients_are_laid_side_by_side():
    two = predicted(TWO_AND_MORE, group("g", "q", "p"), hardware=replace(COPYING, cores=None))
    assert computed(two) == {"f": [0.0, 1.0], "b": [1.0, 2.0], "rest": [2.0, 4.0]}
    assert two.groups == {"g": GroupTimes(2.5, 6.5)}


@pytest.mark.parametrize(("cores", "taken_s"), [(None, 0.0), (2, 0.25), (1, 0.5)])
@pytest.mark.parametrize("unfold", [False, True])
def test_what_a_core_adds_it_does_not_compute(unfold, cores, taken_s):
    """The sum is made from 1 s to 1.5 s, while "f" is computed for 3 s."""
    workload = Workload((Piece("f", 3.0), Piece("b", 0.0, yields=("p",))), (update("p", 0.0),))
    hardware = replace(ADDING, cores=cores, processor_s_per_byte=0.0)
    two = predicted(
        workload,
        group("g", "p", deferred=True),
        hardware=unfolded(hardware) if unfold else hardware,
    )
    assert computed(two) == {"f": [0.0, 3.0 + taken_s]}
    assert two.groups == {"g": GroupTimes(0.0, 2.5)}


@pytest.mark.parametrize(
    "cost",
    [
        {"latency_s": dict.fromkeys(PATTERNS, 0.25)},
        {"handling_s_per_byte": 0.25 / 1024},
        {"excess": dict.fromkeys(PATTERNS, 1.25)},
    ],
)
@pytest.mark.parametrize("unfold", [False, True])
def test_every_round_has_a_latency_and_handling_and_may_take_longer_than_its_bytes(cost, unfold):
    hardware = replace(TWO, **cost)
    two = predicted(ONE_LAYER, group("g", "p"), hardware=unfolded(hardware) if unfold else hardware)
    assert spans(two, 0, ("send",)) == [("send", "g", 3.0, 4.25), ("send", "g", 4.25, 5.5)]
    assert two.timeline.sent_bytes(0) == 2048


@pytest.mark.parametrize("unfold", [False, True])
def test_every_chunk_keeps_the_link_busy_for_some_time(unfold):
    """Two groups, of which each sends a chunk in each of its two rounds. The sum of the first goes
    behind the chunk that the second has sent before."""
    hardware = replace(TWO, message_s=0.25)
    two = predicted(TWO_LAYERS, *BOTH, hardware=unfolded(hardware) if unfold else hardware)
    assert two.groups == {"g_q": GroupTimes(2.0, 5.75), "g_p": GroupTimes(3.0, 7.0)}


def test_members_are_laid_side_by_side_first():
    copying = replace(TWO, copy_s_per_byte=0.25 / 1024)
    workload = Workload((Piece("b", 1.0, yields=("p", "q")),), (update("p"), update("q")))
    together = predicted(workload, group("g", "p", "q"), hardware=copying)
    assert together.groups == {"g": GroupTimes(2.0, 6.0)}
    alone = predicted(workload, group("g_p", "p"), group("g_q", "q"), hardware=copying)
    assert alone.groups["g_p"].begin_s == 1.0


def test_of_gathered_rows_only_the_latency_is_known():
    hardware = replace(TWO, latency_s={"shuffle": 0.125, "ring": 0.5})
    two = predicted(ONE_LAYER, group("g", "p", pattern=ALL_GATHER), hardware=hardware)
    assert two.groups == {"g": GroupTimes(3.0, 3.5)}


@pytest.mark.parametrize("unfold", [False, True])
def test_factors_go_once_to_everyone_and_are_multiplied_again_for_everyone(unfold):
    """Two workers send 512 bytes in 0.5 s, and compute 0.25 s; three send 1024 and compute 0.5."""
    again = replace(ONE_LAYER, products={"p": Product(512, 0.25)})
    for workers, arrives_s in ((2, 3.75), (3, 4.5)):
        hardware = hosts(workers, RATE)
        by_factors = predicted(
            again,
            group("g", "p", pattern=FACTORS),
            hardware=unfolded(hardware) if unfold else hardware,
        )
        assert by_factors.groups == {"g": GroupTimes(3.0, arrives_s)}
        assert by_factors.step_s == arrives_s + 0.5
        assert spans(by_factors)[-2:] == [
            ("reduce", "g", 3.0 + 0.5 * (workers - 1), arrives_s),
            ("compute", "u_p", arrives_s, arrives_s + 0.5),
        ]


@pytest.mark.parametrize("unfold", [False, True])
def test_a_worker_handles_its_factors_for_one_other_after_those_for_another(unfold):
    """1024 bytes for two others take 1 s on the wire, and 0.25 s besides for each 512."""
    hardware = replace(hosts(3, RATE), handling_s_per_byte=0.25 / 512)
    again = replace(ONE_LAYER, products={"p": Product(512, 0.0)})
    found = predicted(
        again,
        group("g", "p", pattern=FACTORS),
        hardware=unfolded(hardware) if unfold else hardware,
    )
    assert found.groups == {"g": GroupTimes(3.0, 4.5)}


def test_products_of_factors_are_added_up():
    """2048 bytes of one other worker, at 0.25 s for 1024."""
    adding = replace(TWO, reduce_s_per_byte=0.25 / 1024)
    again = replace(ONE_LAYER, products={"p": Product(512, 0.0)})
    two = predicted(again, group("g", "p", pattern=FACTORS), hardware=adding)
    assert two.groups == {"g": GroupTimes(3.0, 4.0)}


def test_factors_have_messages_and_latency_of_their_own():
    hardware = replace(TWO, latency_s={"shuffle": 0.125, "exchange": 0.5}, message_s=0.25)
    again = replace(ONE_LAYER, products={"p": Product(512, 0.0)})
    two = predicted(again, group("g", "p", pattern=FACTORS), hardware=hardware)
    assert two.groups == {"g": GroupTimes(3.0, 4.5)}  # 0.5 s, two messages, and the latency


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
    plan = Plan(
        devices=("a", "b"),
        reduction="mean",
        variables=(),
        gradients=gradients,
        groups=DEFERRED,
        gates=(Gate("g_p", after="g_q"),),
    )
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
