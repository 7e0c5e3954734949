"""Looks at distributed graphs from outside: what a traced step really sends, as TensorFlow says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import caramel
from caramel.cluster.servers import embedded_servers
from caramel.core.devices import task_of
from caramel.core.names import in_replica, tensor_in_replica
from caramel.modifiers import variable_ops
from caramel.modifiers.traffic_audit import Traffic
from caramel.runtime.steps.feeds import Feed, split_feeds
from tests.support.networks import tf, tf1

_EDGE = re.compile(r"edge_\d+_(?P<op>\S+) from (?P<source>\S+) to (?P<target>\S+)$")
_FEED = "_recv_"  # TensorFlow's nodes for what the client feeds, which enters on its task

Pair = tuple[str, str]


@dataclass(frozen=True)
class Trace:
    """One step as TensorFlow ran it.

    Attributes:
        sent: tensors (or ops, for control edges) that went from one task to another, with the
            pair of tasks and how often; what the client fed is left out.
        received: bytes of those that TensorFlow took notes of, by op.
        tasks: where each node ran, by its name.
        ends: when each node ended, in nanoseconds; comparable on one task.
    """

    sent: Counter[tuple[str, Pair]]
    received: Mapping[tuple[str, Pair], set[int]]
    tasks: Mapping[str, str]
    ends: Mapping[str, int]


def session_config() -> Any:
    """Options as Caramel's own sessions have them."""
    config = tf1.ConfigProto(allow_soft_placement=True, isolate_session_state=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def split_over_workers(model: caramel.ARModel, feed: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What each replica is fed, by tensors' names; the batch has to divide evenly."""
    graph = model.context.op_graph
    feeds = []
    for name, value in feed.items():
        tensor = model.context.tensor(name, "feed")
        spec = graph.spec(tensor)
        feeds.append(Feed(tensor, spec, tf.as_dtype(spec.dtype).as_numpy_dtype, value))
    split = split_feeds(feeds, model.plan.workers)
    assert len(set(split.examples or ())) <= 1, "uneven batches would need shares"
    return {
        str(tensor_in_replica(worker, tensor)): value
        for worker, values in enumerate(split.values)
        for tensor, value in values.items()
    }


def traced_step(
    model: caramel.ARModel, feed: Mapping[str, np.ndarray], *, config: Any = None
) -> Trace:
    """Run two steps in a plain TensorFlow session, and look at the second."""
    plan, job, graph = model.plan, model.context.job, model.graph
    workers, source = range(plan.workers), variable_ops.source_prefix(plan)
    train = [in_replica(worker, job.train_op) for worker in workers]
    fed = split_over_workers(model, feed)
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    target = embedded_servers(model.cluster.size, config=config).target
    with tf1.Session(target, graph=graph, config=session_config()) as session:
        tables = [in_replica(w, op) for w in workers for op in job.table_initializers]
        session.run(tables)
        session.run([f"{source}/{v.initializer}" for v in plan.job.variables])
        session.run(
            [
                variable_ops.broadcast_op(w, v)
                for v in plan.job.variables
                for w in variable_ops.broadcast_targets(v, plan)
            ]
        )
        session.run(train, fed)
        metadata = tf1.RunMetadata()
        session.run(train, fed, options=options, run_metadata=metadata)
    return Trace(_sent(metadata), _received(metadata), _tasks(metadata), _ends(metadata))


def sent_traffic(model: caramel.ARModel, trace: Trace) -> Traffic:
    """What each task sent to each other, with the sizes that TensorFlow infers."""
    found = Traffic()
    for (name, pair), times in trace.sent.items():
        if ":" in name:
            tensor = model.graph.get_tensor_by_name(name)
            elements = tensor.shape.num_elements()
            for _ in range(times):
                found.add(pair, None if elements is None else elements * tensor.dtype.size)
    return found


def _sent(metadata: Any) -> Counter[tuple[str, Pair]]:
    found: Counter[tuple[str, Pair]] = Counter()
    for partition in metadata.partition_graphs:
        kinds = {node.name: node.op for node in partition.node}
        for node in partition.node:
            if node.op not in ("_Send", "_HostSend") or node.attr["client_terminated"].b:
                continue
            pair = _pair(node.attr["send_device"].s.decode(), node.attr["recv_device"].s.decode())
            sent = node.input[0] if ":" in node.input[0] else f"{node.input[0]}:0"
            if pair[0] == pair[1] or sent.startswith(_FEED):
                continue
            if node.input[1:] and kinds[sent.partition(":")[0]] == "Const":  # a control edge
                sent = node.input[1].removeprefix("^")
            found[sent, pair] += 1
    return found


def _received(metadata: Any) -> dict[tuple[str, Pair], set[int]]:
    found: dict[tuple[str, Pair], set[int]] = {}
    for device in metadata.step_stats.dev_stats:
        for stats in device.node_stats:
            edge = _EDGE.search(stats.timeline_label)
            if stats.node_name == "RecvTensor" and edge is not None:
                size = stats.output[0].tensor_description.allocation_description.requested_bytes
                pair = _pair(edge["source"], edge["target"])
                found.setdefault((edge["op"], pair), set()).add(size)
    return found


def _ends(metadata: Any) -> dict[str, int]:
    return {
        stats.node_name: stats.all_start_nanos + stats.all_end_rel_nanos
        for device in metadata.step_stats.dev_stats
        for stats in device.node_stats
    }


def _pair(source: str, target: str) -> Pair:
    return task_of(source) or source, task_of(target) or target


def _tasks(metadata: Any) -> dict[str, str]:
    return {
        node.name: task_of(node.device) or node.device
        for partition in metadata.partition_graphs
        for node in partition.node
        if not node.op.startswith(("_Send", "_Recv", "_Host"))
    }
