"""What is no problem is refused, with what is wrong; groups and constraints are understood."""

from __future__ import annotations

import math

import pytest

from caramel.core.errors import GraphError, PlanError
from caramel.planning.placement.problem import Device, Problem, Tensor, Vertex, equal_rates
from tests.support.placement import diamond, problem

V0 = (Vertex("v0", 1),)
D0 = (Device("d0"),)


@pytest.mark.parametrize(
    ("vertices", "tensors", "message"),
    [
        ((Vertex("a"), Vertex("a")), (), r"more than once: \['a'\]"),
        ((Vertex("a", -1),), (), "'a' has -1 operations"),
        ((Vertex("a", 1, math.nan),), (), "'a' has nan bytes"),
        (V0, (Tensor(1, 1),), "the source of tensor 0 is vertex 1; there are 1"),
        (V0, (Tensor(0, 1, (-1,)),), "a reader of tensor 0 is vertex -1"),
        (V0, (Tensor(0, math.nan),), "tensor 0 has nan bytes"),
        (V0, (Tensor(0, 1), Tensor(0, 1, (), 0)), "tensor 1 hands on 0"),
        (
            (*V0, Vertex("v1"), Vertex("v2")),
            (Tensor(1, 1, (0, 2)), Tensor(2, 1, (1,))),
            "wait for each other: v1 -> v2 -> v1",
        ),
    ],
)
def test_what_is_no_graph(vertices, tensors, message):
    with pytest.raises(GraphError, match=message):
        Problem(vertices, tensors, D0, ((1,),))


@pytest.mark.parametrize(
    ("devices", "rates", "message"),
    [
        ((), (), "no device"),
        ((*D0, *D0), equal_rates(2, 1), r"more than once: \['d0'\]"),
        ((Device("a", 0),), ((1,),), "the speed of device 'a' is 0"),
        ((Device("a", math.nan),), ((1,),), "the speed of device 'a' is nan"),
        ((Device("a", 1, -1),), ((1,),), "the memory of device 'a' is -1"),
        ((*D0, Device("d1")), ((1, 1), (0, 1)), "the rate from 'd1' to 'd0' is 0"),
        ((*D0, Device("d1")), ((1, 1),), r"1 rows of \[2\] numbers; 2 devices"),
        ((*D0, Device("d1")), ((1, 1), (1,)), r"2 rows of \[1, 2\] numbers"),
    ],
)
def test_what_are_no_devices(devices, rates, message):
    with pytest.raises(PlanError, match=message):
        Problem(V0, (), devices, rates)


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"w.*": ("d0",)}, r"'w.\*' matches no name"),
        ({"v": ("d0",)}, "'v' matches no name"),  # whole names
        ({"v1": ("d5",)}, r"'v1' names \['d5'\]; there are \['d0', 'd1'\]"),
        ({"v1": ()}, "'v1' names no device"),
        ({"v(": ("d0",)}, r"'v\(' is no regular expression"),
        ({"v1": ("d0",), "v.": ("d1",)}, "'v1' may be on no device"),
        ({"v0": ("d0",), "v3": ("d1",)}, r"may only be: 'v0' on \['d0'\], 'v3' on \['d1'\]"),
    ],
)
def test_constraints_that_cannot_be_met(constraints, message):
    with pytest.raises(PlanError, match=message):
        diamond(2, together=((0, 3),), constraints=constraints)


def test_a_latency_that_is_no_number_is_refused():
    with pytest.raises(PlanError, match="the latency is nan s"):
        diamond(2, latency_s=math.nan)


def test_sets_with_a_vertex_in_common_are_one_group():
    graph = problem((1,) * 6, [], (1, 1), 1, together=((5, 2), (3, 4), (2, 0)))
    assert graph.groups == ((0, 2, 5), (1,), (3, 4))
    assert graph.group_of == (0, 1, 0, 2, 2, 0)


def test_members_of_a_group_share_their_constraints():
    graph = problem(
        (1,) * 3,
        [],
        (1, 1, 1),
        1,
        together=((0, 1),),
        constraints={"v0": ("d2", "d1"), "v1": ("d0", "d1")},
    )
    assert graph.allowed == ((1,), (0, 1, 2))


def test_definitions_need_not_be_in_the_order_of_edges():
    graph = problem((1, 1, 1), [(2, 5, (0,)), (2, 7, (0, 0)), (0, 1, (1,))], (1,), 1)
    assert graph.order == (2, 0, 1)
    assert graph.successors == ({1: 1}, {}, {0: 7})
    assert graph.predecessors[0] == {2: 7}
    assert graph.inputs == ((0, 1), (2,), ())
