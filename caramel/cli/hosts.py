"""``caramel run --hosts``: workers by ssh, for as long as a program runs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

from caramel.cli.run import run, say
from caramel.cluster.by_ssh import SshWorkers, Start
from caramel.cluster.hosts import Host, parse_hosts
from caramel.cluster.tasks import SERVER_JOB
from caramel.core.errors import ClusterError

IN_PLACE = {"worker": "{workers}", SERVER_JOB: "{servers}"}
"""In an argument of the program, by job: the addresses of its tasks come in its place."""

_DESCRIPTION = "TF_CONFIG"
_PASSED_ON = "TF_"  # variables of TensorFlow, which workers get, too


def hosts_of(hosts: str | None, ps: str | None, others: Sequence[str]) -> dict[str, list[Host]]:
    """The hosts that options name, by job; none if nothing is to be started.

    Args:
        hosts: --hosts.
        ps: --ps.
        others: options that were given and need hosts.

    Raises:
        ClusterError: there are no hosts for these options, or they have another form.
    """
    if hosts is None:
        for option in ("--ps",) if ps is not None else others:
            raise ClusterError(f"{option} is for workers that are started by ssh: add --hosts")
        return {}
    jobs = {"worker": ("--hosts", hosts)} | ({} if ps is None else {SERVER_JOB: ("--ps", ps)})
    found = {}
    for job, (option, text) in jobs.items():
        try:
            found[job] = parse_hosts(text)
        except ClusterError as error:
            raise ClusterError(f"{option}: {error}") from None
    return found


def run_on(
    jobs: Mapping[str, Sequence[Host]],
    command: Sequence[str],
    restarts: int,
    *,
    ssh: str,
    python: str | None,
) -> int:
    """Start workers on hosts, run a program that finds them in `TF_CONFIG`, and end them.

    Args:
        jobs: the hosts.
        command: the program and its arguments.
        restarts: how often in a row it is started again, and each worker.
        ssh: the program that runs a command on a host, with its arguments.
        python: the Python of the hosts; by default that of this process.

    Returns:
        The exit code of the program.

    Raises:
        ClusterError, WorkerStartError: workers or the program cannot be started.
    """
    start = Start(
        ssh=_split(ssh),
        python=python or sys.executable,
        environment={
            name: value
            for name, value in os.environ.items()
            if name.startswith(_PASSED_ON) and name != _DESCRIPTION
        },
        restarts=restarts,
        say=say,
    )
    names = ", ".join(str(host) for hosts in jobs.values() for host in hosts)
    say(f"starting workers by ssh: {names}")
    started = SshWorkers(jobs, start)
    with started as cluster:
        addresses = [str(task.address) for task in cluster.tasks]
        say(f"they listen: {', '.join(addresses)}")
        # A description without a task: the program drives the workers, and is none of them.
        description = json.dumps({"cluster": cluster.as_dict()})
        return run(
            [_put_in(argument, cluster.as_dict()) for argument in command],
            restarts,
            {_DESCRIPTION: description},
            lambda: not started.are_untouched,
        )


def _put_in(argument: str, addresses: Mapping[str, Sequence[str]]) -> str:
    """An argument of the program, with addresses by job in it."""
    for job, place in IN_PLACE.items():
        if job in addresses:
            argument = argument.replace(place, ",".join(addresses[job]))
    return argument


def _split(ssh: str) -> list[str]:
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise ClusterError(f"--ssh is '{ssh}': {error}") from None
    if not words:
        raise ClusterError("--ssh is empty; expected a program, such as 'ssh -p 2200'")
    return words
