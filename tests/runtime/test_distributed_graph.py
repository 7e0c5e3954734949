"""The distributed graph has all parts that were added, whoever looks at it meanwhile."""

from __future__ import annotations

import pytest

from caramel.runtime.execution import distributed_graph
from caramel.runtime.execution.distributed_graph import DistributedGraph
from tests.support.networks import tf1


def part(name):
    return tf1.GraphDef(node=[tf1.NodeDef(name=name, op="NoOp")])


def in_names(graph):
    return ["first" in graph, "caramel_variant_1/second" in graph][1]


def in_tensorflow(graph):
    return "caramel_variant_1/second" in [op.name for op in graph.as_graph().get_operations()]


@pytest.mark.parametrize("has_second", [in_names, in_tensorflow])
def test_a_part_that_is_added_while_others_are_read_is_read_later(monkeypatch, has_second):
    graph, parsed = DistributedGraph(), distributed_graph._parsed
    graph.add(part("first"))

    def slow(read):  # as if another thread added one now
        if len(graph.parts) == 1:
            graph.add(part("second"), 1)
        return parsed(read)

    monkeypatch.setattr(distributed_graph, "_parsed", slow)
    has_second(graph)
    assert has_second(graph)
