"""Sessions by TensorFlow's C API, over graphs that no Python objects stand for.

`tf.compat.v1.Session` runs a `tf.Graph`, which has a Python object for each op and each tensor.
With more than 10,000 ops for each worker, making these takes longer than rewriting the graph.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.core.errors import SessionError
from caramel.core.names import READY, TensorRef
from caramel.native import check, library, messages
from caramel.native.check import STRING_BYTES

tf1 = tf.compat.v1

_opened_by: list[int] = []  # the processes that have opened sessions: this one, and what forked it


class _Output(Structure):
    """TF_Output: an op and the index of one of its outputs."""

    _fields_ = (("op", c_void_p), ("index", c_int))


class _Buffer(Structure):
    """TF_Buffer: bytes, and how to free them."""

    _fields_ = (("data", c_void_p), ("length", c_size_t), ("free", c_void_p))


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "TF_NewBuffer": (POINTER(_Buffer), ()),
    "TF_NewBufferFromString": (POINTER(_Buffer), (c_char_p, c_size_t)),
    "TF_DeleteBuffer": (None, (POINTER(_Buffer),)),
    "TF_NewSessionOptions": (c_void_p, ()),
    "TF_DeleteSessionOptions": (None, (c_void_p,)),
    "TF_SetTarget": (None, (c_void_p, c_char_p)),
    "TF_SetConfig": (None, (c_void_p, c_char_p, c_size_t, c_void_p)),
    "TF_NewGraph": (c_void_p, ()),
    "TF_DeleteGraph": (None, (c_void_p,)),
    "TF_NewImportGraphDefOptions": (c_void_p, ()),
    "TF_DeleteImportGraphDefOptions": (None, (c_void_p,)),
    "TF_ImportGraphDefOptionsSetPrefix": (None, (c_void_p, c_char_p)),
    "TF_GraphImportGraphDef": (None, (c_void_p, POINTER(_Buffer), c_void_p, c_void_p)),
    "TF_GraphOperationByName": (c_void_p, (c_void_p, c_char_p)),
    "TF_OperationNumOutputs": (c_int, (c_void_p,)),
    "TF_OperationOutputType": (c_int, (_Output,)),
    "TF_NewSession": (c_void_p, (c_void_p, c_void_p, c_void_p)),
    "TF_CloseSession": (None, (c_void_p, c_void_p)),
    "TF_DeleteSession": (None, (c_void_p, c_void_p)),
    "TF_SessionListDevices": (c_void_p, (c_void_p, c_void_p)),
    "TF_DeviceListCount": (c_int, (c_void_p,)),
    "TF_DeviceListName": (c_char_p, (c_void_p, c_int, c_void_p)),
    "TF_DeleteDeviceList": (None, (c_void_p,)),
    "TF_SessionRun": (
        None,
        (
            *(c_void_p, POINTER(_Buffer)),
            *(POINTER(_Output), POINTER(c_void_p), c_int),
            *(POINTER(_Output), POINTER(c_void_p), c_int),
            *(POINTER(c_void_p), c_int),
            *(POINTER(_Buffer), c_void_p),
        ),
    ),
    "TF_AllocateTensor": (c_void_p, (c_int, POINTER(c_int64), c_int, c_size_t)),
    "TF_TensorFromProto": (None, (POINTER(_Buffer), c_void_p, c_void_p)),
    "TF_DeleteTensor": (None, (c_void_p,)),
    "TF_TensorType": (c_int, (c_void_p,)),
    "TF_NumDims": (c_int, (c_void_p,)),
    "TF_Dim": (c_int64, (c_void_p, c_int)),
    "TF_TensorByteSize": (c_size_t, (c_void_p,)),
    "TF_TensorData": (c_void_p, (c_void_p,)),
    "TF_StringGetDataPointer": (c_void_p, (c_void_p,)),
    "TF_StringGetSize": (c_size_t, (c_void_p,)),
}

_LONG = {
    *("TF_NewSession", "TF_CloseSession", "TF_DeleteSession", "TF_SessionRun"),
    *("TF_GraphImportGraphDef", "TF_DeleteGraph", "TF_SessionListDevices"),
}
"""While one of these runs, other threads of Python do, too; the others are over at once."""


def is_forked() -> bool:
    """Whether this process was forked after a session was opened: then TensorFlow's threads and
    connections are gone, and every call would wait for ever."""
    return bool(_opened_by) and os.getpid() not in _opened_by


class NoSuchOpError(SessionError):
    """The graph of a session has no op of a name.

    Attributes:
        op: the name.
    """

    def __init__(self, op: str) -> None:
        super().__init__(f"the graph of the session has no op '{op}'")
        self.op = op


class UnreadError(Exception):
    """A call was done, but what it fetched cannot be brought to Python; its cause says why."""


class GraphCall:
    """Fetches tensors and runs target ops, with values to feed.

    Args:
        session: whose graph they are in.
        fetched, targets, fed: tensors to fetch, ops to run, tensors to feed.

    Raises:
        SessionError: the graph has no such op or output, or the session is closed.
    """

    def __init__(
        self,
        session: GraphSession,
        fetched: Sequence[TensorRef],
        targets: Sequence[str],
        fed: Sequence[TensorRef],
    ) -> None:
        self._session = session
        with session.kept_open():
            outputs = [session.output(tensor) for tensor in fetched]
            inputs = [session.output(tensor) for tensor in fed]
            self._fetched = (_Output * len(outputs))(*outputs)
            self._fed = (_Output * len(inputs))(*inputs)
            self._input_types = [_library().TF_OperationOutputType(each) for each in inputs]
            self._targets = (c_void_p * len(targets))(*(session.op(name) for name in targets))

    def __call__(
        self, values: Sequence[Any] = (), metadata: Any = None, *, limit_s: float | None = None
    ) -> list[Any]:
        """The values of the fetched tensors.

        Args:
            values: what is fed; may be changed once the call has returned.
            metadata: a `tf.compat.v1.RunMetadata` to fill with a full trace; None for no trace.
            limit_s: after how many seconds TensorFlow cancels the call; None for never.

        Raises:
            tf.errors.DeadlineExceededError: it was cancelled.
            tf.errors.CancelledError: the session was closed meanwhile.
            SessionError: the session is closed.
            tf.errors.OpError: an op has failed, or a value does not fit what it is fed to.
            UnreadError: everything was done, but there is no memory for the results, say.
        """
        tensorflow = _library()
        results = (c_void_p * len(self._fetched))()
        options = None
        if metadata is not None or limit_s is not None:
            options = _buffer(_options(is_traced=metadata is not None, limit_s=limit_s))
        told = None if metadata is None else tensorflow.TF_NewBuffer()
        inputs: list[int] = []
        try:
            for number, value in zip(self._input_types, values, strict=True):
                inputs.append(_tensor(value, number))
            quiet = nullcontext() if metadata is None else messages.of_no_trace()
            with quiet, self._session.call() as pointer, _status() as status:
                tensorflow.TF_SessionRun(
                    *(pointer, options),
                    *(self._fed, (c_void_p * len(inputs))(*inputs), len(inputs)),
                    *(self._fetched, results, len(results)),
                    *(self._targets, len(self._targets)),
                    *(told, status),
                )
            try:
                if told is not None:
                    metadata.ParseFromString(_bytes_of(told.contents.data, told.contents.length))
                return [_value(tensor) for tensor in results if tensor]
            except Exception as error:
                # The step is done: what is deferred must not be dropped, as after a call that
                # failed.
                raise UnreadError(str(error)) from error
        finally:
            # Results are there also where a later part has failed.
            for tensor in (*inputs, *results):
                if tensor:
                    tensorflow.TF_DeleteTensor(tensor)
            for buffer in (options, told):
                if buffer is not None:
                    tensorflow.TF_DeleteBuffer(buffer)


class GraphSession:
    """A session, and the graph that it runs.

    Whoever lets go of one that is not closed closes it, as with `tf.compat.v1.Session`. It belongs
    to the process that made it: a forked child can neither use nor close it. Several threads may
    make calls; what TensorFlow has of it is not deleted while they do, nor used after that.

    Args:
        target: the address of the server that drives it.
        config: a `tf.compat.v1.ConfigProto`.
        task: any of the cluster; what has nothing to do runs there.

    Raises:
        tf.errors.OpError: TensorFlow refuses the target or the options.
        InstallationError: TensorFlow is not as Caramel needs it.
    """

    def __init__(self, target: str, config: Any, task: str | None = None) -> None:
        self._pointer: int | None = None  # also once it is closed, while calls are under way
        self._is_closed = False
        self._calls = 0  # how many are under way
        self._change = threading.Condition()  # of `_is_closed` and `_calls`
        self._process = os.getpid()
        if self._process not in _opened_by:
            _opened_by.append(self._process)
        _check_strings()
        tensorflow, settings = _library(), config.SerializeToString()
        self._quiet = ExitStack()
        self._graph = tensorflow.TF_NewGraph()
        options = tensorflow.TF_NewSessionOptions()
        try:
            tensorflow.TF_SetTarget(options, target.encode())
            with _status() as status:
                tensorflow.TF_SetConfig(options, settings, len(settings), status)
            with messages.at_least(messages.ERRORS), _status() as status:
                self._pointer = tensorflow.TF_NewSession(self._graph, options, status)
        except BaseException:
            tensorflow.TF_DeleteGraph(self._graph)
            raise
        finally:
            tensorflow.TF_DeleteSessionOptions(options)
        self._quiet.enter_context(messages.of_no_cleanup())
        # Running it places all that was added to the graph.
        ready = {"name": READY, "op": "NoOp", "device": task or ""}
        self.extend(tf1.GraphDef(node=[ready]).SerializeToString())

    def extend(self, graph_def: bytes, prefix: str = "") -> None:
        """Add ops to the graph. They are placed by the next call, which takes longer for it.

        Args:
            graph_def: a GraphDef.
            prefix: comes before the names of its nodes, with a slash.

        Raises:
            tf.errors.OpError: TensorFlow refuses the graph; it is as before.
            SessionError: the session is closed.
        """
        tensorflow = _library()
        messages.learn(graph_def)
        options, buffer = tensorflow.TF_NewImportGraphDefOptions(), _buffer(graph_def)
        try:
            tensorflow.TF_ImportGraphDefOptionsSetPrefix(options, prefix.encode())
            with self.call(), _status() as status:
                tensorflow.TF_GraphImportGraphDef(self._graph, buffer, options, status)
        finally:
            tensorflow.TF_DeleteBuffer(buffer)
            tensorflow.TF_DeleteImportGraphDefOptions(options)

    def place(self) -> None:
        """Let TensorFlow place what was added to the graph.

        Raises:
            tf.errors.OpError: an op cannot be placed, or a worker cannot be reached.
        """
        with messages.at_least(messages.ERRORS):
            GraphCall(self, [], [READY], [])()

    def devices(self) -> tuple[str, ...]:
        """Full names of all devices of all workers.

        Raises:
            tf.errors.OpError: a worker cannot be reached.
        """
        tensorflow = _library()
        quiet = messages.at_least(messages.ERRORS)
        with quiet, self.call() as pointer, _status() as status:
            found = tensorflow.TF_SessionListDevices(pointer, status)
        try:
            with _status() as status:
                numbers = range(tensorflow.TF_DeviceListCount(found))
                listed = [tensorflow.TF_DeviceListName(found, each, status) for each in numbers]
        finally:
            tensorflow.TF_DeleteDeviceList(found)
        return tuple(name.decode() for name in listed)

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """The session is not closed in this context, which has to be left at once.

        Raises:
            SessionError: it is closed already.
        """
        with self._change:
            if self._is_closed:
                raise SessionError("the session is closed")
            yield

    @contextmanager
    def call(self) -> Iterator[int | None]:
        """The session's pointer, for a call that is under way in this context.

        Raises:
            SessionError: the session is closed.
        """
        with self.kept_open():
            self._calls += 1
        try:
            yield self._pointer
        finally:
            with self._change:
                self._calls -= 1
                self._change.notify_all()

    def op(self, name: str) -> int:
        """An op's pointer, for as long as the session is open.

        Raises:
            NoSuchOpError: there is none of this name.
        """
        found: int | None = _library().TF_GraphOperationByName(self._graph, name.encode())
        if found is None:
            raise NoSuchOpError(name)
        return found

    def output(self, tensor: TensorRef) -> _Output:
        """A tensor, as the C API has it, for as long as the session is open.

        Raises:
            SessionError: there is no such tensor.
        """
        op = self.op(tensor.op)
        if not 0 <= tensor.index < _library().TF_OperationNumOutputs(op):
            raise SessionError(f"the graph of the session has no tensor '{tensor}'")
        return _Output(op, tensor.index)

    def close(self, *, tells: bool = True) -> None:
        """End the session; what it holds on the workers is gone.

        Calls that are under way are cancelled, and waited for.

        Args:
            tells: whether the server that drives it is told. Not if that is lost, for which
                TensorFlow would wait for ever: then only what is here of it is gone, and calls end
                by themselves.

        Raises:
            tf.errors.OpError: TensorFlow failed to end it.
        """
        if self._pointer is None or os.getpid() != self._process:
            return
        with self._change:
            if self._is_closed:
                return
            # First: whatever fails now, it is not closed twice.
            self._is_closed = True
        tensorflow = _library()
        try:
            if tells:
                with _status() as status:
                    tensorflow.TF_CloseSession(self._pointer, status)
        finally:
            with self._quiet:
                # What has not returned yet would go on with memory that is freed.
                with self._change:
                    self._change.wait_for(lambda: not self._calls)
                with _status() as status:
                    tensorflow.TF_DeleteSession(self._pointer, status)
                tensorflow.TF_DeleteGraph(self._graph)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Then the library may be gone already, and with it what this module has imported.
        if not is_finalizing():
            self.close()


# The library ------------------------------------------------------------------------------------


@cache
def _library() -> Any:
    """What is used of TensorFlow's library.

    Raises:
        InstallationError: there is none, or it is not as Caramel needs it.
    """
    return library.functions(_SIGNATURES, long=_LONG)


@contextmanager
def _status() -> Iterator[int]:
    """A TF_Status; what it says in the end is raised.

    Raises:
        tf.errors.OpError: it is not OK.
    """
    try:
        with library.status() as status:
            yield status
    except library.StatusError as error:
        kind = tf1.errors.exception_type_from_error_code(error.code)
        raise kind(None, None, error.message) from None


@cache
def _options(*, is_traced: bool, limit_s: float | None) -> bytes:
    """A serialised `RunOptions`."""
    level = tf1.RunOptions.FULL_TRACE if is_traced else tf1.RunOptions.NO_TRACE
    timeout_ms = 0 if limit_s is None else max(1, round(limit_s * 1000))
    serialised: bytes = tf1.RunOptions(
        trace_level=level, timeout_in_ms=timeout_ms
    ).SerializeToString()
    return serialised


def _buffer(content: bytes) -> Any:
    """A TF_Buffer with a copy of some bytes."""
    return _library().TF_NewBufferFromString(content, len(content))


def _bytes_of(address: int | None, length: int) -> bytes:
    return ctypes.string_at(address, length) if address else b""


# Tensors ----------------------------------------------------------------------------------------


def _tensor(value: Any, number: int) -> int:
    """A TF_Tensor with a copy of a value.

    Args:
        number: of the dtype of what it is fed to.
    """
    tensorflow, dtype = _library(), tf.as_dtype(number)
    if dtype == tf.string:
        return _string_tensor(value)
    array = np.asarray(value, dtype.as_numpy_dtype, order="C")
    shape = (c_int64 * array.ndim)(*array.shape)
    tensor: int = tensorflow.TF_AllocateTensor(number, shape, array.ndim, array.nbytes)
    if array.nbytes:
        ctypes.memmove(tensorflow.TF_TensorData(tensor), array.ctypes.data, array.nbytes)
    return tensor


def _string_tensor(value: Any) -> int:
    """A TF_Tensor of strings."""
    tensorflow = _library()
    content = _buffer(tf.make_tensor_proto(value, tf.string).SerializeToString())
    # Any tensor will do: TensorFlow puts another one in its place, which frees the strings in the
    # end.
    tensor: int = tensorflow.TF_AllocateTensor(tf.uint8.as_datatype_enum, None, 0, 1)
    try:
        with _status() as status:
            tensorflow.TF_TensorFromProto(content, tensor, status)
    except BaseException:
        tensorflow.TF_DeleteTensor(tensor)
        raise
    finally:
        tensorflow.TF_DeleteBuffer(content)
    return tensor


@cache
def _check_strings() -> None:
    """Look once how far apart elements of a tensor of strings stand, which `_value` reads."""
    tensorflow, tensor = _library(), _string_tensor(["first", "second"])
    try:
        check.check_string_bytes(tensorflow.TF_TensorByteSize(tensor) // 2)
    finally:
        tensorflow.TF_DeleteTensor(tensor)


def _value(tensor: int) -> Any:
    """A copy of a TF_Tensor's content; a scalar of NumPy's or, of a string, bytes if it is one."""
    tensorflow = _library()
    dtype = tf.as_dtype(tensorflow.TF_TensorType(tensor))
    shape = [tensorflow.TF_Dim(tensor, axis) for axis in range(tensorflow.TF_NumDims(tensor))]
    data = tensorflow.TF_TensorData(tensor)
    array = np.empty(shape, dtype.as_numpy_dtype)
    if dtype == tf.string:
        array.reshape(-1)[:] = [
            _bytes_of(tensorflow.TF_StringGetDataPointer(at), tensorflow.TF_StringGetSize(at))
            # The library has no function for the size of a string's place.
            for at in range(data or 0, (data or 0) + STRING_BYTES * array.size, STRING_BYTES)
        ]
    elif array.nbytes:
        ctypes.memmove(array.ctypes.data, data, array.nbytes)
    # As `Session.run` gives scalars.
    return array[()] if array.ndim == 0 else array
