"""Times of ops and transfers: the least of five runs, or none at all."""

from __future__ import annotations

import math

import pytest

from caramel.core.errors import ProfileError
from caramel.planning.ordering.time_oracle import (
    Run,
    TimeOracle,
    general_oracle,
    measured_oracle,
)
from caramel.planning.ordering.transfer_graph import Op, Recv, TransferGraph
from caramel.planning.ordering.transfer_spans import TransferSpan


def run(op_s, a_s, b_s):
    """Both transfers are requested at 1 s; a arrives before b."""
    spans = (TransferSpan("a", "s0", 1, 1 + a_s), TransferSpan("b", "s0", 1, 1 + a_s + b_s))
    return Run({"op": op_s}, spans)


def test_times_are_the_least_of_the_runs_with_waiting_taken_off():
    runs = [run(5, 3, 2), run(4, 4, 2), run(6, 5, 1), run(7, 3, 3), run(4, 9, 9)]
    assert measured_oracle(runs) == TimeOracle({"op": 4}, {"a": 3, "b": 1})


def test_what_only_some_runs_have_is_the_least_of_those():
    runs = [Run({"op": 5}), Run({}), Run({"op": 4}), Run({"other": 1}), Run({})]
    assert measured_oracle(runs) == TimeOracle({"op": 4, "other": 1}, {})


def test_four_runs_are_too_few():
    with pytest.raises(ProfileError, match="at least 5 runs, given are 4"):
        measured_oracle([run(1, 1, 1)] * 4)


def test_the_general_oracle_counts_transfers():
    graph = TransferGraph((Recv("a"), Recv("b")), (Op("op", ("a",)),))
    time = general_oracle(graph)
    assert [time.transfer_picoseconds(name) for name in "ab"] == [10**12, 10**12]
    assert time.op_picoseconds("op") == 0


def test_sums_of_decimal_fractions_are_exact():
    time = TimeOracle({}, {"a": 0.1, "b": 0.2, "c": 0.3})
    a, b, c = map(time.transfer_picoseconds, "abc")
    assert a + b == c


def test_a_transfer_without_a_time_is_an_error_and_an_op_takes_none():
    time = TimeOracle({}, {})
    assert time.op_picoseconds("op") == 0
    with pytest.raises(ProfileError, match="how long transfer 'a' takes was not measured"):
        time.transfer_picoseconds("a")


@pytest.mark.parametrize("time_s", [-1, math.inf, math.nan])
def test_times_are_finite_and_not_negative(time_s):
    with pytest.raises(ProfileError, match="'a' cannot take"):
        TimeOracle({}, {"a": time_s})
    with pytest.raises(ProfileError, match="'op' cannot take"):
        TimeOracle({"op": time_s}, {})
