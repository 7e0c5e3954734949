"""Workers as one text describes them."""

from __future__ import annotations

import pytest

from caramel import Cluster
from caramel.cli.clusters import count_of
from caramel.cluster.parsing import parse_workers
from caramel.core.errors import ClusterError


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("4", "embedded", 4),
        (" local:3 ", "local", 3),
        ("a:1, b:2", "remote", None),
        ("local:1,b:2", "remote", None),
        ('{"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}', "remote", None),
    ],
)
def test_what_a_text_says(text, kind, count):
    described = parse_workers(text)
    assert (described.kind, described.count) == (kind, count)


@pytest.mark.parametrize(
    "text", ["0", "local:0", "local:", "local:x", "", "two", "-1", "a:b", "{", '{"worker": 5}']
)
def test_what_says_nothing_is_refused(text):
    with pytest.raises(ClusterError):
        Cluster.parse(text)


def test_workers_are_counted_without_being_asked():
    assert [count_of(text) for text in ("4", "local:3", "a:1,b:2")] == [4, 3, 2]
    assert count_of('{"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}') == 3


def test_a_cluster_is_made_of_what_it_says():
    assert Cluster.parse("2").kind == "embedded"
    assert [task.address for task in Cluster.parse("a:1,b:2").tasks] == ["a:1", "b:2"]
    with pytest.raises(ClusterError, match="certificates are for workers that run"):
        Cluster.parse("2", certificates="directory")
    with pytest.raises(ClusterError, match="takes a text"):
        Cluster.parse(2)
