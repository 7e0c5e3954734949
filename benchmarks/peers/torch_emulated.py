"""A model in PyTorch whose computation is emulated: a chain of kernels that sleep.

As in `benchmarks.emulate`, a kernel ends its own duration after the one before it should have
ended, not after it did: the delays of a busy processor do not add up. A pass begins by the clock.
DistributedDataParallel gets each gradient when its kernel ends, and copies it into a bucket; that
copy is its own and costs processor time here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.peers.data import Kernel

GRADIENT = 1e-3  # every entry of it: small enough for parameters to stay finite


class Emulated(nn.Module):
    """The chain; its output is the loss."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        super().__init__()
        self._device = _Device()
        self._layers = [
            (kernel, [torch.full(shape, GRADIENT) for shape in kernel.shapes]) for kernel in kernels
        ]
        self.values = nn.ParameterList(
            torch.zeros(shape) for kernel in kernels for shape in kernel.shapes
        )

    def forward(self) -> Any:
        """Do the forward pass."""
        values = iter(self.values)
        self._device.begin()
        token = torch.zeros((), requires_grad=True)
        for kernel, gradients in self._layers:
            own = [next(values) for _ in gradients]
            token = _Layer.apply(self._device, kernel, gradients, token, *own)
        return token


class _Device:
    """Sleeps in place of kernels, one after the other."""

    def __init__(self) -> None:
        self._end_s = 0.0

    def begin(self) -> None:
        """The first kernel begins now."""
        self._end_s = time.monotonic()

    def run(self, seconds: float) -> None:
        """Sleep until the end of a kernel."""
        self._end_s += seconds
        left = self._end_s - time.monotonic()
        if left > 0:
            time.sleep(left)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, device: _Device, kernel: Kernel, gradients: Any, token: Any, *values: Any
    ) -> Any:
        device.run(kernel.forward_s)
        context.device, context.kernel, context.gradients = device, kernel, gradients
        return token.clone()

    @staticmethod
    def backward(context: Any, token: Any) -> Any:
        context.device.run(context.kernel.backward_s)
        # A tensor that nobody else holds is taken over as it is; the constant itself is copied.
        return (None, None, None, token, *(each.detach() for each in context.gradients))
