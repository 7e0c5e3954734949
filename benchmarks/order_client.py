"""Traces steps of one system on running workers: ``python -m ... CASE RESULT``.

The case names the system, the network, the workers and the rounds. In each round a traced step
gives an order of arrivals at worker 0, and a step without a trace gives a time. Computation is
emulated; the bytes of parameters and gradients are real.

=================== ===============================================================================
`parameter_server`  task 1 holds variables and optimizer, task 0 computes; what arrives are the
                    parameters that the forward pass reads
`all_reduce`        plain Caramel on both; what arrives is each gradient, with its last chunk
=================== ===============================================================================
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

import caramel
from benchmarks import networks
from benchmarks.emulate import emulate, flops_times
from caramel.names import in_group, in_replica

tf1 = tf.compat.v1

WORKER, SERVER = "/job:worker/task:0", "/job:worker/task:1"
# TensorFlow's label of a transfer that ends at task 0: size, rate, tensor, where from and where to.
_TRANSFER = re.compile(r"edge_\d+_(?P<op>\S+) from \S*/task:1/\S* to \S*/task:0/")


@dataclass(frozen=True)
class System:
    """A job that is ready to train.

    Attributes:
        session: the TensorFlow session that runs it.
        targets: the ops that a step runs.
        parameters: the names of those whose transfers count.
        parameter_of: the parameter that an op's value belongs to, None if it counts for none.
    """

    session: Any
    targets: Sequence[Any]
    parameters: tuple[str, ...]
    parameter_of: Callable[[str], str | None]

    def step(self) -> float:
        """A step without a trace; returns its seconds."""
        begin = time.perf_counter()
        self.session.run(self.targets)
        return time.perf_counter() - begin

    def traced_step(self) -> tuple[str, ...]:
        """A step; returns the parameters in the order in which they were complete at worker 0."""
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        self.session.run(self.targets, options=options, run_metadata=metadata)
        return arrivals(metadata, self.parameter_of)


def arrivals(metadata: Any, parameter_of: Callable[[str], str | None]) -> tuple[str, ...]:
    """Parameters in the order of the ends of their last transfers to task 0.

    Equal times (a trace counts microseconds) are put in the order of the transfers' begins, then of
    the names.
    """
    last: dict[str, tuple[int, int]] = {}
    for device in metadata.step_stats.dev_stats:
        for entry in device.node_stats:
            if entry.node_name != "RecvTensor":
                continue
            found = _TRANSFER.search(entry.timeline_label)
            parameter = parameter_of(found["op"]) if found else None
            if parameter is not None:
                begin_us = entry.all_start_micros
                times = (begin_us + entry.all_end_rel_micros, begin_us)
                last[parameter] = max(times, last.get(parameter, (0, 0)))
    return tuple(sorted(last, key=lambda parameter: (last[parameter], parameter)))


def emulated(network: str, batch: int) -> caramel.Context:
    """A network's training job on a K80, whose updates cost nothing."""
    context = networks.build(network, batch=batch).context()
    return emulate(context, flops_times(context, batch=batch), batch=batch, updates="none")


# Parameter server -------------------------------------------------------------------------------


def parameter_server(context: caramel.Context, addresses: Sequence[str]) -> System:
    """One server with all variables, one worker; both run in one session, as one graph."""
    graph_def, reads = placed(context)
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
    session = tf1.Session(f"grpc://{addresses[0]}", graph=graph, config=_config())
    job = context.job
    session.run([graph.get_operation_by_name(v.initializer) for v in job.variables])
    targets = [graph.get_operation_by_name(name) for name in (job.train_op, job.loss.op)]
    trained = sorted(gradient.parameter for gradient in job.given_gradients)
    return System(session, targets, tuple(trained), reads.get)


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


def all_reduce(context: caramel.Context, addresses: Sequence[str]) -> System:
    """Plain Caramel: every gradient is aggregated by itself as soon as it is there."""
    model = caramel.ARModel(context, list(addresses))
    session = model.session(start_timeout_s=60, step_timeout_s=300)
    plan, job = model.plan, context.job
    targets = [
        model.graph.get_operation_by_name(in_replica(worker, name))
        for worker in range(plan.workers)
        for name in (job.train_op, job.loss.op)
    ]
    members = {in_group(group.name, 1): group.members[0] for group in plan.groups}
    depth = len(next(iter(members)).split("/"))

    def parameter_of(op: str) -> str | None:
        return members.get("/".join(op.split("/")[:depth]))

    return System(_raw(session), targets, tuple(sorted(members.values())), parameter_of)


def _raw(session: Any) -> Any:
    """The TensorFlow session under one of Caramel's, which has no steps with a trace."""
    return session._runner._session


SYSTEMS: Mapping[str, Callable[[caramel.Context, Sequence[str]], System]] = {
    "parameter_server": parameter_server,
    "all_reduce": all_reduce,
}


def measure(case: Mapping[str, Any]) -> dict[str, Any]:
    """Orders of the traced steps, and seconds of the others."""
    context = emulated(case["network"], case["batch"])
    system = SYSTEMS[case["system"]](context, case["workers"])
    for _ in range(case["warm_up"]):
        system.traced_step()
        system.step()
    orders, samples_s = [], []
    for _ in range(case["rounds"]):
        orders.append(system.traced_step())
        samples_s.append(system.step())
    number = {name: index for index, name in enumerate(system.parameters)}
    sizes = {variable.name: variable.spec.bytes or 0 for variable in context.job.variables}
    return {
        "bytes": sum(sizes[name] for name in system.parameters),
        "parameters": system.parameters,
        "orders": [[number[name] for name in order] for order in orders],
        "samples_s": samples_s,
    }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(measure(json.loads(sys.argv[1]))))
