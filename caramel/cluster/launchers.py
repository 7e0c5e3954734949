"""What the launcher of a job says about it: who asks whom, `TF_CONFIG`, Slurm's variables, MPI."""

from __future__ import annotations

import json
import math
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product

from caramel.cluster import kubernetes, torchrun
from caramel.cluster.launch import MOST_WORKERS, Launch, number, ranked, short
from caramel.core.errors import ClusterError

MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "PMIX_RANK")


def read_environment(environ: Mapping[str, str], base_port: int, servers: int = 0) -> Launch:
    """The job that an environment describes; see `caramel.Cluster.from_environment`.

    Args:
        servers: how many of the first ranks are parameter servers.

    Raises:
        ClusterError: there is no description, or it contradicts itself.
    """
    if environ.get("TF_CONFIG", "").strip():
        return _from_tf_config(environ["TF_CONFIG"])
    if torchrun.BY_TORCHRUN in environ and torchrun.describes(environ):  # also inside a Slurm job
        return torchrun.launch_of(environ, servers)
    # An ``mpirun`` inside a Slurm job is a task of Slurm's itself; its ranks are not.
    by_srun = "SLURM_PROCID" in environ and "OMPI_COMM_WORLD_SIZE" not in environ
    if by_srun and _slurm_nodes(environ):
        return _from_slurm(environ, base_port, servers)
    if any(name in environ for name in MPI_VARIABLES):
        return _from_mpi(environ, servers)
    if torchrun.describes(environ):
        return torchrun.launch_of(environ, servers)
    if kubernetes.describes(environ):
        return kubernetes.launch_of(environ, base_port, servers)
    raise ClusterError(
        "the environment describes no cluster. Looked for: TF_CONFIG; Slurm (SLURM_PROCID with "
        "SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, which srun sets); "
        f"MPI ({', '.join(MPI_VARIABLES)}); torchrun ({', '.join(torchrun.VARIABLES)}); indexed "
        f"jobs of Kubernetes ({kubernetes.INDEX} with {kubernetes.SIZE}). "
        "Start the program by a launcher or 'caramel run --hosts', or give the workers' addresses "
        "(caramel worker --cluster), or a number for workers on this machine"
    )


def _from_tf_config(text: str) -> Launch:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"TF_CONFIG is not valid JSON ({error}): {short(text)}") from None
    if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict):
        raise ClusterError(
            f"TF_CONFIG describes no cluster; expected a 'cluster' entry: {short(text)}"
        )
    task = config.get("task") or {}
    if not isinstance(task, dict):
        raise ClusterError(
            f"TF_CONFIG: 'task' is {short(repr(task))}; expected a 'type' and an 'index'"
        )
    # Some launchers write the index as a string.
    job, index = task.get("type"), str(task.get("index"))
    # TensorFlow's evaluator is no part of the cluster that trains, and some launchers leave it out.
    jobs = {name: tasks for name, tasks in config["cluster"].items() if name != "evaluator"}
    # A client or an evaluator, which is none of the tasks. A server that the cluster forgets is an
    # error: as a client it would drive the job.
    if not isinstance(job, str) or (job not in jobs and job != "ps"):
        return Launch("TF_CONFIG", jobs)
    own = number(index, f"TF_CONFIG: the index of the task is {short(index)}")
    return Launch("TF_CONFIG", jobs, (job, own))


def _slurm_nodes(environ: Mapping[str, str]) -> str:
    # A step may run on some nodes of its job only.
    return environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")


def _from_slurm(environ: Mapping[str, str], base_port: int, servers: int) -> Launch:
    nodes = _expand_nodes(_slurm_nodes(environ))
    places = _slurm_places(environ, nodes, _slurm_task_counts(environ, len(nodes)))
    rank = _slurm_number(environ, "SLURM_PROCID")
    if rank >= len(places):
        raise ClusterError(f"SLURM_PROCID is {rank}, but there are {len(places)} tasks")
    # A batch script runs once, and has the variables of the first task.
    if environ.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in environ and len(places) > 1:
        raise ClusterError(
            f"a batch script of Slurm runs this process, so none of the {len(places)} tasks is "
            "there but this one; let srun start it, as in 'srun python train.py'"
        )
    here = environ.get("SLURMD_NODENAME", places[rank][0])
    if here != places[rank][0]:
        raise ClusterError(
            f"Slurm runs task {rank} on {here}, where {places[rank][0]} was expected; Caramel "
            "knows the distributions block, cyclic and plane (srun --distribution=block)"
        )
    addresses = [f"{node}:{base_port + local}" for node, local in places]
    return ranked("Slurm", addresses, rank, servers)


def _slurm_places(
    environ: Mapping[str, str], nodes: Sequence[str], counts: Sequence[int]
) -> list[tuple[str, int]]:
    """The node of each rank, and which of the node's tasks it is."""
    at_once = _slurm_tasks_at_once(environ)
    left = dict(enumerate(counts))
    places: list[tuple[str, int]] = []
    while any(left.values()):
        for index, node in enumerate(nodes):
            begun = counts[index] - left[index]
            taken = min(at_once, left[index])
            places += [(node, begun + local) for local in range(taken)]
            left[index] -= taken
    return places


def _slurm_tasks_at_once(environ: Mapping[str, str]) -> int:
    """How many ranks in a row a node gets before it is the turn of the next one."""
    # After a colon: how tasks are bound to the sockets of a node.
    distribution = environ.get("SLURM_DISTRIBUTION", "").lower().partition(":")[0]
    if distribution == "cyclic":
        return 1
    if distribution == "plane" and environ.get("SLURM_DIST_PLANESIZE"):
        return max(1, _slurm_number(environ, "SLURM_DIST_PLANESIZE"))
    return MOST_WORKERS


def _slurm_number(environ: Mapping[str, str], name: str) -> int:
    return number(environ[name], f"{name} is '{short(environ[name])}'")


def _slurm_task_counts(environ: Mapping[str, str], node_count: int) -> list[int]:
    """How many tasks each node runs."""
    names = [name for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS") if environ.get(name)]
    total = _slurm_number(environ, names[0]) if names else None
    given = environ.get("SLURM_STEP_TASKS_PER_NODE") or environ.get("SLURM_TASKS_PER_NODE")
    if given:
        counts = _expand_counts(given)
    elif total is None or total % node_count == 0:
        counts = [1 if total is None else total // node_count] * node_count
    else:
        raise ClusterError(
            f"Slurm runs {total} tasks on {node_count} nodes; SLURM_TASKS_PER_NODE is needed "
            "to know which runs where"
        )
    if len(counts) != node_count or total not in (None, sum(counts)):
        raise ClusterError(
            f"Slurm's variables contradict each other: {node_count} nodes, "
            f"{'any number of' if total is None else total} tasks, '{short(str(given))}' tasks "
            "per node"
        )
    if sum(counts) > MOST_WORKERS:
        raise ClusterError(f"Slurm runs {sum(counts)} tasks; Caramel takes {MOST_WORKERS} at most")
    return counts


def _expand_counts(text: str) -> list[int]:
    """Slurm's short form of a list of numbers: ``2(x3),1`` gives 2, 2, 2, 1."""
    wrong = f"SLURM_TASKS_PER_NODE is '{short(text)}'"
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", part.strip())
        if match is None:
            raise ClusterError(f"{wrong}; expected a form like '2(x3),1'")
        times = number(match[2] or "1", wrong)
        if len(counts) + times > MOST_WORKERS:
            raise ClusterError(f"{wrong}: there are more than {MOST_WORKERS} nodes")
        counts += [number(match[1], wrong)] * times
    return counts


def _expand_nodes(node_list: str) -> list[str]:
    """The nodes of a Slurm node list: ``node[01-02],gpu5`` gives node01, node02 and gpu5."""
    nodes: list[str] = []
    # Commas inside brackets separate ranges, those outside nodes.
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", node_list):
        pieces = re.split(r"\[([^\]]*)\]", part)  # text, ranges, text, ranges, ..., text
        choices = [
            _expand_ranges(piece, node_list) if place % 2 else [piece]
            for place, piece in enumerate(pieces)
        ]
        if len(nodes) + math.prod(map(len, choices)) > MOST_WORKERS:
            raise _too_many(node_list)
        nodes += ["".join(choice) for choice in product(*choices)]
    if not nodes:
        raise ClusterError(f"Slurm's node list is '{short(node_list)}', which names no node")
    return nodes


def _expand_ranges(ranges: str, node_list: str) -> list[str]:
    wrong = f"Slurm's node list is '{short(node_list)}'"
    texts: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", part.strip())
        if match is None:
            raise ClusterError(f"{wrong}; expected a form like 'node[01-03,07],gpu5'")
        first, last = number(match[1], wrong), number(match[2] or match[1], wrong)
        if last < first:
            raise ClusterError(f"{wrong}, where the range '{part.strip()}' ends before it begins")
        if len(texts) + last - first >= MOST_WORKERS:
            raise _too_many(node_list)
        texts += [str(n).zfill(len(match[1])) for n in range(first, last + 1)]
    return texts


def _too_many(node_list: str) -> ClusterError:
    return ClusterError(
        f"Slurm's node list is '{short(node_list)}', of more than {MOST_WORKERS} nodes"
    )


def _from_mpi(environ: Mapping[str, str], servers: int) -> Launch:
    """The ranks' addresses, which they tell each other."""
    used_by_program = "mpi4py.MPI" in sys.modules
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        raise ClusterError(
            "this process was started by an MPI launcher, but mpi4py cannot be used "
            f"({error}); install it with: pip install '.[mpi]' in Caramel's directory"
        ) from None
    world = MPI.COMM_WORLD
    sizes = [environ[name] for name in MPI_VARIABLES if name in environ and "SIZE" in name]
    if sizes and str(world.Get_size()) != sizes[0]:
        raise ClusterError(
            f"the MPI launcher started {sizes[0]} processes, but mpi4py sees {world.Get_size()}; "
            "mpi4py must be built for the MPI whose launcher is used"
        )
    with ExitStack() as stack:  # ports stay bound until all have chosen, so that they differ
        chosen = stack.enter_context(socket.socket())
        chosen.bind(("", 0))
        places = world.allgather((socket.gethostname(), chosen.getsockname()[1]))
    rank = world.Get_rank()
    # Else a rank could not end before all do, while the others wait for the chief to end.
    if not used_by_program:
        MPI.Finalize()
    # The machine's name need not be known to itself.
    one_machine = len({host for host, _ in places}) == 1
    addresses = [f"{'127.0.0.1' if one_machine else host}:{port}" for host, port in places]
    return ranked("MPI", addresses, rank, servers)
