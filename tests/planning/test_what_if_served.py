"""A job with parameter servers, predicted from its outline."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.errors import PlanError
from caramel.core.workload import Gradient, JobOutline, Piece, Update, Workload
from caramel.planning.what_if.served import Served, fastest, serve, spread
from caramel.simulation.hardware import Hardware, Host
from tests.support.outlines import ELEMENTS, NAMES, OUTLINE

RATE = 4.0 * ELEMENTS / 0.02  # a layer takes 20 ms
HOST = Host(RATE, RATE)


def hardware(workers):
    return Hardware(
        (HOST,) * workers,
        {},
        processor_s_per_byte=0.0,
        reduce_s_per_byte=0.0,
        handling_s_per_byte=0.0,
    )


def test_one_worker_by_hand():
    """Six layers: 10 ms forward, 20 backward, 20 on the link each way, 0.1 for each update."""
    found = serve(OUTLINE, hardware(1), [HOST])
    # The last layer is received at 120 ms, the last raw gradient complete at 250 and sent at 270.
    assert found.ordered_s == pytest.approx(0.2701)
    # Were all ahead: complete at 180, sent at 200, back at 220. With the first layer received until
    # 20 and not sent back it is the same, and as few go ahead as make it so.
    assert found.ahead_s == pytest.approx(0.2201)
    assert found.ahead_share == pytest.approx(5 / 6)
    # In any order computation begins between 20 and 120 ms.
    assert found.ordered_s < found.unordered_s <= 0.3201
    assert found == serve(OUTLINE, hardware(1), [HOST]), "predictions repeat"


def test_more_servers_help_where_the_link_of_one_is_the_limit():
    one, three = (serve(OUTLINE, hardware(3), [HOST] * servers) for servers in (1, 3))
    # Each layer takes 60 ms: the last one is received at 360, and its gradient complete at 390.
    assert one.ordered_s == pytest.approx(0.360 + 0.010 + 0.020 + 0.360 + 1e-4)
    assert three.step_s < 0.7 * one.step_s
    assert fastest([one, three]) == three


def test_as_few_servers_as_are_about_as_fast():
    few, many = Served(1, 2.0, 1.5, 1.0, 0.5), Served(2, 2.0, 1.5, 0.995, 0.5)
    assert fastest([many, few]) == few
    assert fastest([dataclasses.replace(many, ahead_s=0.9), few]).servers == 2


def test_rows_of_embeddings_count_nothing():
    sparse = dataclasses.replace(
        OUTLINE,
        gradients=tuple(dataclasses.replace(g, is_sparse=True) for g in OUTLINE.gradients),
    )
    assert serve(sparse, hardware(2), [HOST]).ordered_s == pytest.approx(0.1801)


def outline_of(sizes: dict[str, int], **rows: int) -> JobOutline:
    gradients = tuple(
        Gradient(n, size, "float32", rows=rows.get(n, 0)) for n, size in sizes.items()
    )
    chain = (
        Piece("forward", 1.0, needs=frozenset(sizes)),
        Piece("backward", 1.0, yields=tuple(sizes)),
    )
    updates = tuple(
        Update(f"update_{n}", 1.0, frozenset([n]), writes=frozenset([n, f"{n}/slot"]))
        for n in sizes
    )
    work = Workload(chain, updates)
    return JobOutline(work, work, gradients)


def test_the_longest_first_each_to_the_server_with_the_fewest_bytes():
    _, sizes, server_of = spread(outline_of({"a": 3, "b": 5, "c": 2, "d": 2}), 2)
    assert sizes == {"a": 12, "b": 20, "c": 8, "d": 8}
    assert server_of == {"b": 0, "a": 1, "c": 1, "d": 0}
    with pytest.raises(PlanError, match="7 parameter servers are too many: the job has 6 param"):
        serve(OUTLINE, hardware(2), [HOST] * (len(NAMES) + 1))


def test_what_is_larger_than_a_share_is_split_by_rows():
    """Of 200 elements each of two servers gets 100: b's 40, and so 60 of a's, and 100 of them."""
    sizes = {"a": 160, "b": 40}
    work, travels, server_of = spread(outline_of(sizes, a=10), 2)
    assert travels == {"a/part_0": 4 * 96, "a/part_1": 4 * 64, "b": 160}
    assert server_of == {"a/part_0": 0, "a/part_1": 1, "b": 1}
    assert work.chain[0].needs == {"a/part_0", "a/part_1", "b"}
    assert work.chain[1].yields == ("a/part_0", "a/part_1", "b")
    told = [(each.seconds, each.gradients, each.writes) for each in work.updates]
    assert told == [
        (0.6, {"a/part_0"}, {"a/part_0", "a/slot"}),
        (0.4, {"a/part_1"}, {"a/part_1", "a/slot"}),
        (1.0, {"b"}, {"b", "b/slot"}),
    ]
    whole, _, _ = spread(outline_of(sizes), 2)
    assert whole == outline_of(sizes).free
    slow = Host(64.0, 64.0)
    links = dataclasses.replace(hardware(2), hosts=(slow, slow))
    parts, apart = (serve(outline_of(sizes, a=rows), links, [slow, slow]) for rows in (10, 0))
    assert parts.step_s < 0.7 * apart.step_s
