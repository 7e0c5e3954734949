"""Transfers are packed into the backward pass, the next forward pass, or beyond (section 4.3)."""

from __future__ import annotations

import itertools
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.planning.paper.packing import Packing, Transfer, pack

COMPUTATION_S = 10.0
FORWARD_S = 3.0


def transfer(name, seconds, ready_s, needed_s):
    return Transfer((name,), round(seconds * 1000), seconds, ready_s, needed_s)


def packed(*transfers, **options):
    return pack(
        [transfer(*given_transfer) for given_transfer in transfers],
        computation_s=COMPUTATION_S,
        **options,
    )


def table(packing: Packing):
    """Name, "next" step or "same", planned start."""
    return [
        (p.transfer.members[0], "next" if p.deferred else "same", pytest.approx(p.start_s))
        for p in packing.placements
    ]


def reason(packing: Packing, name):
    return next(p.reason for p in packing.placements if p.transfer.members == (name,))


# Computed by hand -------------------------------------------------------------------------------


def test_what_fits_stays_in_the_backward_pass():
    packing = packed(("last", 3, 4, 2), ("middle", 2, 6, 1), ("first", 1, 9, 0))
    assert table(packing) == [("last", "same", 4), ("middle", "same", 7), ("first", "same", 9)]
    assert packing.step_s == COMPUTATION_S
    assert reason(packing, "middle") == (
        "fits the backward pass: ready 6.0000 s, needed 1.0000 s, starts 7.0000 s"
    )


def test_the_overflow_goes_into_the_next_forward_pass():
    # By size: "last" takes 4 to 8, "middle" 8 to 10, "first" is full in the backward pass. It is
    # needed first, at 0 s, so it is left over; "early" fits before it is needed.
    packing = packed(("last", 4, 4, 3), ("early", 1, 5, 2), ("middle", 2, 6, 1), ("first", 1, 9, 0))
    assert table(packing) == [
        ("early", "next", 0),
        ("last", "same", 4),
        ("middle", "same", 8),
        ("first", "same", 10),
    ]
    assert packing.step_s == 11
    assert reason(packing, "early").startswith(
        "fits the forward pass of the next step, not the backward pass: ready 5.0000 s"
    )
    assert "adds 1.0000 s after the backward pass, 1.0000 s before the forward pass" in reason(
        packing, "first"
    )


def test_deferred_transfers_go_in_the_order_in_which_they_are_needed():
    # The backward pass takes "all" only.
    packing = packed(("all", 6, 4, 3), ("late", 1.5, 4, 3), ("soon", 1, 5, 1))
    assert table(packing) == [("soon", "next", 0), ("late", "next", 1), ("all", "same", 4)]


def test_larger_ones_choose_first():
    packing = packed(("small", 1, 4, 3), ("large", 6, 4, 3))
    assert table(packing) == [("small", "next", 0), ("large", "same", 4)]


def test_what_fits_neither_pass_goes_where_it_adds_least():
    # The large one takes 4 to 10. After it "left" would add 2 s. Before the forward pass it is
    # needed at 1.5 s: half a second before the forward pass is enough.
    packing = packed(("large", 6, 4, 3), ("left", 2, 5, 1.5))
    assert table(packing) == [("left", "next", -0.5), ("large", "same", 4)]
    assert packing.step_s == 10.5
    assert reason(packing, "left").startswith(
        "fits neither pass, it adds 2.0000 s after the backward pass, 0.5000 s before"
    )


def test_with_more_communication_than_computation_the_step_is_as_long_as_it_must_be():
    # Ten seconds of transfers, six in the backward pass and three in the forward pass.
    transfers = [(name, 1, 4, 3) for name in "abcdefghij"]
    packing = packed(*transfers)
    assert packing.step_s == 11
    assert sum(p.deferred for p in packing.placements) == 3


def test_others_make_room_for_one_that_is_too_large_for_either_pass():
    # "large" takes 4 to 12 if it begins at once. "small" would fit the backward pass, where "large"
    # does not, but then the step takes 14.
    packing = packed(("small", 2, 4, 3), ("large", 8, 4, 3))
    assert table(packing) == [("small", "next", 0), ("large", "same", 4)]
    assert packing.step_s == 12
    assert reason(packing, "small").startswith("changed sides, which saves 2.0000 s: ready 4.0000")


def test_what_cannot_be_deferred_stays_and_says_why():
    def refusal(parameters):
        return "the loss reads it" if "a" in parameters else None

    packing = packed(("large", 6, 4, 3), ("a", 2, 4, 3), ("b", 1, 4, 3), refusal=refusal)
    assert table(packing) == [("b", "next", 0), ("large", "same", 4), ("a", "same", 10)]
    assert packing.step_s == 12
    assert reason(packing, "a").startswith(
        "does not fit the backward pass and cannot be deferred (the loss reads it), it adds "
        "2.0000 s after it: ready"
    )


def test_it_is_asked_whether_groups_can_be_deferred_together():
    asked = []

    def refusal(parameters):
        asked.append(sorted(parameters))
        return "not both" if len(parameters) > 1 else None

    packing = packed(("large", 6, 4, 3), ("a", 1, 4, 3), ("b", 1, 4, 3), refusal=refusal)
    assert asked[:2] == [["a"], ["a", "b"]]
    assert [p.deferred for p in packing.placements] == [True, False, False]


def test_a_group_may_be_needed_earlier_if_it_is_deferred():
    packing = packed(("large", 6, 4, 3), ("a", 1, 4, 3), needed_s=lambda transfer: 0.25)
    assert table(packing) == [("a", "next", -0.75), ("large", "same", 4)]
    assert packing.step_s == 10.75


def test_nothing_to_transfer():
    assert packed() == Packing((), COMPUTATION_S)


# Laws -------------------------------------------------------------------------------------------

QUARTERS = st.integers(0, 24).map(lambda quarter: quarter / 4)
TRANSFERS = st.lists(
    st.builds(
        lambda seconds, ready_s, needed_s: (seconds, FORWARD_S + ready_s, needed_s),
        st.integers(1, 16).map(lambda quarter: quarter / 4),
        st.integers(0, 28).map(lambda quarter: quarter / 4),
        st.integers(0, 12).map(lambda quarter: quarter / 4),
    ),
    max_size=12,
)


@given(TRANSFERS, st.sets(st.integers(0, 11)))
def test_laws_of_packings(transfers, not_deferrable):
    named = [(str(number), *rest) for number, rest in enumerate(transfers)]
    stuck = {str(number) for number in not_deferrable}
    options = {"refusal": lambda parameters: "stuck" if stuck & parameters else None}
    packing = packed(*named, **options)
    assert packing == packed(*named, **options)
    assert sorted(p.transfer.members[0] for p in packing.placements) == sorted(n for n, *_ in named)

    in_time = sorted(packing.placements, key=lambda p: p.start_s)
    for one, other in pairwise(in_time):
        assert one.end_s <= other.start_s + 1e-9, "transfers overlap"
    for p in packing.placements:
        assert p.reason
        if p.deferred:
            assert p.end_s <= p.transfer.needed_s + 1e-9
            assert p.transfer.members[0] not in stuck
        else:
            assert p.start_s >= p.transfer.ready_s
        if "fits the" in p.reason and packing.step_s == COMPUTATION_S:
            assert p.start_s >= 0
            assert p.end_s <= COMPUTATION_S
    waiting_s = -min([0.0, *(p.start_s for p in packing.placements)])
    last_s = max([COMPUTATION_S, *(p.end_s for p in packing.placements if not p.deferred)])
    assert packing.step_s == pytest.approx(waiting_s + last_s)
    deferred = [p.deferred for p in packing.placements]
    assert deferred == sorted(deferred, reverse=True), "the deferred ones come first"


# Against every possible packing -----------------------------------------------------------------


def step_s(deferred, in_step):
    """Time of a step that carries out both in the given orders, one transfer at a time."""
    clock_s = waiting_s = 0.0
    for one in deferred:
        clock_s += one.seconds
        waiting_s = max(waiting_s, clock_s - one.needed_s)
    clock_s -= waiting_s
    for one in in_step:
        clock_s = max(clock_s, one.ready_s) + one.seconds
    return waiting_s + max(COMPUTATION_S, clock_s)


def best_step_s(transfers):
    return min(
        step_s(order[:split], order[split:])
        for order in itertools.permutations(transfers)
        for split in range(len(order) + 1)
    )


def instance(generator, size, load):
    """Transfers of `load` times the computation; what is ready first is needed last."""
    weights = [generator.random() ** 2 + 0.01 for _ in range(size)]
    cuts = sorted(generator.random() for _ in range(size))
    return [
        transfer(
            str(number),
            load * COMPUTATION_S * weight / sum(weights),
            FORWARD_S + (COMPUTATION_S - FORWARD_S) * cut,
            FORWARD_S * (1 - cut),
        )
        for number, (weight, cut) in enumerate(zip(weights, cuts, strict=True))
    ]


@pytest.mark.parametrize("load", [0.5, 0.8, 1.0, 1.2])
def test_the_gap_to_the_best_packing_of_small_instances(load, capsys):
    gaps = []
    for seed in range(40):
        generator = random.Random(seed)
        transfers = instance(generator, generator.randint(2, 6), load)
        found_s = pack(transfers, computation_s=COMPUTATION_S).step_s
        best_s = best_step_s(transfers)
        assert best_s <= found_s + 1e-9
        assert found_s <= step_s([], transfers) + 1e-9, "worse than no deferral at all"
        gaps.append(found_s / best_s - 1)
    with capsys.disabled():
        print(
            f"\npacking, communication / computation {load}: {sum(g < 1e-9 for g in gaps)} of "
            f"{len(gaps)} steps are the best possible; gap {sum(gaps) / len(gaps):.1%} in the "
            f"mean, {max(gaps):.1%} at most"
        )
