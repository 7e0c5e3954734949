"""What TensorFlow calls the things that it traces: ops, kernels on GPUs, and transfers.

None of these forms is documented. `check.check_labels` looks at them before the first trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from caramel.core.errors import InstallationError

STREAM = "/stream:"
"""Part of the name of a pseudo-device that has the kernels of one of a GPU's streams."""
ALL_STREAMS = f"{STREAM}all"
"""The end of the name of one that has those of all streams of a GPU."""
LOWERED = "Func/"
"""Stands before some names of what a call became."""
KERNEL = "@@"
"""In a label, between the kernel and the op that started it."""
TRANSFER = "RecvTensor"
"""The name of what a task has received from another one."""

_TRANSFER = re.compile(
    r"\[(?P<size>[\d.]+)(?P<unit>[KMG]?B)\].* edge_\d+_(?P<op>\S+) "
    r"from (?P<source>/\S+) to (?P<target>/\S+)"
)
_UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}


class Transfer(NamedTuple):
    """A tensor that a task has received.

    Attributes:
        op: the name of the op that put it out.
        source, target: full names of the devices.
        bytes: its size, as far as the label tells it: to a tenth of a KiB or a MiB.
    """

    op: str
    source: str
    target: str
    bytes: int


def transfer(record: Any) -> Transfer | None:
    """The transfer that a record (`NodeExecStats`) tells of; None if it is of something else.

    Raises:
        InstallationError: it is of a transfer, but labelled in another form.
    """
    if record.node_name != TRANSFER:
        return None
    found = _TRANSFER.match(record.timeline_label)
    if found is None:
        raise InstallationError(
            f"TensorFlow labels a transfer '{record.timeline_label}', in another form than "
            "'[1.5KB] [2.0Gb/s] edge_3_op from /device to /device', which Caramel reads"
        )
    size_bytes = round(float(found["size"]) * _UNITS[found["unit"]])
    source, target = found["source"].rstrip(":"), found["target"].rstrip(":")
    return Transfer(found["op"], source, target, size_bytes)


def names(record: Any) -> Iterator[str]:
    """What may be the op's name: of ``op``, ``op:kind``, or a label ``kernel@@op:kind#more``."""
    texts = [record.node_name]
    if KERNEL in record.timeline_label:
        texts.append(record.timeline_label.partition(KERNEL)[2])
    for text in texts:
        name = re.split("[#;]", text, maxsplit=1)[0]
        yield name
        if ":" in name:
            yield name.rpartition(":")[0]


def scopes(record: Any) -> Iterator[str]:
    """What may be the name of the call inside of which it ran, the innermost first."""
    for name in names(record):
        scope = name.removeprefix(LOWERED).rpartition("/")[0]
        while scope:
            yield scope
            scope = scope.rpartition("/")[0]
