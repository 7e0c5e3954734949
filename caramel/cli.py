"""The command ``caramel``. Start a worker with ``caramel worker``; see ``caramel --help``.

Importing this file is fast: TensorFlow is imported by the commands that need it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from caramel.cluster import Cluster
from caramel.errors import CaramelError, ClusterError
from caramel.processes import LISTENING
from caramel.quiet import quiet_start
from caramel.version import __version__

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train single-device TensorFlow graphs on many workers.",
)


def main() -> NoReturn:
    """Run the command line and exit: 0 if all is well, 2 for a mistake the user can correct."""
    try:
        app()
    except CaramelError as error:
        print(f"caramel: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"caramel {__version__}")
        raise typer.Exit


@app.callback()
def _caramel(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Train single-device TensorFlow graphs on many workers."""


@app.command()
def worker(
    cluster: Annotated[
        str | None,
        typer.Option(
            help='All workers, in order: "host:port,host:port", or JSON such as '
            '\'{"chief": ["host:port"], "worker": ["host:port"]}\'. '
            "By default what TF_CONFIG, Slurm or MPI says."
        ),
    ] = None,
    task: Annotated[
        int | None, typer.Option(help="Which of the workers this is, counted from 0.")
    ] = None,
    parent_pid: Annotated[
        int | None, typer.Option(help="End when the parent is no longer this process.")
    ] = None,
    intra_op_threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that one op may use.")
    ] = None,
    inter_op_threads: Annotated[
        int | None, typer.Option(min=1, help="Ops that may run at once.")
    ] = None,
) -> None:
    """Run one worker until it is interrupted or terminated."""
    workers = Cluster.from_environment() if cluster is None else _parse_cluster(cluster)
    number = _own_task(workers, task)

    for each in (signal.SIGTERM, signal.SIGINT):  # while TensorFlow is being imported
        signal.signal(each, lambda *_: os._exit(0))
    with quiet_start() as restore_errors:
        from caramel.servers import serve

        def ready() -> None:
            restore_errors()
            address = workers.tasks[number].address
            print(f"caramel worker {number} of {workers.size} {LISTENING} {address}", flush=True)

        serve(
            workers,
            number,
            parent_pid=parent_pid,
            intra_op_threads=intra_op_threads,
            inter_op_threads=inter_op_threads,
            ready=ready,
        )
    # Whatever TensorFlow's threads are doing, nobody waits for it: do not take it apart.
    sys.stderr.flush()
    os._exit(0)


def _parse_cluster(text: str) -> Cluster:
    if not text.lstrip().startswith("{"):
        return Cluster.of([address.strip() for address in text.split(",")])
    try:
        return Cluster.of(json.loads(text))
    except json.JSONDecodeError as error:
        raise ClusterError(f"--cluster is not valid JSON ({error}): {text}") from None


def _own_task(workers: Cluster, task: int | None) -> int:
    if task is None:
        task = workers.task
    if task is None:
        raise ClusterError(f"--task is needed: which worker, 0 to {workers.size - 1}, is this?")
    if not 0 <= task < workers.size:
        raise ClusterError(f"--task {task} does not exist: the workers are 0 to {workers.size - 1}")
    return task
