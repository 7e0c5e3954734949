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


def test_what_might_have_been_meant_is_told():
    with pytest.raises(
        ClusterError, match="'two' describes no workers; expected a number .* local:4"
    ):
        Cluster.parse("two")


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


def test_servers_are_described_beside_the_workers():
    both = Cluster.parse("2", parameter_servers="1")
    assert (both.size, len(both.servers)) == (2, 1)
    remote = Cluster.parse("a:1,b:2", parameter_servers="c:3, d:4")
    assert [task.address for task in remote.servers] == ["c:3", "d:4"]
    jobs = '{"worker": ["b:1"], "ps": ["d:1"]}'
    assert len(Cluster.parse(jobs, parameter_servers="1").servers) == 1


@pytest.mark.parametrize(
    ("workers", "servers", "message"),
    [
        ("2", "0", "how many are made beside the workers, at least 1, not '0'"),
        ("local:2", "a:1", "how many are made beside the workers"),
        ("a:1,b:2", "1", "but the workers run: name the addresses of the servers"),
        ('{"worker": ["b:1"], "ps": ["d:1"]}', "2", "described with their servers"),
        ('{"worker": ["b:1"], "ps": 5}', "2", "addresses"),
    ],
)
def test_servers_that_do_not_fit_the_workers_are_refused(workers, servers, message):
    with pytest.raises(ClusterError, match=message):
        Cluster.parse(workers, parameter_servers=servers)
