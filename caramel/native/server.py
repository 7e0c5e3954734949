"""One of TensorFlow's servers, by its shared library: it needs nothing of TensorFlow's Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_char_p, c_size_t, c_void_p
from functools import cache
from pathlib import Path
from types import SimpleNamespace

from caramel.native import library, messages

# Where there is no driver of NVIDIA's, that is the only error that looking for devices tells.
_NVIDIA = Path("/dev/nvidiactl")

_SIGNATURES: library.Signatures = {
    "TF_NewServer": (c_void_p, (c_char_p, c_size_t, c_void_p)),
    "TF_ServerStart": (None, (c_void_p, c_void_p)),
    "TF_ServerTarget": (c_char_p, (c_void_p,)),
}


def start_server(
    jobs: Mapping[str, Sequence[str]], job: str, index: int, *, config: bytes = b""
) -> str:
    """Start a server in this process; TensorFlow cannot stop it. Returns its ``grpc://host:port``.

    Args:
        jobs: the addresses of each job's tasks, ``host:port``.
        job, index: which of the tasks it is.
        config: a serialized ConfigProto.

    Raises:
        StatusError: TensorFlow cannot start it.
        InstallationError: TensorFlow is not as Caramel needs it.
    """
    tensorflow = _functions()
    server_def = _server_def(jobs, job, index, config)
    messages.learn_of_server()
    with messages.at_least(messages.ERRORS if _NVIDIA.exists() else messages.FATAL):
        with library.status() as status:
            server = tensorflow.TF_NewServer(server_def, len(server_def), status)
        with library.status() as status:
            tensorflow.TF_ServerStart(server, status)
    target: bytes = tensorflow.TF_ServerTarget(server)
    return target.decode()


def thread_options(*, intra_op: int = 0, inter_op: int = 0) -> bytes:
    """A serialized ConfigProto with numbers of threads; 0 for TensorFlow's choice.

    What another one after it says holds: two of them in a row are one.
    """
    # Of a ConfigProto: intra_op_parallelism_threads, inter_op_parallelism_threads.
    return _message((2, intra_op), (5, inter_op))


def strings_message(values: Iterable[str]) -> bytes:
    """A serialized message whose field 1 is a list of strings, such as a CleanupAllRequest."""
    return _message(*((1, value) for value in values))


@cache
def _functions() -> SimpleNamespace:
    return library.functions(_SIGNATURES, long=_SIGNATURES)


def _server_def(jobs: Mapping[str, Sequence[str]], job: str, index: int, config: bytes) -> bytes:
    """A ServerDef, see ``tensorflow_server.proto`` in ``tensorflow/core/protobuf``."""
    # By hand, since its class in Python comes with all of TensorFlow only.
    cluster = _message(*((1, _job_def(name, jobs[name])) for name in jobs))
    return _message((1, cluster), (2, job), (3, index), (4, config), (5, "grpc"))


def _job_def(name: str, addresses: Iterable[str]) -> bytes:
    tasks = (_message((1, number), (2, address)) for number, address in enumerate(addresses))
    return _message((1, name), *((2, task) for task in tasks))


def _message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message in the wire format of Protocol Buffers: the number of each field, and its value.

    What is zero or empty is left out: it is so by default.
    """
    written = bytearray()
    for number, value in fields:
        if not value:
            continue
        if isinstance(value, int):
            written += _varint(number << 3) + _varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            # Wire type 2: a length, and so many bytes. Numbers have type 0.
            written += _varint(number << 3 | 2) + _varint(len(content)) + content
    return bytes(written)


def _varint(value: int) -> bytes:
    """A number that is not negative, seven bits in each byte, the lowest first."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
