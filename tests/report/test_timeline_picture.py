"""What the timeline picture draws: which spans become one block, in which row, and how coarse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from caramel.core.timeline import Span, Timeline
from caramel.report.timeline_picture import Block, lanes_of, ticks, timeline_picture
from tests.support.explanations import SMALL, many_groups, resnet, trained

TWO = (("first", 0.0), ("last", 0.9))


def drawn(*spans, **changes):
    """Worker 0's lanes, by resource, of a step of 1 s."""
    explanation = replace(SMALL, step_s=1.0, predicted=Timeline(spans), **changes)
    return {lane.resource: lane.rows for lane in lanes_of(explanation)}


def test_transfers_are_of_the_kind_of_their_group_and_count_from_the_begin_of_the_step():
    rows = drawn(
        Span("compute", "forward", 5.0, 5.5),
        Span("send", "late", 5.0, 5.25, bytes=10),
        Span("send", "early", 5.5, 5.75, bytes=20),
        Span("send", "unknown", 5.75, 6.0),
    )
    assert rows == {
        "compute": ((Block("compute", ("forward",), 0.0, 0.5),),),
        "send": (
            (
                Block("deferred", ("late",), 0.0, 0.25, 10, group=0),
                Block("in-step", ("early",), 0.5, 0.75, 20, group=1),
                Block("other", ("unknown",), 0.75, 1.0),
            ),
        ),
    }


@pytest.mark.parametrize("name", ["early", "early/chunk_2", "caramel/early/worker_0/reduced_0"])
def test_a_group_is_known_by_the_names_of_its_parts(name):
    (row,) = drawn(Span("send", name, 0.0, 1.0))["send"]
    assert row == (Block("in-step", ("early",), 0.0, 1.0, group=1),)


def test_chunks_of_one_transfer_are_one_block_where_they_overlap_or_touch():
    rows = drawn(
        Span("send", "late", 0.0, 0.25, bytes=1),
        Span("send", "late", 0.125, 0.5, bytes=2),
        Span("send", "late", 0.5, 0.625, bytes=4),
        Span("send", "late", 0.75, 1.0, bytes=8),
    )
    assert rows["send"] == (
        (
            Block("deferred", ("late",), 0.0, 0.625, 7, group=0),
            Block("deferred", ("late",), 0.75, 1.0, 8, group=0),
        ),
    )


def test_transfers_that_overlap_go_below_each_other_and_what_finds_no_room_joins_the_last():
    spans = [Span("send", name, 0.125 * i, 0.75 + 0.0625 * i) for i, name in enumerate("abcd")]
    rows = drawn(*spans, Span("send", "e", 0.875, 1.0))["send"]
    assert [[(b.names, b.begin_s, b.end_s) for b in row] for row in rows] == [
        [(("a",), 0.0, 0.75), (("e",), 0.875, 1.0)],
        [(("b",), 0.125, 0.8125)],
        [(("c", "d"), 0.25, 0.9375)],
    ]


def test_blocks_too_narrow_to_be_seen_are_drawn_with_what_follows():
    tick = 2.0**-14  # of the step
    spans = [Span("compute", f"op_{i}", i * tick, (i + 1) * tick) for i in range(6)]
    rows = drawn(*spans, Span("compute", "last", 0.5, 1.0))["compute"]
    assert [[(b.names, b.begin_s, b.end_s) for b in row] for row in rows] == [
        [
            (("op_0", "op_1", "op_2", "op_3", "op_4"), 0.0, 5 * tick),
            (("op_5",), 5 * tick, 6 * tick),
            (("last",), 0.5, 1.0),
        ]
    ]


@pytest.mark.slow
def test_a_large_timeline_is_drawn_coarser_so_that_the_picture_stays_small():
    large = trained(many_groups(resnet(16), 6))
    assert len(large.predicted.spans) > 20_000
    blocks = [b for lane in lanes_of(large) for row in lane.rows for b in row]
    assert 8_000 < len(blocks) <= 16_000


def test_more_workers_than_blocks_that_a_picture_should_have_have_a_block_each():
    own = (Span("compute", name, at, at + 0.1, w) for w in range(4_001) for name, at in TWO)
    found = lanes_of(replace(SMALL, step_s=1.0, predicted=Timeline(tuple(own))))
    assert len(found) == 4_001
    assert {len(row) for lane in found for row in lane.rows} == {1}


def test_predicted_is_drawn_above_measured():
    lanes = lanes_of(trained(SMALL))
    assert [(lane.worker, lane.resource, lane.measured) for lane in lanes[:6]] == [
        (0, "compute", False),
        (0, "compute", True),
        (0, "reduce", False),
        (0, "reduce", True),
        (0, "send", False),
        (0, "send", True),
    ]


def test_ticks_are_at_round_times():
    assert ticks(0.5) == pytest.approx([0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5])
    assert ticks(1.3) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2])
    assert ticks(0.042) == pytest.approx([0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04])


def test_a_block_says_what_it_is_and_when():
    picture = timeline_picture(SMALL)
    assert (
        '<rect x="70%" width="28%" y="48" height="15" class="in-step" data-g="1">'
        "<title>early: 350.0 to 490.0 ms (0.140 s), 1.05 MB</title></rect>"
    ) in picture
    assert (
        'aria-label="Worker 1, predicted: computes 0.400 s, sends 0.240 s, receives 0 s"'
    ) in picture


def test_the_ends_of_the_predicted_and_of_the_traced_step_are_marked():
    picture = timeline_picture(trained(SMALL, {"early": 0.02}))
    assert "predicted end of the step: 0.500 s</li>" in picture
    assert "end of the traced step: 0.520 s</li>" in picture
    # The axis ends with the longer one.
    assert 'x1="96.15%" x2="96.15%" y1="0" y2="112" class="step-end"' in picture
    assert 'x1="100%" x2="100%" y1="0" y2="112" class="traced-end"' in picture
    assert "traced-end" not in timeline_picture(SMALL)


def test_more_than_four_workers_are_folded_up():
    assert "details" not in timeline_picture(resnet(4))
    assert "<summary>Show the other worker</summary>" in timeline_picture(resnet(5))
    assert "<summary>Show the other 4 workers</summary>" in timeline_picture(resnet(8))


def test_an_empty_timeline_is_no_error():
    picture = timeline_picture(replace(SMALL, predicted=Timeline()))
    assert picture == '<p class="quiet">There is nothing to show: the timeline is empty.</p>'
