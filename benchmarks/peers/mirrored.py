"""TensorFlow's MultiWorkerMirroredStrategy with a training loop of its own.

The network is the shared one: its variables are looked up among the strategy's by name. Gradients
are added up by one call, so that the strategy may pack them (`bytes_per_pack`, 0 for its default).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers.base import Setting, evenly, versions_of
from benchmarks.peers.data import Case, examples_of, initial_values
from benchmarks.peers.rank import Rank, leave
from benchmarks.peers.running import Run, Running, launch

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed


class Mirrored:
    """MultiWorkerMirroredStrategy."""

    name = "mirrored"

    def versions(self) -> dict[str, str]:
        """TensorFlow's."""
        return versions_of("tensorflow")

    def available(self) -> str | None:
        """Always: it is part of TensorFlow."""
        return None

    def settings(self) -> list[dict[str, Any]]:
        """Sizes of packs, in bytes."""
        return [{"bytes_per_pack": size * 2**20} for size in (0, 1, 4, 16, 64)]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """What a ring all-reduce sends."""
        return evenly(sizes, workers)

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a worker on each host."""

        def start_all(run: Run) -> None:
            cluster = {"worker": run.addresses()}
            for number, host in enumerate(bed.hosts):
                task = {"type": "worker", "index": number}
                env = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
                run.start(host, run.command(number), env)

        return launch(self, __name__, bed, case, setting, start_all)


PEER = Mirrored()


def main() -> None:
    """One worker; ``TF_CONFIG`` says which."""
    rank = Rank.read()
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")

    import tensorflow as tf

    from benchmarks.peers import graph
    from benchmarks.peers.emulated import Emulated

    tf.config.threading.set_intra_op_parallelism_threads(rank.case.threads)
    tf.config.threading.set_inter_op_parallelism_threads(rank.case.inter_op_threads)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=rank.setting["bytes_per_pack"],
        implementation=tf.distribute.experimental.CommunicationImplementation.RING,
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        trained = {
            name: tf.Variable(value, name=name)
            for name, value in initial_values(rank.prepared).items()
        }
        accumulators = [
            tf.Variable(tf.zeros_like(variable), trainable=False) for variable in trained.values()
        ]
        kept = {
            name: tf.Variable(
                value,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            )
            for name, value in graph.draw_initial_values(rank.case, trained=False).items()
        }
    variables = {**kept, **trained}

    def look_up(getter: Any, name: str, *args: Any, **options: Any) -> Any:
        return variables[name]

    def differentiated(inputs: Any, labels: Any) -> tuple[Any, list[Any]]:
        with (
            tf.GradientTape() as tape,
            graph.tf1.variable_scope("", custom_getter=look_up),
        ):
            loss = graph.forward(rank.case, inputs, labels)
        return loss, tape.gradient(loss, list(trained.values()))

    def emulated() -> tuple[Any, list[Any]]:
        reads = {name: tf.convert_to_tensor(variable) for name, variable in trained.items()}
        loss, gradients = Emulated.read(rank.prepared).gradients(reads)
        return loss, [gradients[name] for name in trained]

    def replica_step(*batch: Any) -> Any:
        loss, gradients = (differentiated if rank.case.accelerator is None else emulated)(*batch)
        replica = tf.distribute.get_replica_context()
        sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients, options=options)
        for variable, accumulator, total in zip(trained.values(), accumulators, sums, strict=True):
            graph.update(rank.case, variable, accumulator, total / rank.workers)
        return loss

    @tf.function(autograph=False)
    def distributed_step(*batch: Any) -> Any:
        return strategy.run(replica_step, batch)

    batches: Iterator[Any] = itertools.repeat(())
    if rank.case.accelerator is None:
        examples = examples_of(rank.prepared)
        batches = iter(graph.dataset(examples, rank.number, rank.workers, rank.case.batch))

    def step() -> float:
        return float(distributed_step(*next(batches)))

    def parameters() -> dict[str, np.ndarray]:
        return {name: variable.numpy() for name, variable in trained.items()}

    rank.measure(step, parameters)
    leave()


if __name__ == "__main__":
    main()
