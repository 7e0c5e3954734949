"""When each parameter can be aggregated: start and end boundaries, computed by hand."""

from __future__ import annotations

import pytest

from caramel.analyzers import ANALYZERS
from caramel.analyzers.analysis import Analysis
from caramel.analyzers.windows import group_window
from caramel.core.errors import PlanError
from caramel.core.time_facts import TimingTable, TransferWindows, Window
from tests.support.orders import FIGURE_1, FIGURE_1_SECONDS, step


def test_the_best_order_of_figure_1():
    """op_1 0-2, op_2 2-5, back_2 5-6, grad_b 6-10, back_1 10-12, grad_a 12-17, then the rest."""
    assert FIGURE_1.windows(FIGURE_1_SECONDS) == TransferWindows(
        {"B": Window(10.0, 2.0), "A": Window(17.0, 0.0)}, computation_s=18.0, forward_s=5.0
    )


def test_the_worst_order_of_figure_1():
    """A first: A is ready 4 s earlier, B 7 s later, and the transfers have 3 s less in all."""
    assert FIGURE_1.windows(FIGURE_1_SECONDS, "A", "B") == TransferWindows(
        {"A": Window(13.0, 0.0), "B": Window(17.0, 2.0)}, computation_s=18.0, forward_s=5.0
    )


def test_a_groups_window_is_the_intersection_of_its_members():
    windows = FIGURE_1.windows(FIGURE_1_SECONDS)
    assert group_window(windows, ["A", "B"]) == Window(ready_s=17.0, needed_s=0.0)
    assert group_window(windows, ["B"]) == windows.windows["B"]


def test_a_shared_parameter_is_needed_by_its_first_reader_and_ready_after_its_last():
    job = step(
        {"W": "grad_w", "V": "grad_v"},
        x="Placeholder",
        read_v="ReadVariableOp V",
        first="MatMul x read_v",
        decode="ReadVariableOp W",
        encode="ReadVariableOp W",
        second="MatMul first encode",
        third="MatMul second decode",
        loss="Mean third",
        back="LossGrad third",
        part_1="MatMul second back",
        part_2="MatMul first back",
        grad_w="AddN part_1 part_2",
        grad_v="MatMul x back",
        train="NoOp ^grad_w ^grad_v",
    )
    seconds = dict.fromkeys(("first", "second", "third", "back", "part_1", "part_2"), 1.0)
    windows = job.windows(seconds | {"grad_v": 0.5}, "W", "V")
    assert windows.windows == {"W": Window(6.0, 1.0), "V": Window(6.5, 0.0)}
    assert windows.forward_s == 3.0
    # The greedy order takes V first, whose gradient is cheap.
    windows = job.windows(seconds | {"grad_v": 0.5})
    assert windows.windows == {"V": Window(4.5, 0.0), "W": Window(6.5, 1.0)}


def test_a_parameter_that_is_used_at_the_end_of_the_forward_pass_is_needed_late():
    job = step(
        {"first": "grad_first", "scale": "grad_scale"},
        read_scale="ReadVariableOp scale",
        read_first="ReadVariableOp first",
        early="Identity read_scale",
        x="Placeholder",
        hidden="MatMul x read_first",
        logits="Mul hidden early",
        loss="Mean logits",
        back="LossGrad logits",
        grad_scale="Mul hidden back",
        grad_first="MatMul x back",
        train="NoOp ^grad_scale ^grad_first",
    )
    # The read and its copy run at once, but nothing is computed with them before the end.
    seconds = {"read_scale": 0.125, "early": 0.125, "hidden": 4.0, "logits": 2.0, "back": 1.0}
    windows = job.windows(seconds)
    assert windows.windows["scale"].needed_s == 4.25
    assert windows.windows["first"].needed_s == 0.25
    assert windows.forward_s == 6.25


def test_an_op_that_takes_no_time_does_not_need_a_parameter_yet():
    job = step(
        {"W": "grad"},
        read="ReadVariableOp W",
        reshaped="Reshape read",
        x="Conv2D",
        y="Conv2D x reshaped",
        loss="Mean y",
        grad="Mul y",
        train="NoOp ^grad",
    )
    assert job.windows({"x": 3.0, "y": 1.0}).windows["W"] == Window(4.0, 3.0)
    assert job.windows({"x": 3.0, "y": 1.0, "reshaped": 0.5}).windows["W"].needed_s == 0.0


def test_an_embedding_is_needed_by_its_gather_and_ready_with_values_and_indices():
    job = step(
        {"E": ("values", "indices"), "W": "grad_w"},
        ids="Placeholder",
        tokens="Hash ids",
        rows="ResourceGather E tokens",
        read_w="ReadVariableOp W",
        logits="MatMul rows read_w",
        loss="Mean logits",
        back="LossGrad logits",
        grad_w="MatMul rows back",
        values="MatMul back read_w",
        indices="Reshape tokens",
        update="ResourceScatterSub E indices values",
        train="NoOp ^update ^grad_w",
    )
    seconds = {
        "tokens": 1.0,
        "rows": 2.0,
        "logits": 3.0,
        "back": 1.0,
        "grad_w": 1.0,
        "values": 1.5,
        "indices": 0.25,
        "update": 1.0,
    }
    assert job.windows(seconds) == TransferWindows(
        {"W": Window(8.0, 3.0), "E": Window(9.75, 1.0)}, computation_s=10.75, forward_s=6.0
    )


def test_an_update_is_no_reader():
    job = step(
        {"W": "grad"},
        grad="Mul",
        update="ResourceApplyMomentum W grad",
        loss="Mean",
        train="NoOp ^update",
    )
    assert job.windows({"grad": 1.0, "update": 2.0}) == TransferWindows(
        {"W": Window(1.0, 3.0)}, computation_s=3.0, forward_s=0.0
    )


def test_a_loop_that_reads_a_parameter_needs_it_when_it_begins():
    job = step(
        {"W": "grad"},
        before="Conv2D",
        read="ReadVariableOp W",
        weights="Enter read",
        enter="Enter before",
        merge="Merge enter next",
        condition="LoopCond merge",
        switch="Switch merge condition",
        body="MatMul switch weights",
        next="NextIteration body",
        exit="Exit switch",
        loss="Mean exit",
        grad="MatMul exit",
        train="NoOp ^grad",
    )
    seconds = {"before": 2.0, "condition": 0.5, "body": 4.0, "grad": 1.0}
    assert job.windows(seconds) == TransferWindows(
        {"W": Window(7.5, 2.0)}, computation_s=7.5, forward_s=6.5
    )


def test_the_forward_pass_ends_before_side_branches_and_regularisers():
    """Nothing of the forward pass is needed for `bias`, and `decay` reads W again, late."""
    job = step(
        {"W": "total", "bias": "one"},
        one="Fill",
        read="ReadVariableOp W",
        y="Conv2D read",
        again="ReadVariableOp W",
        penalty="L2Loss again",
        loss="AddV2 y penalty",
        back="LossGrad y",
        decay="Mul again",
        total="AddV2 back decay",
        train="NoOp ^total ^one",
    )
    seconds = {"one": 0.5, "y": 4.0, "again": 0.25, "back": 1.0, "decay": 1.0, "total": 1.0}
    windows = job.windows(seconds)
    assert windows.windows == {"bias": Window(0.5, 7.75), "W": Window(7.75, 0.5)}
    assert windows.forward_s == 4.75


def test_windows_are_found_by_analysis():
    timing = TimingTable(FIGURE_1_SECONDS)
    facts = [FIGURE_1.graph, FIGURE_1.job, FIGURE_1.frontier, timing]
    found = Analysis(facts, ANALYZERS).get(TransferWindows)
    assert found.windows["B"] == Window(10.0, 2.0)


def test_an_order_without_all_parameters_is_refused():
    with pytest.raises(PlanError, match="lacks 'B'"):
        FIGURE_1.windows(FIGURE_1_SECONDS, "A")
