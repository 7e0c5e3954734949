"""Caramel: a "training job" whose gradient is a variable and whose update stores the mean.

There is a ``caramel worker`` on each host, and a client on the first one. Each cell, a pattern with
a depth, is an open session: a step has no computation and no copies but those of the aggregation,
and ends when the mean is on all workers.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.allreduce.member import PERIOD, Cell, Place, mean_factor, serve

if TYPE_CHECKING:
    from benchmarks.allreduce.group import Group


@dataclasses.dataclass(frozen=True)
class System:
    """Caramel with some patterns and depths."""

    patterns: Sequence[str]
    depths: Sequence[int]
    name: str = "caramel"
    sleeps: bool = True

    def available(self) -> str | None:
        """Always."""
        return None

    def versions(self) -> dict[str, str]:
        """Caramel's."""
        from caramel import __version__

        return {"caramel": __version__}

    def start(self, group: Group) -> int:
        """A worker on each host, and the client."""
        port = group.port()
        addresses = [f"{host.address}:{port}" for host in group.bed.hosts]
        for task, host in enumerate(group.bed.hosts):
            group.popen(
                host,
                [
                    *(sys.executable, "-m", "caramel", "worker", "--cluster", ",".join(addresses)),
                    *("--task", str(task), "--intra-op-threads", "1"),
                ],
            )
        client = group.command(
            __name__,
            0,
            addresses=addresses,
            patterns=list(self.patterns),
            depths=list(self.depths),
        )
        group.popen(group.bed.hosts[0], client)
        return 1


def main() -> None:
    """The client."""
    import tensorflow as tf

    import caramel

    tf1, place = tf.compat.v1, Place.read()
    workers = place.workers
    open_sessions: list[Any] = []

    def job(elements: int) -> tuple[caramel.Context, Any, Any, Any]:
        """The job; its input; an op that fills the variable; a tensor with the error."""
        with tf.Graph().as_default() as graph:
            x = tf1.placeholder_with_default(tf.zeros([1]), [None], name="x")
            ramp = tf.cast(1 + tf.range(elements) % PERIOD, tf.float32)
            weight = tf1.get_variable("w", [elements], initializer=tf1.zeros_initializer())
            local = tf1.get_variable(
                "gradient", [elements], initializer=tf1.ones_initializer(), trainable=False
            )
            gradient = tf.identity(local.read_value(), name="raw")
            train_op = weight.assign(gradient, read_value=False)
            fill = local.assign(ramp * x[0], read_value=False)
            error = tf.reduce_max(tf.abs(weight.read_value() - mean_factor(workers) * ramp))
            loss = tf.reduce_mean(x)
        context = caramel.Context(
            graph, train_op=train_op, loss=loss, gradients=[(gradient, weight)]
        )
        return context, x, fill, error

    def make(elements: int) -> Mapping[str, Cell]:
        while open_sessions:
            open_sessions.pop().close()
        context, x, fill, error = job(elements)
        cells = {}
        for pattern in place.extra["patterns"]:
            plan = caramel.ARModel(context, place.extra["addresses"], pattern=pattern).plan
            for depth in place.extra["depths"]:
                groups = tuple(dataclasses.replace(group, depth=depth) for group in plan.groups)
                model = caramel.ARModel(
                    context,
                    place.extra["addresses"],
                    plan=dataclasses.replace(plan, groups=groups),
                )
                session = model.session(start_timeout_s=60, step_timeout_s=120)
                open_sessions.append(session)
                cells[f"{pattern} {depth}"] = cell(session, x, fill, error)
        return cells

    def cell(session: Any, x: Any, fill: Any, error: Any) -> Cell:
        ranks = [float(worker + 1) for worker in range(workers)]

        def step() -> None:
            session.step(fetches=[])

        return Cell(
            # The second step: what the first has read may be older than what it wrote.
            fill=lambda: session.step({x: ranks}, fetches=[fill]),
            step=step,
            error=lambda: float(session.step({x: ranks}, fetches=error)) * workers,
        )

    serve(place, make)


if __name__ == "__main__":
    main()
