"""What a timeline says of a step: times and ratios."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.timeline import LinkPauses, Span, Timeline, wire_limit_s

# Worker 0 computes for 6 s, worker 1 for 5 s; transfers overlap with it from 4 s on.
STEP = Timeline(
    (
        Span("compute", "forward", 1.0, 4.0, worker=0),
        Span("compute", "backward", 4.0, 7.0, worker=0),
        Span("compute", "forward", 1.0, 3.0, worker=1),
        Span("compute", "backward", 3.0, 6.0, worker=1),
        Span("send", "group_0", 5.0, 8.0, worker=0, bytes=300),
        Span("send", "group_1", 7.5, 9.0, worker=0, bytes=100),
        Span("receive", "group_0", 5.0, 6.0, worker=1, bytes=300),
        Span("receive", "group_1", 8.0, 9.0, worker=1),
        Span("reduce", "group_0", 9.0, 9.5, worker=1),
    )
)


def test_the_step_ends_with_its_last_span():
    assert STEP.begin_s == 1.0
    assert STEP.step_s == 8.5


def test_computation_and_communication_are_those_of_the_busiest_worker():
    assert STEP.computation_s == 6.0
    assert STEP.communication_s == 4.0
    assert STEP.busy_s(1, "send", "receive") == 2.0
    assert STEP.busy_s(1, "reduce") == 0.5
    assert STEP.sent_bytes(0) == 400
    assert STEP.sent_bytes(1) == 0


def test_pauses_of_the_busiest_link_are_before_between_and_after_its_transfers():
    assert STEP.link_pauses == LinkPauses(before_s=4.0, between_s=0.0, after_s=0.5)
    with_a_pause = Timeline((*STEP.spans, Span("receive", "group_2", 9.25, 9.5)))
    assert with_a_pause.link_pauses == LinkPauses(before_s=4.0, between_s=0.25, after_s=0.0)
    assert Timeline((Span("compute", "all", 0.0, 2.0),)).link_pauses == LinkPauses()


def test_rho_alpha_and_utilisation_are_the_papers():
    assert STEP.rho == pytest.approx(4 / 6)
    assert STEP.alpha == pytest.approx((4 + 6 - 8.5) / 4)
    assert STEP.utilisation == pytest.approx(6 / 8.5)


def one_worker(computation_s, begin_s, communication_s):
    return Timeline(
        (
            Span("compute", "all", 0.0, computation_s),
            Span("send", "all", begin_s, begin_s + communication_s),
        )
    )


@pytest.mark.parametrize(
    ("timeline", "alpha", "utilisation"),
    [
        (one_worker(4.0, 0.0, 4.0), 1.0, 1.0),
        (one_worker(4.0, 4.0, 4.0), 0.0, 0.5),
        (one_worker(4.0, 3.0, 2.0), 0.5, 0.8),
        (one_worker(2.0, 0.0, 4.0), 1.0, 0.5),
        (one_worker(2.0, 4.0, 4.0), -1.0, 0.25),
    ],
)
def test_overlap_of_one_worker(timeline, alpha, utilisation):
    assert timeline.alpha == alpha
    assert timeline.utilisation == utilisation


times = st.floats(0.01, 100.0)


@given(times, times, times)
def test_utilisation_is_the_formula_of_the_paper(computation_s, begin_s, communication_s):
    timeline = one_worker(computation_s, begin_s, communication_s)
    rho, alpha = timeline.rho, timeline.alpha
    formula = 1 / (1 + rho - alpha * min(rho, 1))
    assert timeline.utilisation == pytest.approx(formula, rel=1e-9)


def test_what_is_missing_counts_as_nothing():
    empty = Timeline()
    assert (empty.step_s, empty.rho, empty.alpha, empty.utilisation) == (0.0, 0.0, 0.0, 0.0)
    only_computation = Timeline((Span("compute", "all", 0.0, 2.0),))
    assert (only_computation.rho, only_computation.alpha) == (0.0, 0.0)
    assert only_computation.utilisation == 1.0
    only_transfers = Timeline((Span("send", "all", 0.0, 2.0),))
    assert (only_transfers.rho, only_transfers.utilisation) == (math.inf, 0.0)


def test_a_span_does_not_end_before_it_begins():
    with pytest.raises(ValueError, match="'x' on worker 3 ends at 1.0 s, before it begins"):
        Span("compute", "x", 2.0, 1.0, worker=3)


def test_the_wire_limit_is_bytes_over_rate():
    assert wire_limit_s(102_000_000, 118_750_000) == pytest.approx(0.859, abs=1e-3)
    with pytest.raises(ValueError, match="more than 0 bytes"):
        wire_limit_s(1, 0)
