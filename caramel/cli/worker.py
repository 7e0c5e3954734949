"""``caramel worker``: a process with one of TensorFlow's servers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from caramel.cluster import onednn_check, tcp_check
from caramel.cluster.cluster import Cluster
from caramel.cluster.joining import join
from caramel.cluster.parsing import addresses_in, parse_jobs
from caramel.cluster.processes import LISTENING
from caramel.cluster.quiet_start import quiet_start
from caramel.cluster.tasks import SERVER_JOB
from caramel.core.errors import ClusterError
from caramel.core.util.progress import show_on
from caramel.core.util.sizes import parse_whole

_MOST_THREADS = 10_000  # more are a mistake, and would take all memory


def worker(
    cluster: Annotated[
        str | None,
        typer.Option(
            help='All workers, in order: "host:port,host:port", or JSON such as '
            '\'{"chief": ["host:port"], "worker": ["host:port"], "ps": ["host:port"]}\'. '
            "By default what TF_CONFIG, Slurm, MPI, torchrun or Kubernetes says."
        ),
    ] = None,
    ps: Annotated[
        str | None,
        typer.Option(
            help='All parameter servers, in order: "host:port,host:port". Elsewhere how many '
            "of the ranks, the first ones."
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            help='"worker", or "ps" for a parameter server. By default that of this process in '
            "TF_CONFIG or among the ranks, or with --task a worker."
        ),
    ] = None,
    task: Annotated[
        int | None,
        typer.Option(help="Which of the workers, or of the servers, this is, counted from 0."),
    ] = None,
    parent_pid: Annotated[
        int | None, typer.Option(help="End when the parent is no longer this process.")
    ] = None,
    intra_op_threads: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST_THREADS, help="Threads that one op may use."),
    ] = None,
    inter_op_threads: Annotated[
        int | None,
        typer.Option(min=1, max=_MOST_THREADS, help="Ops that may run at once."),
    ] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Only those with a certificate reach it."),
    ] = False,
    certificates: Annotated[
        Path | None,
        typer.Option(help="What 'caramel certificates' has made, for --secure."),
    ] = None,
    firewalled: Annotated[
        bool,
        typer.Option(
            "--firewalled",
            help="With --secure, where the system allows no network namespaces: a firewall keeps "
            "others from all ports of this host but the worker's own.",
        ),
    ] = False,
    joins: Annotated[
        int | None,
        typer.Option(
            hidden=True, help="For 'caramel run --hosts': where to listen; 0 for anywhere."
        ),
    ] = None,
) -> None:
    """Run one worker, or one parameter server, until it is interrupted or terminated."""
    if joins is None:
        known = _cluster_with_servers(cluster, ps)
        number, port = _own_task(known, job, task), None
    else:
        joined = join(joins)
        known, number, port = joined.cluster, joined.task, joined.port
    _check_protection(secure, certificates, firewalled)
    if sys.stderr.isatty():
        from caramel.report.progress import Lines

        # No live display: who ends this process meanwhile would be left without a cursor.
        show_on(Lines(sys.stderr, after_s=0))

    with _ended_by_signals():  # also while TensorFlow is being loaded
        served = known
        if certificates is not None:
            from caramel.cluster.protected import go_inside

            # A child goes on from here.
            served = go_inside(
                known, number, certificates, firewalled=firewalled, parent_pid=parent_pid
            )
            parent_pid = os.getppid()
        with quiet_start() as restore_errors:
            from caramel.cluster.servers import serve

            def ready() -> None:
                restore_errors()
                if port is not None:
                    port.close()
                address = known.tasks[number].address
                count = len(known.servers if number >= known.size else known.workers)
                # Who has started it by ssh knows all hints once it listens: there, what is written
                # to one of the two may come before what was written to the other.
                hints_to = sys.stderr if joins is None else sys.stdout
                for hint in _hints(known, number):
                    print(f"caramel: {hint}.", file=hints_to, flush=True)
                print(f"caramel {known.name(number)} of {count} {LISTENING} {address}", flush=True)

            serve(
                served,
                number,
                parent_pid=parent_pid,
                intra_op_threads=intra_op_threads,
                inter_op_threads=inter_op_threads,
                ready=ready,
            )
        # Whatever TensorFlow's threads are doing, nobody waits for it: do not take it apart.
        sys.stderr.flush()
        os._exit(0)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGINT end the process at once, until an error is told."""
    own = (signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, lambda *_: os._exit(0)) for each in own}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _check_protection(secure: bool, certificates: Path | None, firewalled: bool) -> None:
    if secure and certificates is None:
        raise ClusterError(
            "--secure needs --certificates: what 'caramel certificates --out DIR HOST...' has made"
        )
    if not secure and (certificates is not None or firewalled):
        given = "--firewalled" if certificates is None else "--certificates"
        raise ClusterError(f"{given} is for workers that strangers do not reach: add --secure")


def _cluster_with_servers(cluster: str | None, ps: str | None) -> Cluster:
    """What --cluster and --ps of a worker say, or its launcher."""
    if cluster is not None:
        servers = None if ps is None else addresses_in(ps)
        try:
            return Cluster.of(parse_jobs(cluster), parameter_servers=servers)
        except ClusterError as error:
            raise ClusterError(f"--cluster: {error}") from None
    if ps is None:
        return Cluster.from_environment()
    if (count := parse_whole(ps)) is not None:
        return Cluster.from_environment(parameter_servers=count)
    raise ClusterError(
        f"--ps is '{ps}' without --cluster; name the workers, too, or say how many of the "
        "launcher's ranks are parameter servers"
    )


def _hints(workers: Cluster, number: int) -> Iterator[str]:
    """What to change on the machine of this worker, said by the first that is on it."""
    addresses = [each.address or "" for each in workers.tasks]
    hosts = [each.rpartition(":")[0] for each in addresses]
    # One hint for each machine is enough.
    if hosts.index(hosts[number]) == number:
        yield from filter(None, (tcp_check.advice(addresses), onednn_check.advice()))


def _own_task(known: Cluster, job: str | None, task: int | None) -> int:
    """Which task of the cluster this process is, as an index in its tasks."""
    if job not in (None, "worker", SERVER_JOB):
        raise ClusterError(f"--job is '{job}'; expected worker (the chief is worker 0) or ps")
    if task is None and known.task is not None and job in (None, _job_of(known, known.task)):
        return known.task
    if job == SERVER_JOB:
        which, count, before = "parameter server", len(known.servers), known.size
    else:
        which, count, before = "worker", known.size, 0
    if count == 0:
        raise ClusterError(
            "--job is ps, but the cluster has no parameter server; name them by --ps"
        )
    if task is None:
        raise ClusterError(f"--task is needed: which {which}, 0 to {count - 1}, is this?")
    if not 0 <= task < count:
        raise ClusterError(f"--task {task} does not exist: the {which}s are 0 to {count - 1}")
    return before + task


def _job_of(known: Cluster, task: int) -> str:
    return "worker" if task < known.size else SERVER_JOB
