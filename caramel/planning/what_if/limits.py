"""What is a step limited by? Each resource in turn is made free; the one that saves most is it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from caramel.core.explanation import LimitedBy
from caramel.simulation.hardware import Hardware

PLENTY = 1e6
"""How many times faster what is free is."""


def saved_by(
    step_s: float,
    predict: Callable[[Hardware], float],
    hardware: Hardware,
    *,
    computation_s: float,
    sent_bytes: float,
) -> dict[LimitedBy, float]:
    """How much shorter a step would be with any amount of each resource, in seconds.

    * "computation": an infinitely fast device.
    * "wire": links that carry any amount at once. What a processor has to do for it stays.
    * "latency": transfers that take no time beside their bytes.
    * "processor": copying, adding, and asking for and handling what is sent takes nothing, of the
      device neither.

    Args:
        step_s: of the step as it is.
        predict: the step on other hardware, with the same plan.
        hardware: as it is.
        computation_s: of a step, as the ops were timed.
        sent_bytes: by each worker in a step.
    """
    free = dataclasses.replace(
        hardware,
        cores=None,
        processor_s_per_message=0.0,
        reduce_s_per_byte=0.0,
        handling_s_per_byte=0.0,
        gaps_s_per_byte={},
        copy_s_per_byte=0.0,
        message_s=0.0,
        request_s=0.0,
    )
    variations: dict[LimitedBy, Hardware] = {
        "computation": _slower(hardware, 1 / PLENTY),
        "wire": _with_any_rate(hardware, computation_s, sent_bytes),
        "latency": hardware.with_latency(0.0),
        "processor": free,
    }
    return {name: max(0.0, step_s - predict(each)) for name, each in variations.items()}


def _slower(hardware: Hardware, factor: float, plus: float = 0.0) -> Hardware:
    hosts = [dataclasses.replace(h, slowdown=h.slowdown * factor + plus) for h in hardware.hosts]
    return dataclasses.replace(hardware, hosts=tuple(hosts))


def _with_any_rate(hardware: Hardware, computation_s: float, sent_bytes: float) -> Hardware:
    """Where transfers take no time, they cannot slow down what is computed meanwhile; it is slower
    all the time instead."""
    wide = hardware.with_rates(PLENTY)
    if hardware.cores is None or not computation_s:
        return wide
    transferring_s = hardware.processor_s_per_byte * sent_bytes / hardware.cores
    slower = _slower(wide, 1.0, transferring_s / computation_s)
    return dataclasses.replace(slower, processor_s_per_byte=0.0)
