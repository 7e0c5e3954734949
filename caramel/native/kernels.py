"""Has TensorFlow a kernel for an op on a kind of device? As its library has registered them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_size_t, c_void_p
from functools import cache
from typing import Any

from tensorflow.core.framework.kernel_def_pb2 import KernelList

from caramel.native import library

_ANY_ACCELERATOR = "DEFAULT"  # kernels for whatever is no processor


class _Buffer(Structure):
    """TF_Buffer: bytes, and how to free them."""

    _fields_ = (("data", c_void_p), ("length", c_size_t), ("free", c_void_p))


_SIGNATURES: library.Signatures = {
    "TF_GetRegisteredKernelsForOp": (POINTER(_Buffer), (c_char_p, c_void_p)),
    "TF_DeleteBuffer": (None, (POINTER(_Buffer),)),
}


def has_kernel(node: Any, kind: str) -> bool:
    """Whether an op can run on a kind of device.

    Args:
        node: a NodeDef, with its attributes.
        kind: as device names have it, such as "GPU".
    """
    return any(
        kernel.device_type in (kind, _ANY_ACCELERATOR) and _fits(kernel, node)
        for kernel in _kernels(node.op)
    )


def _fits(kernel: Any, node: Any) -> bool:
    """Whether a kernel is for the dtypes of an op."""
    return all(
        node.attr[constraint.name].type in constraint.allowed_values.list.type
        for constraint in kernel.constraint
        # Where a node does not say its dtype, any fits.
        if node.attr[constraint.name].type
    )


@cache
def _kernels(op: str) -> tuple[Any, ...]:
    """The kernels of a kind of op, as KernelDefs."""
    functions = _functions()
    with library.status() as status:
        buffer = functions.TF_GetRegisteredKernelsForOp(op.encode(), status)
    try:
        content = ctypes.string_at(buffer.contents.data, buffer.contents.length)
    finally:
        functions.TF_DeleteBuffer(buffer)
    return tuple(KernelList.FromString(content).kernel)


@cache
def _functions() -> Any:
    return library.functions(_SIGNATURES)
