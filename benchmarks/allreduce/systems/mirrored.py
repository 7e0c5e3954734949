"""The all-reduce of TensorFlow's MultiWorkerMirroredStrategy, in a `tf.function`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.allreduce.member import PERIOD, Cell, Place, mean_factor, serve

if TYPE_CHECKING:
    from benchmarks.allreduce.group import Group


@dataclass(frozen=True)
class System:
    """MultiWorkerMirroredStrategy."""

    name: str = "mirrored"
    sleeps: bool = True

    def available(self) -> str | None:
        """Always: it is part of TensorFlow."""
        return None

    def versions(self) -> dict[str, str]:
        """TensorFlow's."""
        from benchmarks.peers.base import versions_of

        return versions_of("tensorflow")

    def start(self, group: Group) -> int:
        """A worker on each host."""
        port = group.port()
        cluster = {"worker": [f"{host.address}:{port}" for host in group.bed.hosts]}
        for rank, host in enumerate(group.bed.hosts):
            task = {"type": "worker", "index": rank}
            env = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
            group.popen(host, group.command(__name__, rank), env)
        return len(group.bed.hosts)


def main() -> None:
    """One worker; ``TF_CONFIG`` says which."""
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    import tensorflow as tf

    from benchmarks.allreduce.systems.tensorflow_tensor import INTER_OP_THREADS

    place = Place.read()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    kept: list[Any] = []  # a function does not keep the variables alive that it uses

    def make(elements: int) -> Mapping[str, Cell]:
        kept.clear()
        ramp = tf.cast(1 + tf.range(elements) % PERIOD, tf.float32)
        own, mean = (tf.Variable(tf.zeros([elements])) for _ in range(2))
        kept.extend((own, mean))

        def aggregate() -> None:
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, own.read_value(), options)
            mean.assign(total / place.workers, read_value=False)

        @tf.function(autograph=False)
        def step() -> None:
            strategy.run(aggregate)

        return {
            "": Cell(
                fill=lambda: own.assign(ramp * (place.rank + 1.0)),
                step=step,
                error=lambda: float(
                    tf.reduce_max(tf.abs(mean - mean_factor(place.workers) * ramp))
                ),
            )
        }

    serve(place, make)


if __name__ == "__main__":
    main()
