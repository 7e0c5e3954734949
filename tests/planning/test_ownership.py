"""Which server has which variables: balanced by what travels, and what is updated by one op stays
together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caramel.core.errors import PlanError
from caramel.core.facts import StateAccess, Variable
from caramel.core.graph import TensorSpec
from caramel.core.names import TensorRef
from caramel.core.planned_job import AggregatedGradient, PlannedJob
from caramel.planning.serving.ownership import owners, taken_together


def job_of(servers, parameters, others=(), *, trained=None, **options) -> PlannedJob:
    """Parameters with their numbers of elements, and other variables of five.

    Args:
        trained: the parameters that have gradients in the step; all by default.
    """
    sizes = {**parameters, **dict.fromkeys(others, 5)}
    return PlannedJob(
        ("/job:worker/task:0",),
        "mean",
        tuple(
            Variable(
                name,
                name,
                f"{name}/init",
                f"{name}/read",
                TensorSpec("float32", (size,)),
                trainable=name in parameters,
                saved=True,
                full_name=name,
            )
            for name, size in sizes.items()
        ),
        tuple(
            AggregatedGradient(n, TensorRef(f"{n}/raw"), TensorSpec("float32", (s,)), (f"{n}/op",))
            for n, s in parameters.items()
            if trained is None or n in trained
        ),
        servers=tuple(f"/job:ps/task:{number}" for number in range(servers)),
        **options,
    )


def homes(job, **touched: str) -> dict[str, int]:
    """The server of each variable; `touched` are ops with the variables that they write."""
    writes = {op: frozenset(names.split()) for op, names in touched.items()}
    return {owner.variable: owner.server for owner in owners(job, StateAccess({}, writes))}


def test_the_longest_comes_first_and_goes_where_least_is():
    # a (7) to server 0, b (5) to 1, c (4) to 1, whose load is 9 then, d (3) to 0.
    assert homes(job_of(2, {"d": 3, "c": 4, "b": 5, "a": 7})) == {"a": 0, "b": 1, "c": 1, "d": 0}


def test_ties_go_by_name_and_to_the_first_server():
    assert homes(job_of(3, {"d": 4, "b": 4, "c": 4, "a": 4})) == {"a": 0, "b": 1, "c": 2, "d": 0}


def test_every_step_of_a_job_finds_the_same():
    parameters = {"a": 7, "b": 5, "c": 4, "d": 3}
    found = [homes(job_of(2, parameters, ["step"], trained=t)) for t in ("ab", "d", "", None)]
    assert found == [{"a": 0, "b": 1, "c": 1, "d": 0, "step": 1}] * 4


def test_owners_stand_in_the_order_of_the_variables():
    job = job_of(2, {"b": 2, "a": 9, "c": 2})
    assert [owner.variable for owner in owners(job, StateAccess({}, {}))] == ["b", "a", "c"]


def test_slots_are_where_their_parameter_is_and_weigh_nothing():
    # What travels of w is its gradient alone, although Adam touches three variables of its size.
    job = job_of(2, {"w": 10, "u": 9, "v": 8}, ["w/m", "w/v", "u/m", "u/v"])
    found = homes(job, w_adam="w w/m w/v", u_adam="u u/m u/v")
    assert found == {"w": 0, "w/m": 0, "w/v": 0, "u": 1, "u/m": 1, "u/v": 1, "v": 1}


def test_what_one_op_touches_stays_together_also_by_way_of_others():
    job = job_of(2, {"a": 2, "b": 3, "c": 4, "d": 8})
    # a, b and c together are 9 and longer than d.
    assert homes(job, one="a b", two="b c") == {"a": 0, "b": 0, "c": 0, "d": 1}


def test_parameters_are_together_for_an_op_that_takes_several():
    job = job_of(2, {"a": 2, "b": 3, "c": 4}, ["a/slot"])
    reads = {"call": frozenset({"a", "b"}), "other": frozenset({"b", "a"}), "read": frozenset("c")}
    access = StateAccess(reads, {"update": frozenset({"a", "a/slot"})})
    assert taken_together(job, access) == {("a", "b"): "call"}


def test_what_an_op_reads_and_what_it_writes_are_together():
    job = job_of(2, {"a": 2, "b": 2, "c": 2})
    access = StateAccess({"op": frozenset({"a"})}, {"op": frozenset({"c"})})
    assert {o.variable: o.server for o in owners(job, access)} == {"a": 0, "b": 1, "c": 0}


def test_variables_that_differ_between_workers_are_on_no_server():
    job = job_of(1, {"w": 2}, ["mean", "seen", "state"], local=frozenset({"mean"}))
    assert homes(job) == {"w": 0, "seen": 0, "state": 0}
    own = {"local": frozenset({"mean"}), "summed": frozenset({"seen"})}
    job = job_of(1, {"w": 2}, ["mean", "seen", "state"], generators=frozenset({"state"}), **own)
    assert homes(job) == {"w": 0}


def test_a_variable_that_travels_nowhere_is_somewhere():
    assert homes(job_of(2, {"a": 2, "b": 2}, ["step"])) == {"a": 0, "b": 1, "step": 0}


def test_idle_servers_are_named():
    with pytest.raises(
        PlanError,
        match=r"4 parameter servers are too many: /job:ps/task:2, /job:ps/task:3 would have no "
        r"parameter to serve, since there are 2 that can be apart; leave them out",
    ):
        homes(job_of(4, {"a": 2, "b": 2, "c": 2}, ["step"]), one="a b")


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 4))
def test_no_server_has_more_than_a_third_above_what_is_possible(sizes, servers):
    """Graham 1969: the longest first is at most 4/3 of the best, which is no less than the mean."""
    parameters = {f"v{number:02}": size for number, size in enumerate(sizes)}
    if len(sizes) < servers:
        return
    found = homes(job_of(servers, parameters))
    loads = [sum(parameters[n] for n, s in found.items() if s == own) for own in range(servers)]
    assert all(loads)
    # When the last parameter of the fullest server came, no other server had less.
    assert max(loads) <= sum(sizes) / servers + max(sizes) * (1 - 1 / servers)
