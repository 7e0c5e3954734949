"""Runs one graph by Caramel's session and by bare ones: ``python -m ... CASE RESULT``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import caramel
from benchmarks.overhead import CALLABLE, RUN, STEP
from caramel.core.names import in_replica, marks_cleared
from caramel.modifiers.defer import step_ops
from caramel.modifiers.progress_marks import KINDS

tf1 = tf.compat.v1


def narrow(layers: int, width: int) -> caramel.Context:
    """Dense layers one after the other, with batches fed as ``x:0``."""
    with tf.Graph().as_default() as graph:
        random = np.random.default_rng(1)
        x = value = tf1.placeholder(tf.float32, [None, width], name="x")
        for number in range(layers):
            kernel = _variable(f"kernel_{number}", random.standard_normal((width, width)))
            bias = _variable(f"bias_{number}", np.zeros(width))
            value = tf.nn.relu(tf.matmul(value, kernel) + bias)
        loss = tf.reduce_mean(tf.square(value - x))
        train_op = tf1.train.GradientDescentOptimizer(0.0).minimize(loss)
        return caramel.Context(graph, train_op=train_op, loss=loss)


def _variable(name: str, value: np.ndarray) -> Any:
    constant = tf.constant(value, tf.float32)
    return tf1.get_variable(name, initializer=constant, use_resource=True)


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of every step, and the last loss, of each way to run it."""
    context = narrow(case["layers"], case["width"])
    model = caramel.ARModel(context, case["workers"], planner="plain")
    workers = range(model.plan.workers)
    batch = np.random.default_rng(0).standard_normal((case["batch"], case["width"]), np.float32)
    parts = np.split(batch, len(workers))
    with (
        model.session() as session,
        tf1.Session(f"grpc://{case['workers'][0]}", graph=model.graph, config=_config()) as bare,
    ):
        bare.run(
            [
                model.graph.get_operation_by_name(in_replica(worker, variable.initializer))
                for worker in workers
                for variable in context.job.variables
            ]
            + [
                model.graph.get_operation_by_name(marks_cleared(worker, kind))
                for worker in workers
                for kind in KINDS
            ]
        )
        losses = [
            model.graph.get_tensor_by_name(f"{in_replica(w, context.job.loss.op)}:0")
            for w in workers
        ]
        ops = [model.graph.get_operation_by_name(name) for name in step_ops(model.plan)]
        fed = [model.graph.get_tensor_by_name(f"{in_replica(w, 'x')}:0") for w in workers]
        called = bare.make_callable([*losses, *ops], fed)

        def bare_run() -> float:
            values = bare.run([*losses, *ops], dict(zip(fed, parts, strict=True)))
            return float(np.mean(values[: len(losses)]))

        ways: dict[str, Callable[[], float]] = {
            STEP: lambda: float(session.step({"x:0": batch})),
            RUN: bare_run,
            CALLABLE: lambda: float(np.mean(called(*parts)[: len(losses)])),
        }
        samples_s: dict[str, list[float]] = {name: [] for name in ways}
        last = {}
        for number in range(case["rounds"] + 1):
            for name, way in ways.items():
                for _ in range(case["steps"]):
                    begin = time.perf_counter()
                    last[name] = way()
                    if number:  # the first round is a warm-up
                        samples_s[name].append(time.perf_counter() - begin)
    return {"samples_s": samples_s, "losses": last, "ops": len(model.graph.get_operations())}


def _config() -> Any:
    """As Caramel's sessions: no graph optimizers."""
    config = tf1.ConfigProto(isolate_session_state=True, allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return config


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
