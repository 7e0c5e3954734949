"""Shows in a minute what a plan brings: two hosts, 1 Gbit/s, one network trained in two ways.

The hosts are namespaces of this machine, each with a processor core and a link of its own. Both
ways train the same network on the same digits, in turns, one step each.

It has a command of its own (``python -m benchmarks.demo``), since that of the benchmarks imports
TensorFlow, which takes seconds, in a process that does not need it.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.environment import TENSORFLOW
from benchmarks.testbed.system import BedError, missing
from benchmarks.workers import two_hosts

# With more examples a step, computation takes longer than transfers on a slow core: then a plan can
# hide the transfers, which a network with such large layers needs no plan for.
NETWORK, BATCH = "alexnet_v2", 4
SECONDS = 22.0


def run(seconds: float = SECONDS) -> int:
    """Show it; returns the exit code.

    Args:
        seconds: how long steps are done, in all.
    """
    if lacking := missing():
        print(
            f"The demo needs {', '.join(lacking)}: it makes two hosts of this machine, each with a "
            "link of its own.\nWithout that, `make train` trains on worker processes; they share "
            "this machine's processors, so they are no faster than one.",
            file=sys.stderr,
        )
        return 2
    print(
        f"Two hosts of this machine, each with one processor core, and 1 Gbit/s between them, "
        f"train AlexNet on handwritten digits, {BATCH} a step. It takes a minute.",
        flush=True,
    )
    with ExitStack() as stack:
        with Console().status("making the hosts, and starting a worker on each"):
            bed, at = stack.enter_context(two_hosts())
        case = {"network": NETWORK, "batch": BATCH, "workers": at, "seconds": seconds}
        argv = [sys.executable, "-m", "benchmarks.demo_client", json.dumps(case)]
        return bed.popen(0, argv, env=TENSORFLOW).wait()


def main(
    seconds: Annotated[float, typer.Option(min=1, help="How long steps are done.")] = SECONDS,
) -> None:
    """Show in a minute what a plan brings, on two hosts of this machine."""
    try:
        code = run(seconds)
    except BedError as error:
        print(f"demo: error: {error}", file=sys.stderr)
        code = 2
    raise typer.Exit(code)


if __name__ == "__main__":
    typer.run(main)
