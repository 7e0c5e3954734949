"""What is assumed of TensorFlow beyond what it promises, each checked once in a process.

Another TensorFlow is told by one clear error, and not by a crash, wrong values or transfers that
nobody sees. The checks run where something is first relied upon:

==================== ==============================================================================
`check_version`      when the library is loaded
`function`           when functions of the library are looked up
`check_string_bytes` when the first session opens
`check_experiments`  before the first server listens
`check_labels`       before something is traced, by a traced call of its own
==================== ==============================================================================
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from caramel.core.devices import Device, task_of
from caramel.core.errors import InstallationError
from caramel.core.names import CHECK_CALL, CHECK_PRODUCT, CHECK_SENT
from caramel.core.version import TENSORFLOW
from caramel.native import labels

# The library ------------------------------------------------------------------------------------

STRING_BYTES = 24
"""The size of a TF_TString, an element of a tensor of strings."""


def check_version(version: str) -> None:
    """The library is of the TensorFlow that Caramel is made for.

    Raises:
        InstallationError: it is of another one.
    """
    if not version.startswith(f"{TENSORFLOW}."):
        raise InstallationError(f"TensorFlow {version} is installed, Caramel needs {TENSORFLOW}")


def function(library: ctypes.CDLL, name: str) -> Any:
    """A function of the library, another object each time: callers give it their own types.

    Raises:
        InstallationError: there is none of this name.
    """
    try:
        return library[name]
    except AttributeError:
        raise InstallationError(
            f"TensorFlow's library has no function '{name}', which Caramel calls"
        ) from None


def check_string_bytes(found: int) -> None:
    """Elements of tensors of strings stand as far apart as Caramel reads them.

    Args:
        found: how far, in bytes.

    Raises:
        InstallationError: they do not.
    """
    if found != STRING_BYTES:
        raise InstallationError(
            f"a string in a tensor of this TensorFlow takes {found} bytes, Caramel expects "
            f"{STRING_BYTES}"
        )


# gRPC -------------------------------------------------------------------------------------------

_ELF = b"\x7fELF\x02\x01"  # of 64 bits, the lowest byte first
_CONSTANTS = b".rodata\0"


@cache
def check_experiments(library: str, names: tuple[str, ...]) -> None:
    """The gRPC in TensorFlow knows some experiments; of others it only writes to its log.

    Their names are among the library's constants. Where it is no ELF file (macOS), nothing is
    checked.

    Args:
        library: the path of TensorFlow's shared library.
        names: of the experiments.

    Raises:
        InstallationError: it does not know one of them.
    """
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        if elf[: len(_ELF)] != _ELF:
            return
        begin, end = _constants(elf)
        for name in names:
            if elf.find(f"{name}\0".encode(), begin, end) < 0:
                raise InstallationError(
                    f"the gRPC in this TensorFlow has no experiment '{name}', which Caramel sets "
                    "(an empty GRPC_EXPERIMENTS in the environment goes without it)"
                )


def _constants(elf: mmap.mmap) -> tuple[int, int]:
    """Where the constants of an ELF file begin and end; of the whole file if it does not say.

    Headers of a file and of its sections are described in ``man 5 elf``.
    """
    (sections,) = struct.unpack_from("<Q", elf, 0x28)
    header_bytes, count, of_names = struct.unpack_from("<HHH", elf, 0x3A)

    def section(number: int) -> tuple[int, int, int]:
        fields = struct.unpack_from("<IIQQQQ", elf, sections + number * header_bytes)
        return fields[0], fields[4], fields[5]  # where its name stands, where it begins, its size

    names = section(of_names)[1]
    for name, begin, size in map(section, range(count)):
        if elf[names + name : names + name + len(_CONSTANTS)] == _CONSTANTS:
            return begin, begin + size
    return 0, len(elf)


# Labels -----------------------------------------------------------------------------------------

_TRIES = 5  # a busy worker may begin too late to record what it receives
_checked: set[str] = set()

Trace = Callable[[], Iterable[Any]]
"""Runs an op, traced; returns the `StepStats` protos of the call."""


def check_labels(prepare: Callable[[Any, str], Trace], devices: Sequence[str]) -> None:
    """TensorFlow names what it traces in the forms that `labels` reads.

    Only a job on several tasks transfers something, and only one on GPUs has kernels, so another
    job of the process may be checked again.

    Args:
        prepare: is given a GraphDef and the name of one of its ops; returns what runs that.
        devices: of the job's replicas.

    Raises:
        InstallationError: something is named in another form.
        Exception: of `prepare` and what it returns.
    """
    tasks = list(dict.fromkeys(map(task_of, devices)))
    kinds = {Device.parse(device).kind or "any" for device in devices}
    wanted = {*kinds, "transfers"} if len(tasks) > 1 else kinds
    if wanted <= _checked:
        return
    trace = prepare(_graph(devices[0], tasks[-1]), CHECK_CALL)
    for _ in range(_TRIES):
        unread = list(_unread(trace(), has_transfer=len(tasks) > 1))
        if not unread:
            _checked.update(wanted)
            return
    raise InstallationError(
        f"TensorFlow does not name what it traces as Caramel reads it: {'; '.join(unread)}"
    )


def _unread(traces: Iterable[Any], *, has_transfer: bool) -> Iterator[str]:
    """What is not found in a trace of `_graph`.

    Raises:
        InstallationError: a transfer is labelled in another form.
    """
    devices = [device for step_stats in traces for device in step_stats.dev_stats]
    records = [record for device in devices for record in device.node_stats]
    kernels = [r for d in devices if d.device.endswith(labels.ALL_STREAMS) for r in d.node_stats]
    lowered = [record for record in records if record.node_name.startswith(labels.LOWERED)]
    received = {found.op for found in map(labels.transfer, records) if found is not None}
    if not any(record.node_name == CHECK_PRODUCT for record in records):
        yield f"no op '{CHECK_PRODUCT}' among {_shown(records)}"
    if not any(CHECK_CALL in labels.scopes(record) for record in lowered):
        yield f"no '{labels.LOWERED}{CHECK_CALL}/...' among {_shown(records)}"
    if has_transfer and CHECK_SENT not in received:
        yield f"no '{labels.TRANSFER}' of '{CHECK_SENT}' among {_shown(records)}"
    if kernels and not any(CHECK_PRODUCT in labels.names(record) for record in kernels):
        yield f"no kernel of '{CHECK_PRODUCT}' among {_shown(kernels)}"


def _shown(records: Iterable[Any]) -> str:
    return ", ".join(sorted({f"{r.node_name} ({r.timeline_label})" for r in records}))


def _graph(device: str, other_task: str | None) -> Any:
    """A GraphDef: on a device, a call (which is lowered) of the product of what a task sends."""
    import tensorflow as tf  # not above: a process that only serves does without it

    with tf.Graph().as_default() as graph:
        square = tf.function(tf.square).get_concrete_function(tf.TensorSpec([8, 8]))
        with tf.device(other_task):
            sent = tf.constant(1.0, shape=[8, 8], name=CHECK_SENT)
        with tf.device(device):
            product = tf.matmul(sent, sent, name=CHECK_PRODUCT)
            tf.raw_ops.StatelessIf(
                cond=True,
                input=[product],
                Tout=[tf.float32],
                then_branch=square,
                else_branch=square,
                name=CHECK_CALL,
            )
    graph_def = graph.as_graph_def()
    (call,) = (node for node in graph_def.node if node.name == CHECK_CALL)
    call.attr["_lower_using_switch_merge"].b = True
    return graph_def
