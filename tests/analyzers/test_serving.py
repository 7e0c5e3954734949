"""With parameter servers: what is done once, where, and what by each worker, on graphs of a few
ops."""

from __future__ import annotations

import pytest

from caramel.core.consequences import Place, Reading, Remote, Serving, Written
from caramel.core.errors import UnsupportedOpError
from tests.support.served_graphs import ServedGraph, graph_of

STEP = {
    "w": "VarHandleOp",
    "slot": "VarHandleOp",
    "x": "Placeholder",
    "rate": "Const",
    "w_read": "ReadVariableOp w",
    "y": "MatMul x w_read",
    "loss": "Mean y",
    "raw": "MatMul y x",
    "half": "Mul raw rate",
    "apply": "ResourceApplyMomentum w slot rate half",
    "train": "NoOp ^apply",
}


def step_of(changes=None, *, servers=("w slot",), gradients=None, local=()) -> ServedGraph:
    """The step with other ops; those that are None are left out."""
    ops = {name: text for name, text in {**STEP, **(changes or {})}.items() if text is not None}
    return ServedGraph(graph_of(**ops), gradients or {"w": "raw"}, servers, local=local)


def test_without_servers_nothing_is_done_once():
    assert step_of(servers=()).serving() == Serving()


def test_what_reads_the_aggregated_gradient_is_done_once_with_what_it_is_made_of():
    found = step_of().serving()
    assert found.once == ("w", "slot", "rate", "half", "apply", "train")
    assert found.results == ("train",)
    assert found.written == (Written("slot", ("apply",)), Written("w", ("apply",)))


def test_workers_do_what_depends_on_examples_and_lack_the_updates():
    found = step_of().serving()
    assert found.worker_results == ("raw",)
    assert {"apply", "half", "rate"} <= set(found.absent)
    assert not {"x", "y", "raw", "loss", "w_read", "w"} & set(found.absent)


def test_workers_read_what_their_ops_read_and_nothing_else():
    assert step_of().serving().readings == (Reading("w", ("w_read",), True, ("w_read",)),)


def test_what_only_fetches_read_is_no_reading_of_the_step():
    more = {"v": "VarHandleOp", "v_value": "ReadVariableOp v", "told": "Mul x v_value"}
    found = step_of(more, servers=("w slot", "v")).serving()
    assert Reading("v", ("v_value",), False, ()) in found.readings
    assert [each.variable for each in found.readings if each.is_of_step] == ["w"]


def test_ops_stand_where_their_variable_is():
    more = {
        "u": "VarHandleOp",
        "u_read": "ReadVariableOp u",
        "y": "MatMul x w_read u_read",
        "raw_u": "MatMul y x",
        "apply_u": "ResourceApplyGradientDescent u rate raw_u",
        "train": "NoOp ^apply ^apply_u",
    }
    found = step_of(more, servers=("w slot", "u"), gradients={"w": "raw", "u": "raw_u"}).serving()
    servers = {place.op: place.server for place in found.places}
    assert {name: servers[name] for name in ("w", "slot", "half", "apply")} == {
        "w": 0,
        "slot": 0,
        "half": 0,
        "apply": 0,
    }
    assert servers["u"] == servers["apply_u"] == 1
    # What reads on several servers stands on the first one, as what nobody has a place for.
    assert servers["train"] == 0


def test_a_value_of_the_gradients_of_two_servers_stands_on_the_first():
    more = {
        "u": "VarHandleOp",
        "raw_u": "MatMul y x",
        "norm": "AddN raw raw_u",
        "half": "Mul raw norm",
        "half_u": "Mul raw_u norm",
        "apply_u": "ResourceApplyGradientDescent u rate half_u",
        "train": "NoOp ^apply ^apply_u",
    }
    found = step_of(more, servers=("u", "w slot"), gradients={"w": "raw", "u": "raw_u"}).serving()
    servers = {place.op: place.server for place in found.places}
    assert servers["apply"] == servers["half"] == 1
    assert servers["apply_u"] == 0
    assert servers["norm"] in (0, 1)
    assert Place("train", 0) in found.places


def test_updates_of_what_differs_between_workers_stay_with_them():
    more = {
        "mean": "VarHandleOp",
        "average": "AssignSubVariableOp mean y",
        "apply": "ResourceApplyMomentum w slot rate half ^average",
        "train": "NoOp ^apply ^average",
    }
    found = step_of(more, local=("mean",)).serving()
    assert set(found.worker_results) == {"raw", "average"}
    assert not {"mean", "average"} & {*found.once, *found.absent}
    assert found.written == (Written("slot", ("apply",)), Written("w", ("apply",)))


def test_a_counter_is_counted_once():
    more = {
        "count": "VarHandleOp",
        "one": "Const",
        "counted": "AssignAddVariableOp count one",
        "train": "NoOp ^apply ^counted",
    }
    found = step_of(more, servers=("w slot count",)).serving()
    assert {"count", "one", "counted"} <= set(found.once)
    assert "counted" in found.absent
    assert Written("count", ("counted",)) in found.written
    assert [each.variable for each in found.readings] == ["w"]


def test_a_schedule_that_a_worker_reads_too_is_where_either_needs_it():
    more = {
        "count": "VarHandleOp",
        "count_read": "ReadVariableOp count",
        "rate": "Neg count_read",
        "y": "MatMul x w_read rate",
        "one": "Const",
        "counted": "AssignAddVariableOp count one ^rate",
        "train": "NoOp ^apply ^counted",
    }
    found = step_of(more, servers=("w slot count",)).serving()
    assert {"count_read", "rate"} <= set(found.once)
    assert not {"count_read", "rate"} & set(found.absent)
    assert {each.variable: each.waiting for each in found.readings} == {
        "w": ("w_read",),
        "count": ("count_read",),
    }


def test_workers_receive_rows_of_what_they_only_gather_from():
    more = {
        "ids": "Placeholder",
        "w_read": None,
        "rows": "ResourceGather w ids",
        "y": "MatMul x rows",
    }
    found = step_of(more).serving()
    assert found.remote == (Remote("rows", "w", is_of_step=True),)
    assert found.readings == ()


def test_what_is_read_as_a_whole_too_is_received_as_a_whole():
    more = {"ids": "Placeholder", "rows": "ResourceGather w ids", "y": "MatMul x rows w_read"}
    found = step_of(more).serving()
    assert found.remote == ()
    assert [(each.variable, set(each.waiting)) for each in found.readings] == [
        ("w", {"w_read", "rows"})
    ]


def test_what_reads_a_variable_in_a_loop_waits_where_its_handle_enters():
    more = {
        "w_read": None,
        "zero": "Const",
        "start": "Enter zero",
        "handle": "Enter w",
        "turn": "Merge start following",
        "again": "LoopCond turn",
        "inner": "Switch turn again",
        "value": "ReadVariableOp handle",
        "body": "Add inner:1 value",
        "following": "NextIteration body",
        "result": "Exit inner",
        "y": "MatMul x result",
    }
    (reading,) = step_of(more).serving().readings
    assert reading == Reading("w", ("handle",), True, None)


COUNTED_FIRST = {
    "count": "VarHandleOp",
    "one": "Const",
    "counted": "AssignAddVariableOp count one",
    "now": "ReadVariableOp count ^counted",
    "y": "MatMul x w_read now",
}


def test_a_write_that_workers_wait_for_is_repeated_by_them():
    found = step_of(COUNTED_FIRST, servers=("w slot count",)).serving()
    assert {"counted", "now"} & set(found.absent) == set()
    assert Written("count", ("counted",)) in found.written
    (reading,) = (each for each in found.readings if each.variable == "count")
    assert reading.is_of_step
    assert set(reading.waiting) == {"counted", "now"}


def test_a_write_of_aggregated_values_cannot_be_repeated():
    more = {**COUNTED_FIRST, "counted": "AssignAddVariableOp count half"}
    more["y"], more["after"] = STEP["y"], "MatMul x now"
    more["train"] = "NoOp ^apply ^after"
    with pytest.raises(UnsupportedOpError, match=r"'after' .* reads 'now:0'"):
        step_of(more, servers=("w slot count",)).serving()


def test_a_write_behind_an_update_cannot_be_repeated():
    more = {
        **COUNTED_FIRST,
        "counted": "AssignAddVariableOp count one ^apply",
        "y": STEP["y"],
        "after": "MatMul x now",
        "train": "NoOp ^apply ^after",
    }
    with pytest.raises(UnsupportedOpError, match=r"'after' .* reads 'now:0'"):
        step_of(more, servers=("w slot count",)).serving()


def test_a_write_that_is_repeated_keeps_rows_from_being_read_on_the_server():
    more = {
        "t": "VarHandleOp",
        "one": "Const",
        "set": "AssignVariableOp t one",
        "ids": "Placeholder",
        "rows": "ResourceGather t ids ^set",
        "y": "MatMul x w_read rows",
        "train": "NoOp ^apply ^set",
    }
    found = step_of(more, servers=("w slot t",)).serving()
    assert found.remote == ()
    assert [each.variable for each in found.readings if each.is_of_step] == ["w", "t"]


LOOP_OF_UPDATES = {
    "zero": "Const",
    "start": "Enter zero",
    "handle": "Enter w",
    "step": "Enter half",
    "turn": "Merge start following",
    "again": "LoopCond turn",
    "inner": "Switch turn again",
    "body": "Identity inner:1",
    "apply": "AssignSubVariableOp handle step ^body",
    "one": "Const ^apply",
    "more": "Add body one",
    "following": "NextIteration more",
    "result": "Exit inner",
    "train": "NoOp ^result",
}


def test_a_loop_of_updates_is_done_once_as_a_whole():
    found = step_of(LOOP_OF_UPDATES).serving()
    loop = {"turn", "again", "inner", "body", "apply", "one", "more", "following", "result"}
    assert loop <= set(found.once)
    assert loop <= set(found.absent)


def test_an_update_in_a_loop_waits_where_its_handle_enters():
    assert step_of(LOOP_OF_UPDATES).serving().written == (Written("w", ("handle",)),)


def test_an_update_that_waits_for_a_worker_is_done_once_all_the_same():
    found = step_of({"half": "Mul raw rate ^loss"}).serving()
    assert {"half", "apply"} <= set(found.once)
    assert "loss" not in found.once


def test_agents_that_only_infer_lack_the_updates_and_keep_variables_and_feeds():
    more = {
        "mean": "VarHandleOp",
        "z": "Placeholder",
        "raw": "MatMul y z",
        "average": "AssignSubVariableOp mean y",
        "train": "NoOp ^apply ^average",
    }
    ops = {**STEP, **more}
    found = ServedGraph(
        graph_of(**ops), {}, ("w slot",), local=("mean",), train_op="loss"
    ).serving()
    assert {"raw", "apply", "average", "train"} <= set(found.absent)
    assert not {"mean", "z", "w", "loss"} & set(found.absent)
    assert found.written == found.results == ()
    assert set(found.once) == {"w", "slot"}  # their handles only
    assert [each.variable for each in found.readings] == ["w"]


def test_what_reads_values_of_both_is_nobodys():
    more = {"told": "Add loss half", "more": "Neg told"}
    found = step_of(more).serving()
    assert {"told", "more"} <= set(found.absent)
    assert not {"told", "more"} & set(found.once)


def test_a_worker_that_reads_a_variable_behind_its_update_is_refused():
    more = {
        "after": "ReadVariableOp w ^apply",
        "again": "MatMul x after",
        "train": "NoOp ^apply ^again",
    }
    with pytest.raises(
        UnsupportedOpError,
        match=r"'again' \(MatMul\) depends on a worker's examples and reads 'after:0', which is "
        r"computed once, from updates in the same step; .* or train with ARModel",
    ):
        step_of(more).serving()


def test_a_worker_that_gathers_from_a_variable_behind_its_update_is_refused():
    more = {
        "ids": "Placeholder",
        "after": "ResourceGather w ids ^apply",
        "train": "NoOp ^apply ^after",
    }
    with pytest.raises(
        UnsupportedOpError, match=r"'after' \(ResourceGather\) .* variable 'w' as 'apply' left it"
    ):
        step_of(more).serving()
