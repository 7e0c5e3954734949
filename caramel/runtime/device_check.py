"""Are the devices there that a job asks for, and what runs elsewhere?

TensorFlow's soft placement, which Caramel's sessions need for ops without a kernel, also puts ops
of devices that do not exist on the processor, without a word. So it is looked at beforehand.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from caramel.capture.context import Context
from caramel.core.devices import Device, merge, task_of, without_task
from caramel.core.errors import ClusterError
from caramel.native.kernels import has_kernel

_PROCESSOR = "CPU"
_NAMED = 5  # at most so many are named in a message

_log = logging.getLogger(__name__)


def check_devices(
    context: Context, devices: Sequence[str], available: Iterable[str], *, is_soft: bool
) -> None:
    """Raise unless all devices that are asked for exist; log what runs on a processor in its place.

    Args:
        context: the single-device job, whose ops may name devices.
        devices: those of the replicas.
        available: full names of the devices that the workers have.
        is_soft: whether the user lets ops of devices that do not exist run on the processor. A
            replica's device has to exist in any case.

    Raises:
        ClusterError: one does not exist; lists those that do.
    """
    there = [Device.parse(name) for name in available]
    for worker, name in enumerate(devices):
        if not _exists(name, there):
            raise ClusterError(
                f"replica {worker} is to be on '{name}', which does not exist; {_listed(there)}: "
                "name these in device_list"
            )
    asked = _asked(context)
    for device, ops in asked.items():
        lacking = [w for w, own in enumerate(devices) if not _exists(merge(device, own), there)]
        if not lacking:
            continue
        what = f"{_counted(ops)} on '{device}' by tf.device, which replica {lacking[0]} lacks"
        if not is_soft:
            raise ClusterError(
                f"{what}; {_listed(there)}: leave tf.device out, or let such ops run on the CPU by "
                "session(config=tf.compat.v1.ConfigProto(allow_soft_placement=True))"
            )
        _log.warning("%s; there they run on the CPU", what)
    _tell_of_missing_kernels(context, devices, there)


def _exists(name: str, there: Iterable[Device]) -> bool:
    wanted = Device.parse(name)
    return any(
        (wanted.job, wanted.task) == (each.job, each.task)
        and wanted.kind in (None, each.kind)
        and (wanted.kind is None or (wanted.index or 0) == each.index)
        for each in there
    )


def _listed(there: Sequence[Device]) -> str:
    """Which devices each worker has."""
    own: dict[str | None, list[str]] = {}
    for device in there:
        own.setdefault(task_of(str(device)), []).append(f"{device.kind}:{device.index}")
    listed = "; ".join(f"{task} has {', '.join(sorted(names))}" for task, names in own.items())
    return f"worker {listed}"


def _asked(context: Context) -> dict[str, list[str]]:
    """Which ops the graph places on devices of a kind, also within functions, by the device."""
    named: dict[str, list[str]] = {}
    for node in _nodes(context.graph_def):
        if node.device:
            named.setdefault(node.device, []).append(node.name)
    asked: dict[str, list[str]] = {}
    for name, ops in named.items():
        if device := without_task(name):
            asked.setdefault(device, []).extend(ops)
    return asked


def _nodes(graph_def: Any) -> Iterator[Any]:
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _counted(ops: Sequence[str]) -> str:
    if len(ops) == 1:
        return f"'{ops[0]}' is placed"
    return f"'{ops[0]}' and {len(ops) - 1} more ops are placed"


def _tell_of_missing_kernels(
    context: Context, devices: Sequence[str], there: Sequence[Device]
) -> None:
    """Log how many ops of replicas on accelerators run on the processor of their worker."""
    own = [Device.parse(name) for name in devices]
    if not any(d.kind not in (None, _PROCESSOR) for d in (*own, *there)):
        return
    for kind, nodes in _on_accelerators(context, devices).items():
        without = Counter(node.op for node in nodes if not has_kernel(node, kind))
        if without:
            _log.info(
                "%d of %d ops on devices of kind %s have no kernel for it, and run on the CPU of "
                "their worker: %s",
                sum(without.values()),
                len(nodes),
                kind,
                ", ".join(name for name, _ in without.most_common(_NAMED))
                + (", ..." if len(without) > _NAMED else ""),
            )


def _on_accelerators(context: Context, devices: Sequence[str]) -> Mapping[str, list[Any]]:
    """Nodes of all replicas that are on devices which are no processors, by the kind of these."""
    found: dict[str, list[Any]] = {}
    for device in devices:
        for node in context.graph_def.node:
            kind = Device.parse(merge(node.device, device)).kind
            if kind not in (None, _PROCESSOR):
                found.setdefault(str(kind), []).append(node)
    return found
