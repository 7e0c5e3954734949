"""torchrun's variables, and indexed jobs of Kubernetes, start a cluster as `TF_CONFIG` does."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from caramel import Cluster
from caramel.cluster import kubernetes, torchrun
from caramel.cluster.processes import free_ports
from caramel.core.errors import ClusterError


def variables(rank, size, port):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port - 1),
    }


@pytest.fixture
def port():
    """A free port, at which ranks meet."""
    return free_ports(1)[0]


def test_ranks_of_torchrun_tell_each_other_their_addresses(port):
    def stranger():
        """Connects to where ranks meet, and talks something else."""
        for _ in range(100):
            try:
                with socket.create_connection(("127.0.0.1", port), 1) as connection:
                    connection.sendall(b'{"caramel": 1, "rank": 1, "size": 7, "port": 80}\n')
                    return
            except OSError:
                pass

    with ThreadPoolExecutor(4) as threads:
        ranks = [
            threads.submit(torchrun.launch_of, variables(rank, 3, port), 1, meeting_s=30)
            for rank in (2, 1)
        ]
        strange = threads.submit(stranger)
        ranks.append(threads.submit(torchrun.launch_of, variables(0, 3, port), 1, meeting_s=30))
        third, second, first = [rank.result() for rank in ranks]
        strange.result()
    assert first.workers == second.workers == third.workers
    addresses = [*first.workers["ps"], *first.workers["worker"]]
    assert len(set(addresses)) == 3
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert [each.own for each in (first, second, third)] == [
        ("ps", 0),
        ("worker", 0),
        ("worker", 1),
    ]


def test_ranks_that_do_not_come_are_named(port):
    with pytest.raises(ClusterError, match="did not come to rank 0 at .*: 1, 2"):
        torchrun.launch_of(variables(0, 3, port), meeting_s=0.2)
    with pytest.raises(ClusterError, match=rf"rank 1 learnt no addresses .*:{port}"):
        torchrun.launch_of(variables(1, 3, port), meeting_s=0.2)


@pytest.mark.parametrize("answer", [b"1", b'["a:1"]', b"[1, 2, 3]", b"hello"])
def test_what_is_no_rank_of_caramel_where_ranks_meet_is_told(port, answer):
    def answer_all(listening):
        with suppress(OSError):  # it is closed in the end
            while True:
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(answer + b"\n")

    with socket.create_server(("127.0.0.1", port)) as listening:
        threading.Thread(target=answer_all, args=(listening,), daemon=True).start()
        with pytest.raises(ClusterError, match="rank 1 learnt no addresses"):
            torchrun.launch_of(variables(1, 3, port), meeting_s=0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "3"}, "RANK is 3, but WORLD_SIZE is 3"),
        ({"RANK": "-1"}, "RANK is '-1'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0"),
        ({"WORLD_SIZE": "9" * 50}, "expected a number"),
        ({"MASTER_PORT": "65535"}, "MASTER_PORT is 65535"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
    ],
)
def test_variables_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ClusterError, match=message):
        Cluster.from_environment(variables(1, 3, 4000) | change)


def test_one_rank_alone_is_a_cluster(port):
    cluster = Cluster.from_environment(variables(0, 1, port))
    assert (cluster.size, cluster.task) == (1, 0)


def test_torchrun_inside_a_slurm_job_counts(port):
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "n1"}
    alone = variables(0, 1, port)
    assert Cluster.from_environment(slurm | alone).tasks[0].address == "n1:12321"
    own = Cluster.from_environment(slurm | alone | {torchrun.BY_TORCHRUN: "none"})
    assert own.tasks[0].address.startswith("127.0.0.1:")


def test_pods_of_an_indexed_job():
    environ = {"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "3"}
    launch = kubernetes.launch_of(environ, 12321, host="train-2.caramel.team.svc.cluster.local")
    assert launch.workers == [
        f"train-{index}.caramel.team.svc.cluster.local:12321" for index in range(3)
    ]
    assert launch.own == ("worker", 2)


@pytest.mark.parametrize(
    ("environ", "host", "message"),
    [
        ({"JOB_COMPLETION_INDEX": "0"}, "train-0.caramel", "set WORLD_SIZE"),
        ({"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "2"}, "train-0", "headless service"),
        ({"JOB_COMPLETION_INDEX": "0", "WORLD_SIZE": "2"}, "laptop.home", "not '...-0'"),
        ({"JOB_COMPLETION_INDEX": "5", "WORLD_SIZE": "2"}, "t-5.c", "JOB_COMPLETION_INDEX is 5"),
    ],
)
def test_pods_that_cannot_find_each_other_are_told(environ, host, message):
    with pytest.raises(ClusterError, match=message):
        kubernetes.launch_of(environ, 12321, host=host)
