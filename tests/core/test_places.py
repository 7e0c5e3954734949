"""Places, and the names of what stands there and travels between them."""

from __future__ import annotations

import pytest

from caramel.core import names
from caramel.core.names import PullName


@pytest.mark.parametrize("number", [0, 1, 17])
def test_a_place_is_a_worker_or_a_server(number):
    place = names.server_place(number)
    assert names.server_at(place) == number
    assert names.server_at(number) is None
    assert names.replica_prefix(place) == f"server_{number}"
    assert names.replica_prefix(number) == f"worker_{number}"


@pytest.mark.parametrize(
    ("op", "place"),
    [
        ("worker_3/dense/kernel", 3),
        ("server_0/dense/kernel", -1),
        ("evaluation/dense/kernel", 0),
        ("caramel/server_2/pull/1/w", -3),
        ("caramel/worker_1/pulled/w", 1),
        ("caramel/group_4/server_1/sum", -2),
        ("caramel/group_4/worker_1/sum", 1),
        ("server_a/w", None),
        ("servers/w", None),
        ("dense/server_1/w", None),
    ],
)
def test_the_place_of_a_node_is_told_from_its_name(op, place):
    assert names.worker_of(op) == place


@pytest.mark.parametrize("variable", ["w", "a/b/c", "server_1/pull/2/w", "pulled/w", "worker_0"])
def test_a_pull_tells_what_goes_where(variable):
    assert names.pull_of(names.pulled_from(2, 5, variable)) == PullName(2, 5, variable)
    assert names.is_pulled(names.pulled(5, variable))
    assert names.worker_of(names.pulled(5, variable)) == 5


@pytest.mark.parametrize(
    "op",
    [
        "server_2/pull/5/w",
        "caramel/worker_2/pull/5/w",
        "caramel/server_2/answer/5/w",
        "caramel/server_2/pull",
        "worker_1/caramel/server_2/pull/5/w",
    ],
)
def test_what_is_no_pull_is_none(op):
    assert names.pull_of(op) is None
    assert not names.is_pulled(op)


def test_pulls_and_answers_of_several_workers_and_servers_are_apart():
    made = [
        make(server, worker, op)
        for make in (names.pulled_from, names.answer)
        for server in (0, 1)
        for worker in (0, 1)
        for op in ("w", "1/w")
    ]
    assert len(set(made)) == len(made)
    assert all(names.is_added(op) for op in made)
