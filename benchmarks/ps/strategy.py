"""TensorFlow's `ParameterServerStrategy` on the hosts of a bed: ``python -m ... CASE RESULT``.

It has no step of all workers: each updates the parameters by itself. Here each round gives every
worker one step, and ends when all are done. Plain gradient descent keeps all but parameters and
gradients off the wire. With ``serve`` for a result the program is a worker or server.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.ps.cells import WARM_UP
from benchmarks.workers import addresses, on_each_host

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed

SERVE = "serve"


@contextmanager
def serving(bed: Testbed, servers: int, threads: int) -> Iterator[dict[str, list[str]]]:
    """A worker or server on each host, the servers last; gives the jobs' addresses."""
    listed = addresses(bed)
    cluster = {"worker": listed[:-servers], "ps": listed[-servers:]}
    tasks = [(job, task) for job, own in cluster.items() for task in range(len(own))]
    told = [
        json.dumps({"job": job, "task": task, "cluster": cluster, "threads": threads})
        for job, task in tasks
    ]
    with on_each_host(bed, [[__name__, own, SERVE] for own in told]):
        yield cluster


def serve(told: Mapping[str, Any]) -> None:
    """One worker or server, until it is ended."""
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=told["threads"]
    )
    tf.distribute.Server(
        tf.train.ClusterSpec(told["cluster"]),
        job_name=told["job"],
        task_index=told["task"],
        config=config,
        protocol="grpc",
    ).join()


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of each round."""
    import tensorflow as tf

    from benchmarks.peers import graph
    from benchmarks.peers.data import Case

    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(case["cluster"]), rpc_layer="grpc"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    one = Case(case["network"], batch=case["batch"], image=case["image"])
    first = graph.draw_initial_values(one)
    with strategy.scope():
        trained = {name: tf.Variable(value) for name, value in first.items()}
        kept = {
            name: tf.Variable(value, trainable=False)
            for name, value in graph.draw_initial_values(one, trained=False).items()
        }
    variables = {**trained, **kept}

    def look_up(getter: Any, name: str, *args: Any, **options: Any) -> Any:
        return variables[name]

    @tf.function(autograph=False)
    def step() -> Any:
        inputs = tf.ones([one.batch, *graph.example_shape(one)])
        with (
            tf.GradientTape() as tape,
            graph.tf1.variable_scope("", custom_getter=look_up),
        ):
            loss = graph.forward(one, inputs, tf.zeros([one.batch], tf.int32))
        gradients = tape.gradient(loss, list(trained.values()))
        for variable, gradient in zip(trained.values(), gradients, strict=True):
            variable.assign_sub(1e-3 * gradient)
        return loss

    samples_s = []
    for _ in range(WARM_UP + case["rounds"]):
        begin = time.perf_counter()
        for _ in case["cluster"]["worker"]:
            coordinator.schedule(step)
        coordinator.join()
        samples_s.append(time.perf_counter() - begin)
    return {"samples_s": samples_s[WARM_UP:]}


if __name__ == "__main__":
    if sys.argv[2] == SERVE:
        serve(json.loads(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
