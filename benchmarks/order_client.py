"""Traces steps of one system on running workers: ``python -m ... CASE RESULT``.

The case names the system, the network, the workers and the rounds. In each round a traced step
gives orders of transfers, and a step without a trace gives a time. Computation is emulated; the
bytes of parameters and gradients are real.

=================== ===============================================================================
`parameter_server`  task 1 holds variables and optimizer, task 0 computes; one order, that of the
                    arrivals of the parameters that the forward pass reads
`all_reduce`        plain Caramel on both; an order for each worker, that in which it begins to send
                    its gradients
`planned`           the same with everything that Caramel plans, one group behind the other; an
                    order of groups
=================== ===============================================================================
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

import caramel
from benchmarks import networks
from benchmarks.emulate import emulate, flops_times
from benchmarks.workers import measured_profile
from caramel.core.devices import task_of
from caramel.core.names import group_of
from caramel.core.timeline import Timeline
from caramel.native import labels

tf1 = tf.compat.v1

ACCELERATOR = "K80"
WORKER, SERVER = "/job:worker/task:0", "/job:worker/task:1"


class System(Protocol):
    """A job that is ready to train, with the names of what it transfers."""

    transfers: tuple[str, ...]

    def step(self) -> Any:
        """A step without a trace."""

    def traced_step(self) -> list[tuple[str, ...]]:
        """A step; returns orders of the transfers."""

    def close(self) -> None:
        """Close the session."""


def arrivals(metadata: Any, parameter_of: Callable[[str], str | None]) -> tuple[str, ...]:
    """Parameters in the order of the ends of their last transfers to task 0.

    Equal times (a trace counts microseconds) are put in the order of the transfers' begins, then of
    the names.
    """
    last: dict[str, tuple[int, int]] = {}
    for device in metadata.step_stats.dev_stats:
        for entry in device.node_stats:
            found = labels.transfer(entry)
            if found is None or (task_of(found.source), task_of(found.target)) != (SERVER, WORKER):
                continue
            parameter = parameter_of(found.op)
            if parameter is not None:
                begin_us = entry.all_start_micros
                times = (begin_us + entry.all_end_rel_micros, begin_us)
                last[parameter] = max(times, last.get(parameter, (0, 0)))
    return tuple(sorted(last, key=lambda parameter: (last[parameter], parameter)))


def emulated(network: str, batch: int) -> caramel.Context:
    """A network's training job on an accelerator, whose updates cost nothing."""
    context = networks.build(network, batch=batch).context()
    return emulate(
        context,
        flops_times(context, device=ACCELERATOR, batch=batch),
        batch=batch,
        updates="none",
    )


# Parameter server -------------------------------------------------------------------------------


class ParameterServer:
    """One server with all variables, one worker; both run in one session, as one graph."""

    def __init__(self, context: caramel.Context, addresses: Sequence[str]) -> None:
        graph_def, self._reads = placed(context)
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(graph_def, name="")
        self._session = tf1.Session(f"grpc://{addresses[0]}", graph=graph, config=_config())
        job = context.job
        self._session.run([graph.get_operation_by_name(v.initializer) for v in job.variables])
        self._targets = [graph.get_operation_by_name(op) for op in (job.train_op, job.loss.op)]
        self.transfers = tuple(sorted(gradient.parameter for gradient in job.given_gradients))

    def step(self) -> None:
        """A step without a trace."""
        self._session.run(self._targets)

    def traced_step(self) -> list[tuple[str, ...]]:
        """A step; returns the order of the arrivals at the worker."""
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self._session.run(self._targets, options=options, run_metadata=metadata)
        return [arrivals(metadata, self._reads.get)]

    def close(self) -> None:
        """Close the session."""
        self._session.close()


def placed(context: caramel.Context) -> tuple[Any, dict[str, str]]:
    """The job's graph on a worker and a server, and the parameter of each op that reads one.

    As `tf.compat.v1.train.replica_device_setter` does it: variables and what reads or updates them
    stand on the server, the rest of a step on the worker. Initial values are made on the server.
    """
    graph, job = context.op_graph, context.job
    handles = {variable.handle: variable.name for variable in job.variables}
    reads = {
        op.name: handles[op.inputs[0].op]
        for op in graph
        if op.kind == "ReadVariableOp" and op.inputs[0].op in handles
    }
    users = {op.name for op in graph if any(tensor.op in handles for tensor in op.inputs)}
    on_worker = graph.ancestors([job.train_op, job.loss.op]) - users - handles.keys()
    graph_def = tf1.GraphDef()
    graph_def.CopyFrom(context.graph_def)
    for node in graph_def.node:
        node.device = WORKER if node.name in on_worker else SERVER
        node.attr.pop("_class", None)
    return graph_def, reads


def _config() -> Any:
    """As Caramel's sessions: state of its own, no graph optimizers."""
    config = tf1.ConfigProto(isolate_session_state=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf1.OptimizerOptions.L0
    return config


# All-reduce -------------------------------------------------------------------------------------


class AllReduce:
    """Caramel; plain unless it is given a profile to plan from."""

    def __init__(
        self, context: caramel.Context, addresses: Sequence[str], *, profile: Any = None
    ) -> None:
        model = caramel.ARModel(
            context, list(addresses), profile=profile, planner="paper", in_flight_bytes=0
        )
        self._workers = model.plan.workers
        self._session = model.session(start_timeout_s=60, step_timeout_s=300)
        self.step, self.close = self._session.step, self._session.close
        self.transfers = tuple(
            sorted(g.name for g in model.plan.decision.groups if model.plan.bytes(g))
        )

    def traced_step(self) -> list[tuple[str, ...]]:
        """A step; returns for each worker the order in which it begins to send the groups."""
        (timeline,) = self._session.trace(1)
        return [starts(timeline, worker) for worker in range(self._workers)]


def starts(timeline: Timeline, worker: int) -> tuple[str, ...]:
    """The groups in the order in which a worker begins to send them; by name if at once."""
    first: dict[str, float] = {}
    for span in timeline.spans:
        group = group_of(span.name)
        if group is not None and (span.worker, span.resource) == (worker, "send"):
            first[group] = min(span.begin_s, first.get(group, span.begin_s))
    return tuple(sorted(first, key=lambda group: (first[group], group)))


def planned(context: caramel.Context, addresses: Sequence[str], repeats: int) -> AllReduce:
    """Caramel with everything that it plans, for a network that is measured first."""
    profile = measured_profile(context, addresses, accelerator=ACCELERATOR, repeats=repeats)
    return AllReduce(context, addresses, profile=profile)


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Orders of the traced steps, and seconds of the others."""
    context = emulated(case["network"], case["batch"])
    systems: Mapping[str, Callable[[caramel.Context, Sequence[str]], System]] = {
        "parameter_server": ParameterServer,
        "all_reduce": AllReduce,
        "planned": partial(planned, repeats=case["network_repeats"]),
    }
    system = systems[case["system"]](context, case["workers"])
    for _ in range(case["warm_up"]):
        system.traced_step()
        system.step()
    orders: list[list[tuple[str, ...]]] = []
    samples_s: list[float] = []
    incomplete = 0
    while len(orders) < case["rounds"] and incomplete <= case["rounds"]:
        step = system.traced_step()
        if any(len(order) < len(system.transfers) for order in step):
            incomplete += 1  # TensorFlow may record transfers too late
            continue
        orders.append(step)
        if len(samples_s) * case["rounds"] < len(orders) * case["timed"]:
            begin = time.perf_counter()
            system.step()
            samples_s.append(time.perf_counter() - begin)
    system.close()
    number = {name: index for index, name in enumerate(system.transfers)}
    sizes = {variable.name: variable.spec.bytes or 0 for variable in context.job.variables}
    return {
        "bytes": sum(sizes[gradient.parameter] for gradient in context.job.given_gradients),
        "transfers": system.transfers,
        "incomplete": incomplete,
        "orders": [[[number[name] for name in order] for order in step] for step in orders],
        "samples_s": samples_s,
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
