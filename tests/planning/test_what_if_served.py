"""A job with parameter servers, predicted from its outline."""

from __future__ import annotations

import dataclasses

import pytest

from caramel.core.errors import PlanError
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


def test_the_longest_first_each_to_the_server_with_the_fewest_bytes():
    assert spread({"a": 3, "b": 5, "c": 2, "d": 2}, 2) == {"b": 0, "a": 1, "c": 1, "d": 0}
    with pytest.raises(PlanError, match="7 parameter servers are too many: the job has 6 param"):
        serve(OUTLINE, hardware(2), [HOST] * (len(NAMES) + 1))
