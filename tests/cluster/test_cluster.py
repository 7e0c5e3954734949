"""Clusters: what users and launchers may say, and who can be reached."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import socket
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from caramel.cluster import processes
from caramel.cluster.cluster import Cluster
from caramel.cluster.tasks import Task
from caramel.core.errors import ClusterError, WorkerStartError


@pytest.fixture
def listener():
    """A socket that listens on loopback, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def nobody() -> str:
    """An address on which nobody listens."""
    return f"127.0.0.1:{processes.free_ports(1)[0]}"


# Described by the user --------------------------------------------------------------------------


def test_a_list_of_addresses_is_the_job_worker():
    cluster = Cluster.of(["a:1", "b:2"])
    assert cluster.tasks == (Task("worker", 0, "a:1"), Task("worker", 1, "b:2"))
    assert cluster.devices == ("/job:worker/task:0", "/job:worker/task:1")
    assert cluster.as_dict() == {"worker": ["a:1", "b:2"]}
    assert (cluster.kind, cluster.size, cluster.task) == ("remote", 2, None)
    assert repr(cluster) == (
        "<Cluster, remote: /job:worker/task:0 at a:1, /job:worker/task:1 at b:2>"
    )


def test_the_chief_is_the_first_worker_whatever_the_order_of_the_mapping():
    cluster = Cluster.of({"worker": ["a:1", "b:2"], "chief": ["c:3"]})
    assert cluster.devices == ("/job:chief/task:0", "/job:worker/task:0", "/job:worker/task:1")
    assert cluster.as_dict() == {"chief": ["c:3"], "worker": ["a:1", "b:2"]}


def test_a_cluster_spec_is_accepted_without_importing_tensorflow():
    class ClusterSpec:
        def __init__(self, jobs):
            self.jobs = jobs

        def as_dict(self):
            return self.jobs

    assert Cluster.of(ClusterSpec({"worker": ["a:1"]})).as_dict() == {"worker": ["a:1"]}
    numbered = {"worker": {n: f"a:{n + 1}" for n in reversed(range(12))}}
    assert Cluster.of(ClusterSpec(numbered)).tasks[11] == Task("worker", 11, "a:12")
    with pytest.raises(ClusterError, match=r"tasks of job worker are \[0, 2\]; .* without gaps"):
        Cluster.of(ClusterSpec({"worker": {0: "a:1", 2: "a:2"}}))


@pytest.mark.parametrize("address", ["node_1.example.org:1", "127.0.0.1:65535", "[::1]:4321"])
def test_these_are_addresses(address):
    assert Cluster.of([address]).tasks[0].address == address


@pytest.mark.parametrize(
    "address", ["a", "a:", ":1", "a:b", "grpc://a:1", "a:-1", "::1:1", "a b:1", 7]
)
def test_these_are_not_addresses(address):
    with pytest.raises(ClusterError, match="is not an address; expected host:port"):
        Cluster.of([address])


@pytest.mark.parametrize("port", [0, 65536])
def test_a_port_out_of_range_is_named(port):
    with pytest.raises(ClusterError, match=f"port of address 'a:{port}' is {port}; expected 1 to"):
        Cluster.of([f"a:{port}"])


def test_an_address_given_twice_names_both_tasks():
    with pytest.raises(
        ClusterError, match="'A:1' is given twice, for /job:chief/task:0 and /job:w"
    ):
        Cluster.of({"chief": ["a:1"], "worker": ["A:1"]})


def test_an_empty_cluster_is_an_error():
    for nothing in ([], {}, {"worker": []}):
        with pytest.raises(ClusterError, match="has no workers"):
            Cluster.of(nothing)


def test_other_jobs_are_named():
    with pytest.raises(ClusterError, match="chief, worker and ps only; the cluster also has sp"):
        Cluster.of({"sp": ["a:1"], "worker": ["b:1"]})


def test_one_string_instead_of_a_list_is_an_error():
    with pytest.raises(ClusterError, match="addresses of job worker are 'a:1'; expected a list"):
        Cluster.of({"worker": "a:1"})


def test_the_own_task_must_exist():
    assert Cluster.of(["a:1", "b:1"], task=1).task == 1
    with pytest.raises(
        ClusterError, match="task 2 does not exist: the cluster has 2 workers, 0 to"
    ):
        Cluster.of(["a:1", "b:1"], task=2)


def test_embedded_workers_have_devices_but_no_addresses():
    cluster = Cluster.embedded(2)
    assert (cluster.kind, cluster.size) == ("embedded", 2)
    assert cluster.devices == ("/job:worker/task:0", "/job:worker/task:1")
    assert cluster.tasks[1].address is None
    assert repr(cluster) == "Cluster.embedded(2)"
    assert cluster.describe(1) == "worker 1 (/job:worker/task:1 in this process)"
    with pytest.raises(ClusterError, match="no addresses until a session starts them"):
        cluster.as_dict()


def test_workers_can_be_given_in_many_forms():
    cluster = Cluster.embedded(3)
    assert Cluster.coerce(cluster) is cluster
    assert Cluster.coerce(3).kind == "embedded"
    assert Cluster.coerce(np.int64(3)).size == 3
    assert Cluster.coerce(("a:1", "b:1")).size == 2
    assert Cluster.coerce({"chief": ["a:1"]}).devices == ("/job:chief/task:0",)


@pytest.mark.parametrize("workers", [0, -1])
def test_fewer_than_one_worker_is_an_error(workers):
    with pytest.raises(ClusterError, match=f"number of workers is {workers}; expected at least 1"):
        Cluster.coerce(workers)
    with pytest.raises(ClusterError, match="expected at least 1"):
        Cluster.local(workers)


@pytest.mark.parametrize("workers", [True, "a:1", 2.0, None, object()])
def test_anything_else_is_an_error_that_says_what_is_accepted(workers):
    with pytest.raises(ClusterError, match="number of workers"):
        Cluster.coerce(workers)


def test_the_error_for_other_types_lists_what_is_accepted():
    with pytest.raises(ClusterError) as caught:
        Cluster.coerce("a:1")
    for accepted in ("number of workers", "list of addresses", "mapping", "ClusterSpec", "Cluster"):
        assert accepted in str(caught.value)


# With parameter servers -------------------------------------------------------------------------


def test_parameter_servers_come_after_the_workers():
    cluster = Cluster.of({"ps": ["s:1", "s:2"], "worker": ["a:1"], "chief": ["c:1"]})
    assert cluster.size == 2
    assert cluster.workers == (Task("chief", 0, "c:1"), Task("worker", 0, "a:1"))
    assert cluster.servers == (Task("ps", 0, "s:1"), Task("ps", 1, "s:2"))
    assert cluster.tasks == cluster.workers + cluster.servers
    assert cluster.devices == ("/job:chief/task:0", "/job:worker/task:0")
    assert cluster.server_devices == ("/job:ps/task:0", "/job:ps/task:1")
    assert cluster.as_dict() == {"chief": ["c:1"], "worker": ["a:1"], "ps": ["s:1", "s:2"]}
    assert cluster.describe(3) == "parameter server 1 (/job:ps/task:1 at s:2)"
    assert cluster.where == ("remote", "c", "a", "ps s", "ps s")


def test_a_cluster_without_the_job_ps_has_no_servers():
    for cluster in (Cluster.embedded(2), Cluster.of({"worker": ["a:1", "b:1"], "ps": []})):
        assert (cluster.servers, cluster.server_devices) == ((), ())
        assert cluster.workers == cluster.tasks


def test_servers_can_be_named_beside_the_workers():
    cluster = Cluster.of(["a:1"], parameter_servers=["s:1"], task=1)
    assert cluster.as_dict() == {"worker": ["a:1"], "ps": ["s:1"]}
    assert repr(cluster) == (
        "<Cluster, remote: /job:worker/task:0 at a:1, /job:ps/task:0 at s:1, "
        "this process is parameter server 0>"
    )
    with pytest.raises(ClusterError, match="servers are given twice: as parameter_servers, and as"):
        Cluster.of(cluster.as_dict(), parameter_servers=["s:1"])
    with pytest.raises(ClusterError, match="parameter_servers names no address"):
        Cluster.of(["a:1"], parameter_servers=[])
    with pytest.raises(ClusterError, match="parameter_servers must be a list .*, not 's:1'"):
        Cluster.of(["a:1"], parameter_servers="s:1")
    with pytest.raises(
        ClusterError, match=r"has 2 tasks \(1 worker, 1 parameter server\), 0 to 1$"
    ):
        Cluster.of(["a:1"], parameter_servers=["s:1"], task=2)


def test_an_address_of_both_jobs_names_both_tasks():
    with pytest.raises(
        ClusterError, match="'a:1' is given twice, for /job:worker/task:0 and /job:ps/task:0"
    ):
        Cluster.of(["a:1"], parameter_servers=["a:1"])


def test_servers_alone_are_no_cluster():
    with pytest.raises(ClusterError, match="has no workers"):
        Cluster.of({"ps": ["s:1"]})


def test_servers_can_be_embedded_beside_workers():
    cluster = Cluster.embedded(2, parameter_servers=1)
    assert (cluster.devices[1], cluster.server_devices) == (
        "/job:worker/task:1",
        ("/job:ps/task:0",),
    )
    assert repr(cluster) == "Cluster.embedded(2, parameter_servers=1)"
    assert cluster.describe(2) == "parameter server 0 (/job:ps/task:0 in this process)"
    assert cluster.unreachable() == ()


@pytest.mark.parametrize("count", [0, -1])
def test_fewer_than_one_server_is_an_error(count):
    message = f"number of parameter servers is {count}; expected at least 1"
    for make in (
        Cluster.embedded,
        Cluster.local,
        Cluster.coerce_with_servers,
        lambda n, parameter_servers: Cluster.from_environment(
            {}, parameter_servers=parameter_servers
        ),
    ):
        with pytest.raises(ClusterError, match=message):
            make(2, parameter_servers=count)


@pytest.mark.parametrize("count", [True, 1.0, "s:1"])
def test_another_number_of_servers_is_an_error(count):
    with pytest.raises(ClusterError, match="servers is .*; expected a whole number of at least 1"):
        Cluster.embedded(2, parameter_servers=count)


def test_where_only_workers_take_part_servers_are_an_error():
    expected = (
        r"the cluster has 1 parameter server \(/job:ps/task:0\): the job ps is for training with "
        r"parameter servers, .* Give a cluster without the job ps, such as "
    )
    for workers in (
        Cluster.embedded(2, parameter_servers=1),
        {"worker": ["a:1"], "ps": ["s:1"]},
    ):
        with pytest.raises(ClusterError, match=expected):
            Cluster.coerce(workers)


def test_workers_with_servers_can_be_given_in_many_forms():
    both = {"worker": ["a:1", "b:1"], "ps": ["s:1"]}
    cluster = Cluster.of(both)
    assert Cluster.coerce_with_servers(cluster) is cluster
    assert Cluster.coerce_with_servers(cluster, 1) is cluster
    assert Cluster.coerce_with_servers(both).tasks == cluster.tasks
    assert Cluster.coerce_with_servers(both["worker"], both["ps"]).tasks == cluster.tasks
    assert repr(Cluster.coerce_with_servers(np.int64(4), np.int64(2))) == (
        "Cluster.embedded(4, parameter_servers=2)"
    )


@pytest.mark.parametrize(
    ("workers", "servers", "message"),
    [
        (2, None, "has 2 workers and no parameter server, .* Give one with the job ps, such as"),
        (["a:1"], None, "has 1 worker and no parameter server"),
        (["a:1"], 1, "has 1 worker and no parameter server"),
        (Cluster.embedded(1), 1, "has 1 worker and no parameter server"),
        (
            Cluster.embedded(1, parameter_servers=1),
            2,
            r"has 2 tasks \(1 worker, 1 parameter server\), but parameter_servers is 2",
        ),
        (Cluster.of(["a:1"]), ["s:1"], "given beside a Cluster; name both jobs in it"),
        (2, ["s:1"], "workers are inside this process, but .* give two numbers, or addresses of"),
        ("a:1", 1, "workers is 'a:1'"),
    ],
)
def test_workers_and_servers_that_do_not_fit_are_one_clear_error(workers, servers, message):
    with pytest.raises(ClusterError, match=message):
        Cluster.coerce_with_servers(workers, servers)


# Described by a launcher ------------------------------------------------------------------------


def tf_config(cluster, task=None) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, **({"task": task} if task else {})})}


def test_tf_config_says_which_worker_this_process_is():
    jobs = {"worker": ["a:1", "b:1"], "chief": ["c:1"]}
    cluster = Cluster.from_environment(tf_config(jobs, {"type": "worker", "index": 1}))
    assert cluster.as_dict() == jobs
    assert cluster.task == 2
    assert repr(cluster).endswith(", this process is worker 2>")
    assert Cluster.from_environment(tf_config(jobs, {"type": "worker", "index": "0"})).task == 1


def test_a_process_that_is_no_worker_in_tf_config_is_a_client():
    jobs = {"worker": ["a:1"]}
    assert Cluster.from_environment(tf_config(jobs)).task is None
    client = Cluster.from_environment(tf_config(jobs, {"type": "evaluator", "index": 0}))
    assert client.task is None


def test_tf_config_says_which_server_this_process_is():
    jobs = {"chief": ["c:1"], "worker": ["a:1"], "ps": ["s:1", "s:2"]}
    cluster = Cluster.from_environment(tf_config(jobs, {"type": "ps", "index": 1}))
    assert cluster.as_dict() == jobs
    assert (cluster.task, cluster.name(cluster.task)) == (3, "parameter server 1")
    chief = Cluster.from_environment(
        tf_config(jobs, {"type": "chief", "index": 0}), parameter_servers=2
    )
    assert chief.task == 0


def test_an_evaluator_in_tf_config_is_no_part_of_the_cluster():
    jobs = {"worker": ["a:1"], "ps": ["s:1"]}
    described = {**jobs, "evaluator": ["e:1"]}
    evaluator = Cluster.from_environment(tf_config(described, {"type": "evaluator", "index": 0}))
    assert (evaluator.as_dict(), evaluator.task) == (jobs, None)
    worker = Cluster.from_environment(tf_config(described, {"type": "worker", "index": 0}))
    assert (worker.as_dict(), worker.task) == (jobs, 0)


def test_a_number_of_servers_must_be_that_of_tf_config():
    expected = r"TF_CONFIG: the cluster has 2 tasks \(1 worker, 1 .*\), but parameter_servers is 2"
    with pytest.raises(ClusterError, match=expected):
        Cluster.from_environment(tf_config({"worker": ["a:1"], "ps": ["s:1"]}), parameter_servers=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
            "this process is task 0 of job ps, which the cluster does not have: /job:worker/task:0",
        ),
        ("{oops", "TF_CONFIG is not valid JSON"),
        ('{"task": {}}', "TF_CONFIG describes no cluster; expected a 'cluster' entry"),
        ('{"cluster": {"worker": ["a"]}}', "TF_CONFIG: 'a' is not an address"),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            "this process is task 1 of job worker, which the cluster does not have",
        ),
        ("[" * 100_000, "not valid JSON .*recursion depth"),
        ("9" * 5000, "not valid JSON"),
        (
            '{"cluster": {"worker": ["a:%s"]}}' % ("9" * 5000),
            "TF_CONFIG: the port of 'a' has 5000 digits",
        ),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": "%s"}}'
            % ("9" * 5000),
            "the index of the task is 9*...; expected a number",
        ),
    ],
)
def test_a_wrong_tf_config_is_a_clear_error(text, message):
    with pytest.raises(ClusterError, match=message):
        Cluster.from_environment({"TF_CONFIG": text})


def slurm(**variables) -> dict[str, str]:
    return {f"SLURM_{name}": str(value) for name, value in variables.items()}


def test_slurm_puts_tasks_on_nodes_in_blocks():
    cluster = Cluster.from_environment(
        slurm(
            JOB_NODELIST="node[01-03,07],gpu5",
            NTASKS=8,
            TASKS_PER_NODE="2(x3),1(x2)",
            PROCID=3,
        )
    )
    assert cluster.as_dict()["worker"] == [
        *("node01:12321", "node01:12322", "node02:12321", "node02:12322"),
        *("node03:12321", "node03:12322", "node07:12321", "gpu5:12321"),
    ]
    assert cluster.task == 3


def test_slurm_node_names_may_have_several_ranges():
    variables = slurm(JOB_NODELIST="r[1-2]n[09-10]-ib", NTASKS=4, PROCID=0)
    cluster = Cluster.from_environment(variables, base_port=5000)
    assert cluster.as_dict()["worker"] == [
        *("r1n09-ib:5000", "r1n10-ib:5000", "r2n09-ib:5000", "r2n10-ib:5000"),
    ]


def test_a_slurm_step_goes_before_its_job():
    job = slurm(JOB_NODELIST="n[1-4]", NTASKS=8, TASKS_PER_NODE="2(x4)", PROCID=1)
    step = slurm(STEP_NODELIST="n[2-3]", STEP_NUM_TASKS=2, STEP_TASKS_PER_NODE="1(x2)", STEP_ID=0)
    here = {"SLURMD_NODENAME": "n3", "ENVIRONMENT": "BATCH"}
    cluster = Cluster.from_environment({**job, **step, **here})
    assert cluster.as_dict()["worker"] == ["n2:12321", "n3:12321"]
    assert cluster.task == 1


@pytest.mark.parametrize(
    ("distribution", "ranks"),
    [
        ("block", "a:1 a:2 a:3 b:1 b:2"),
        ("cyclic:block", "a:1 b:1 a:2 b:2 a:3"),
        ("plane", "a:1 a:2 b:1 b:2 a:3"),
    ],
)
def test_slurm_may_deal_out_tasks_in_turn(distribution, ranks):
    tasks = slurm(JOB_NODELIST="a,b", TASKS_PER_NODE="3,2", PROCID=4)
    how = slurm(DISTRIBUTION=distribution, DIST_PLANESIZE=2)
    here = {"SLURMD_NODENAME": ranks.split()[4][0]}
    cluster = Cluster.from_environment({**tasks, **how, **here}, base_port=1)
    assert cluster.as_dict()["worker"] == ranks.split()


@pytest.mark.parametrize(("rank", "task"), [(0, 2), (1, 3), (2, 0), (3, 1)])
def test_the_first_ranks_of_slurm_can_be_parameter_servers(rank, task):
    variables = slurm(JOB_NODELIST="n[1-2]", NTASKS=4, PROCID=rank)
    cluster = Cluster.from_environment(variables, parameter_servers=2)
    assert cluster.as_dict() == {
        "worker": ["n2:12321", "n2:12322"],
        "ps": ["n1:12321", "n1:12322"],
    }
    assert cluster.task == task


def test_a_rank_must_be_left_to_be_a_worker():
    with pytest.raises(ClusterError, match="is 2, but Slurm has 2 ranks: none is left to be"):
        Cluster.from_environment(
            slurm(JOB_NODELIST="n[1-2]", NTASKS=2, PROCID=0), parameter_servers=2
        )


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (slurm(JOB_NODELIST="n[1-x]", PROCID=0), r"node list is 'n\[1-x\]'; expected a form like"),
        (slurm(JOB_NODELIST="n1", PROCID="x"), "SLURM_PROCID is 'x'; expected a number"),
        (slurm(JOB_NODELIST="n[1-2]", NTASKS=3, PROCID=0), "3 tasks on 2 nodes; SLURM_TASKS_PER_"),
        (slurm(JOB_NODELIST="n1", TASKS_PER_NODE="2*3", PROCID=0), r"'2\*3'; expected a form like"),
        (
            slurm(JOB_NODELIST="n[1-2]", NTASKS=3, TASKS_PER_NODE="2(x2)", PROCID=0),
            r"contradict each other: 2 nodes, 3 tasks, '2\(x2\)' tasks per node",
        ),
        (
            slurm(JOB_NODELIST="n[1-2]", PROCID=2),
            "SLURM_PROCID is 2, but there are 2 tasks",
        ),
        (
            slurm(JOB_NODELIST="n1", DISTRIBUTION="plane", DIST_PLANESIZE="x", PROCID=0),
            "SLURM_DIST_PLANESIZE is 'x'; expected a number",
        ),
        (slurm(JOB_NODELIST="n[2-1]", PROCID=0), "the range '2-1' ends before it begins"),
        (slurm(JOB_NODELIST=",", PROCID=0), "node list is ',', which names no node"),
        (slurm(JOB_NODELIST="n[1-99999999]", PROCID=0), "of more than 65536 nodes"),
        (slurm(JOB_NODELIST="n[0-999][0-999]", PROCID=0), "of more than 65536 nodes"),
        (slurm(JOB_NODELIST=f"n[1-{'9' * 5000}]", PROCID=0), "expected a number"),
        (slurm(JOB_NODELIST="n1", NTASKS="9" * 5000, PROCID=0), "SLURM_NTASKS is '9*...'"),
        (slurm(JOB_NODELIST="n1", NTASKS=10**15, PROCID=0), "Slurm runs 10* tasks; Caramel takes"),
        (slurm(JOB_NODELIST="n1", TASKS_PER_NODE="9" * 5000, PROCID=0), "expected a number"),
        (slurm(JOB_NODELIST="n1", TASKS_PER_NODE=f"1(x{10**15})", PROCID=0), "more than 65536"),
        (
            {**slurm(JOB_NODELIST="n[1-2]", NTASKS=2, PROCID=0), "ENVIRONMENT": "BATCH"},
            "none of the 2 tasks is there but this one; let srun start it",
        ),
        (
            {**slurm(JOB_NODELIST="n[1-2]", NTASKS=4, PROCID=1), "SLURMD_NODENAME": "n2"},
            "runs task 1 on n2, where n1 was expected; .* --distribution=block",
        ),
    ],
)
def test_wrong_slurm_variables_are_a_clear_error(variables, message):
    with pytest.raises(ClusterError, match=message):
        Cluster.from_environment(variables)


def use_mpi(monkeypatch, places: list[tuple[str, int]], rank: int) -> list[str]:
    """Put in a fake mpi4py, in which the other ranks are at `places`; returns what it ended."""
    ended: list[str] = []

    class World:
        def Get_rank(self):  # noqa: N802
            return rank

        def Get_size(self):  # noqa: N802
            return len(places)

        def allgather(self, own):
            assert own[0] == socket.gethostname()
            return places

    package = types.ModuleType("mpi4py")
    finalize = functools.partial(ended.append, "MPI")
    package.MPI = types.SimpleNamespace(COMM_WORLD=World(), Finalize=finalize)
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    return ended


def test_mpi_ranks_exchange_their_addresses(monkeypatch):
    use_mpi(monkeypatch, [("a", 5), ("a", 6), ("b", 5)], rank=1)
    cluster = Cluster.from_environment({"OMPI_COMM_WORLD_SIZE": "3"})
    assert cluster.as_dict() == {"worker": ["a:5", "a:6", "b:5"]}
    assert cluster.task == 1


def test_the_first_ranks_of_mpi_can_be_parameter_servers(monkeypatch):
    use_mpi(monkeypatch, [("a", 5), ("a", 6), ("b", 5)], rank=0)
    cluster = Cluster.from_environment({"OMPI_COMM_WORLD_SIZE": "3"}, parameter_servers=1)
    assert cluster.as_dict() == {"worker": ["a:6", "b:5"], "ps": ["a:5"]}
    assert cluster.name(cluster.task) == "parameter server 0"


def test_mpi_is_ended_unless_the_program_uses_it_itself(monkeypatch):
    ended = use_mpi(monkeypatch, [("a", 5), ("a", 6)], rank=0)
    Cluster.from_environment({"PMI_SIZE": "2"})
    assert ended == ["MPI"]
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", sys.modules["mpi4py"].MPI)
    Cluster.from_environment({"PMI_SIZE": "2"})
    assert ended == ["MPI"]


def test_mpi_on_one_machine_uses_loopback(monkeypatch):
    use_mpi(monkeypatch, [("a", 5), ("a", 6)], rank=0)
    cluster = Cluster.from_environment({"PMI_SIZE": "2"})
    assert cluster.as_dict() == {"worker": ["127.0.0.1:5", "127.0.0.1:6"]}


def test_an_mpirun_inside_a_slurm_job_goes_before_slurm(monkeypatch):
    use_mpi(monkeypatch, [("a", 5), ("a", 6)], rank=1)
    variables = slurm(JOB_NODELIST="n1", NTASKS=2, PROCID=0)
    assert Cluster.from_environment({**variables, "OMPI_COMM_WORLD_SIZE": "2"}).task == 1


def test_an_mpi4py_of_another_mpi_is_a_clear_error(monkeypatch):
    use_mpi(monkeypatch, [("a", 5)], rank=0)
    with pytest.raises(ClusterError, match="started 4 processes, but mpi4py sees 1"):
        Cluster.from_environment({"OMPI_COMM_WORLD_SIZE": "4"})


def test_a_missing_mpi4py_is_a_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(ClusterError, match=re.escape("pip install '.[mpi]' in Caramel's")):
        Cluster.from_environment({"OMPI_COMM_WORLD_SIZE": "2"})


def test_an_environment_without_a_cluster_says_what_was_looked_for():
    for environ in ({}, {"TF_CONFIG": ""}, slurm(JOB_NODELIST="n1")):
        with pytest.raises(ClusterError, match=r"TF_CONFIG; Slurm .*SLURM_PROCID.*MPI .*PMI_SIZE"):
            Cluster.from_environment(environ)


# Reached or not ---------------------------------------------------------------------------------


def test_workers_that_do_not_answer_are_unreachable(listener):
    cluster = Cluster.of([listener, nobody()])
    assert cluster.unreachable(timeout_s=1.0) == (cluster.tasks[1],)
    assert cluster.refusing(timeout_s=1.0) == (cluster.tasks[1],)


def test_no_worker_counts_as_lost_where_python_begins_no_thread_any_more(monkeypatch):
    """As while it ends, when sessions are closed."""

    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    cluster = Cluster.of(["127.0.0.1:1", "127.0.0.1:2"])
    assert cluster.unreachable() == cluster.refusing() == ()


def test_embedded_workers_are_always_reachable():
    cluster = Cluster.embedded(2)
    assert cluster.unreachable() == cluster.refusing() == ()
    cluster.wait_until_reachable(0.0)


def test_waiting_returns_once_all_answer(listener):
    Cluster.of([listener]).wait_until_reachable(1.0)


def test_waiting_in_vain_names_the_missing_workers_and_the_time(listener):
    silent = nobody()
    cluster = Cluster.of([listener, silent])
    expected = (
        rf"1 of 2 workers cannot be reached after 0\.\d s: worker 1 .*task:1 at {silent}\): nobody "
        "listens there. 'caramel worker', or a launcher, starts each with the same list"
    )
    with pytest.raises(WorkerStartError, match=expected):
        cluster.wait_until_reachable(0.3)


def test_waiting_in_vain_names_a_missing_server(listener):
    missing = nobody()
    cluster = Cluster.of([listener], parameter_servers=[missing])
    expected = (
        r"1 of 2 tasks \(1 worker, 1 parameter server\) cannot be reached after [\d.]+ s: "
        rf"parameter server 0 \(/job:ps/task:0 at {missing}\): nobody listens there. "
    )
    with pytest.raises(WorkerStartError, match=expected):
        cluster.wait_until_reachable(0.3)


# Processes on this machine ----------------------------------------------------------------------


@pytest.mark.processes
def test_local_workers_listen_until_they_are_closed():
    with Cluster.local(2) as cluster:
        assert cluster.kind == "local"
        assert [task.address.split(":")[0] for task in cluster.tasks] == ["127.0.0.1"] * 2
        assert cluster.unreachable() == cluster.refusing() == ()
        cluster.wait_until_reachable(1.0)
        assert re.fullmatch(
            r"worker 1 \(/job:worker/task:1 at 127\.0\.0\.1:\d+, pid \d+\)", cluster.describe(1)
        )
    assert cluster.unreachable() == cluster.tasks
    assert cluster.describe(cluster.tasks[0]).endswith(", exited with code 0)")
    cluster.close()


@pytest.mark.processes
def test_local_servers_listen_beside_the_workers_until_they_are_closed():
    with Cluster.local(1, parameter_servers=1) as cluster:
        assert (cluster.size, len(cluster.servers)) == (1, 1)
        assert cluster.unreachable() == cluster.refusing() == ()
        described = re.fullmatch(
            r"parameter server 0 \(/job:ps/task:0 at 127\.0\.0\.1:\d+, pid (\d+)\)",
            cluster.describe(cluster.servers[0]),
        )
        os.kill(int(described[1]), signal.SIGKILL)
        assert "killed by signal 9" in cluster.describe(1, wait_s=60.0)
        expected = r"parameter server 0 \(.*, killed by signal 9\) ended before it was needed"
        with pytest.raises(WorkerStartError, match=expected):
            cluster.wait_until_reachable(5.0)
        assert cluster.unreachable() == cluster.servers
    assert cluster.unreachable() == cluster.tasks


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_a_worker_does_not_load_what_only_keras_needs(monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    with Cluster.local(1) as cluster:
        (pid,) = re.findall(r"pid (\d+)", cluster.describe(0))
        loaded = Path(f"/proc/{pid}/maps").read_text()
    assert "tensorflow" in loaded
    assert "sklearn" not in loaded


@pytest.mark.processes
def test_a_port_race_is_tried_again_with_other_ports(monkeypatch, listener):
    taken = int(listener.split(":")[1])
    ports = iter([[taken], processes.free_ports(1)])
    monkeypatch.setattr(processes, "free_ports", lambda count: next(ports))
    with Cluster.local(1) as cluster:
        assert cluster.tasks[0].address != listener
        assert cluster.unreachable() == ()


def crash(*_: object) -> list[str]:
    return [sys.executable, "-c", "import sys; sys.exit('no such library')"]


@pytest.mark.processes
def test_a_worker_that_dies_at_its_start_is_an_error_with_what_it_wrote(monkeypatch):
    monkeypatch.setattr(processes, "worker_command", crash)
    expected = (
        r"(?s)worker 0 \(/job:worker/task:0 at 127\.0\.0\.1:\d+, pid \d+, exited with code 1\) "
        r"ended before it listened; its last errors:\nno such library"
    )
    with pytest.raises(WorkerStartError, match=expected):
        Cluster.local(1)


@pytest.mark.processes
def test_a_worker_that_is_too_late_is_an_error():
    expected = r"worker 0 \(.*\) did not listen within 0\.1 s; it wrote no error"
    with pytest.raises(WorkerStartError, match=expected):
        Cluster.local(1, start_timeout_s=0.1)
