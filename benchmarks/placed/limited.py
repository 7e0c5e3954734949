"""Does a network train whose variables and tensors are more than each worker may hold?

The kernel limits the memory of each worker's process (RLIMIT_DATA): what it has when it has
started, and so many bytes more. The same network is trained with all of it on one worker, and
spread over both.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import TENSORFLOW
from benchmarks.placed.show import ALONE, ORDERED
from benchmarks.results import Row
from benchmarks.testbed import Testbed
from benchmarks.workers import addresses, on_first_host
from caramel.cluster.onednn_check import SETTING as ONEDNN

# With oneDNN, TensorFlow takes memory in regions, each twice as large as the one before, and where
# there is not so much, nearly all that is left: then nothing is left for a thread or a message, and
# the process ends. Also, it tries for ten seconds before it says that there is none.
WITHOUT_ONEDNN = {ONEDNN: "0"}
STEP_TIMEOUT_S = 240.0
SHARE = 0.6  # of what a step needs on one device
STEPS = 5
START_S = 120.0
TIMEOUT_S = 400


@dataclass(frozen=True)
class Limited:
    """A network of equal dense layers, and what each worker may hold.

    Attributes:
        memory_bytes: what the kernel gives each process besides what it has when it has started.
    """

    width: int
    layers: int
    batch: int
    memory_bytes: int
    network: str = "dense layers"


def measured(case: Limited, rate: str) -> list[Row]:
    """A row for all of the network on one worker, and one for both workers."""
    return [_row(case, way, rate) for way in (ALONE, ORDERED)]


def _row(case: Limited, way: str, rate: str) -> Row:
    told = {**asdict(case), "way": way}
    with Testbed(hosts=2, rate=rate, pin_cores=True) as bed, _limited_workers(bed, case) as at:
        told["workers"] = at
        found = on_first_host(bed, "benchmarks.placed.limited", told, timeout_s=TIMEOUT_S)
    what = {"part": "limit", "network": case.network, "batch": case.batch, "way": way}
    return Row(what, tuple(found.pop("samples_s")), found)


@contextmanager
def _limited_workers(bed: Testbed, case: Limited) -> Iterator[list[str]]:
    """A worker on each host, with a limit from when it has started; gives their addresses."""
    listed = addresses(bed)
    options = ["--cluster", ",".join(listed), "--intra-op-threads", "1"]
    started = [
        bed.popen(
            host,
            [sys.executable, "-m", "caramel", "worker", *options, "--task", str(task)],
            env=TENSORFLOW | WITHOUT_ONEDNN,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for task, host in enumerate(bed.hosts)
    ]
    try:
        for process, address in zip(started, listed, strict=True):
            _wait_until_listening(bed, address)
            limit = _data_bytes(process.pid) + case.memory_bytes
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit, limit))
        yield listed
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def _wait_until_listening(bed: Testbed, address: str) -> None:
    host, _, port = address.rpartition(":")
    code = f"import socket; socket.create_connection(({host!r}, {port}), 1).close()"
    until_s = time.perf_counter() + START_S
    while bed.run(0, [sys.executable, "-c", code], check=False).returncode:
        if time.perf_counter() > until_s:
            raise RuntimeError(f"no worker listens at {address}")
        time.sleep(0.5)


def _data_bytes(pid: int) -> int:
    """What counts for RLIMIT_DATA of a process now."""
    found = re.search(r"VmData:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None, "the kernel tells it"
    return 1024 * int(found[1])


# The client --------------------------------------------------------------------------------------


def train(case: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of some steps; or what the error said, if there was one."""
    import caramel
    from benchmarks.placed.client import timed_steps

    context, feed = _job(case)
    first = caramel.Cluster.coerce(case["workers"]).devices[:1]
    model = caramel.PlacedModel(context, case["workers"], device_list=first)
    if case["way"] != ALONE:
        memory = SHARE * model.memory_bytes[0]
        model = caramel.PlacedModel(context, case["workers"], memory=memory, partitioner="mite")
    parameters = sum(v.spec.bytes or 0 for v in context.job.variables)
    facts = {"memory_bytes": list(model.memory_bytes), "parameter_bytes": parameters}
    facts["limit_bytes"] = case["memory_bytes"]
    try:
        with model.session(trials=None, step_timeout_s=STEP_TIMEOUT_S) as session:
            samples_s = timed_steps(lambda: float(session.step(feed)), STEPS)
    except Exception as error:
        return {**facts, "samples_s": [], "error": f"{type(error).__name__}: {error}"[:600]}
    return {**facts, "samples_s": samples_s, "error": None}


def _job(case: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    import numpy as np
    import tensorflow as tf

    import caramel

    tf1 = tf.compat.v1
    width, batch = case["width"], case["batch"]
    with tf.Graph().as_default() as graph:
        values = tf1.placeholder(tf.float32, [batch, width], name="x")
        for layer in range(case["layers"]):
            weights = tf1.get_variable(
                f"layer{layer}", [width, width], initializer=tf1.zeros_initializer()
            )
            values = values + tf.tanh(values @ weights)
        loss = tf.reduce_mean((values - 1) ** 2)
        train_op = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    context = caramel.Context(graph, train_op=train_op, loss=loss)
    return context, {"x:0": np.random.default_rng(0).standard_normal((batch, width))}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(train(json.loads(sys.argv[1]))))
