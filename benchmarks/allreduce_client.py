"""Times aggregations of one tensor on running workers: ``python -m ... CASE RESULT``.

The case names the workers, sizes, depths, patterns and rounds. All cells are built first; then each
round takes one sample of every cell, so that whatever slows the machine down hits them alike. A
cell's step reads a variable, aggregates it and assigns the result back: no computation, no copies
but those of the aggregation.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

import caramel
from caramel.plan import Plan
from caramel.session import Session

tf1 = tf.compat.v1


def job(elements: int) -> caramel.Context:
    """A "training job" whose gradient is a variable's value, and whose update stores the mean."""
    with tf.Graph().as_default() as graph:
        x = tf1.placeholder_with_default(tf.zeros([1]), [None], name="x")
        weight = tf1.get_variable("w", [elements], initializer=tf1.zeros_initializer())
        local = tf1.get_variable(
            "gradient", [elements], initializer=tf1.ones_initializer(), trainable=False
        )
        gradient = tf.identity(local.read_value(), name="raw")
        train_op = weight.assign(gradient, read_value=False)
        loss = tf.reduce_mean(x)
    return caramel.Context(graph, train_op=train_op, loss=loss, gradients=[(gradient, weight)])


def with_depth(plan: Plan, depth: int) -> Plan:
    """The same plan with all groups split into `depth` parts."""
    groups = tuple(dataclasses.replace(group, depth=depth) for group in plan.groups)
    return dataclasses.replace(plan, groups=groups)


def sessions(case: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Session]]:
    """An open session for each cell."""
    for size_bytes in case["sizes_bytes"]:
        context = job(max(1, size_bytes // 4))
        for pattern in case["patterns"]:
            plan = caramel.ARModel(context, case["workers"], pattern=pattern).plan
            for depth in case["depths"]:
                model = caramel.ARModel(
                    context, case["workers"], pattern=pattern, plan=with_depth(plan, depth)
                )
                cell = {"size_bytes": size_bytes, "pattern": pattern, "depth": depth}
                yield cell, model.session(start_timeout_s=60, step_timeout_s=120)


def measure(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Samples of all cells, interleaved."""
    rows = []
    for size_bytes in case["sizes_bytes"]:  # one size at a time: large ones need the memory
        cells = list(sessions({**case, "sizes_bytes": [size_bytes]}))
        samples: list[list[float]] = [[] for _ in cells]
        for number in range(case["warm_up"] + case["rounds"]):
            for taken, (_, session) in zip(samples, cells, strict=True):
                begin = time.perf_counter()
                session.step(fetches=[])
                if number >= case["warm_up"]:
                    taken.append(time.perf_counter() - begin)
        for _, session in cells:
            session.close()
        rows += [
            {"cell": cell, "samples_s": taken}
            for (cell, _), taken in zip(cells, samples, strict=True)
        ]
    return rows


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
