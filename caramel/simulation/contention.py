"""How much longer does computing take where the processor also sends and receives?

Ops are timed while nothing is transferred. On an accelerator they take as long in training; on a
processor they share its cores with gRPC and the kernel, which copy every byte that is sent or
received. So windows on the clock of a training step are longer than those of the timed ops.
"""

from __future__ import annotations

import dataclasses

from caramel.core.calibration import DEFAULT, Calibration
from caramel.core.time_facts import TransferWindows, Window


def stretched(
    windows: TransferWindows,
    *,
    cores: int | None,
    sent_bytes: float,
    calibration: Calibration = DEFAULT,
) -> TransferWindows:
    """The windows of a step in which a worker also sends and receives.

    Args:
        windows: those of computation alone.
        cores: how many cores compute and transfer; None if an accelerator computes.
        sent_bytes: by each worker in a step.
        calibration: what transfers cost the processor.
    """
    if cores is None or windows.computation_s <= 0:
        return windows
    transferring_s = calibration.processor_s_per_byte * sent_bytes / cores
    factor = 1 + transferring_s / windows.computation_s
    return dataclasses.replace(
        windows,
        windows={
            name: Window(window.ready_s * factor, window.needed_s * factor)
            for name, window in windows.windows.items()
        },
        computation_s=windows.computation_s * factor,
        forward_s=windows.forward_s * factor,
    )
