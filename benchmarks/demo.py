"""Shows in two minutes what a plan brings: two hosts, 1 Gbit/s, one network trained in two ways.

The hosts are namespaces of this machine, each with a processor core and a link of its own. Both
ways train the same network on the same digits, in turns, one step each.
"""

from __future__ import annotations

import json
import sys

from benchmarks.environment import TENSORFLOW
from benchmarks.testbed import Testbed
from benchmarks.testbed.system import missing
from benchmarks.workers import workers

RATE = "1gbit"
# With more examples a step, computation takes longer than transfers on a slow core: then a plan can
# hide the transfers, which a network with such large layers needs no plan for.
NETWORK, BATCH = "alexnet_v2", 4
SECONDS = 40.0


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
        f"train AlexNet on handwritten digits, {BATCH} a step. It takes two minutes.",
        flush=True,
    )
    with Testbed(hosts=2, rate=RATE, pin_cores=True) as bed, workers(bed) as at:
        case = {"network": NETWORK, "batch": BATCH, "workers": at, "seconds": seconds}
        argv = [sys.executable, "-m", "benchmarks.demo_client", json.dumps(case)]
        return bed.popen(0, argv, env=TENSORFLOW).wait()
