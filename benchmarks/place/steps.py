"""Steps of six real networks as placement problems.

Batches and images of the first four are those of the benchmark `step --suite headline`.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.place.dags import Setting, random_devices
from caramel.planning.placement.problem import Device, Problem, equal_rates


@dataclass(frozen=True)
class Step:
    """A step of a network: examples of its batch, and height and width of images."""

    network: str
    batch: int
    image: int | None = None


STEPS: Mapping[str, Step] = {
    "AlexNet-v2": Step("alexnet_v2", 8),
    "VGG-16": Step("vgg_16", 2, 128),
    "Inception v3": Step("inception_v3", 4, 149),
    "ResNet-50": Step("resnet_v1_50", 4, 128),
    "LSTM": Step("lstm", 128),
    "transformer": Step("transformer", 4),
}

PROCESSOR = "a core"
ACCELERATOR = "K80"


@functools.cache
def step_problem(step: Step, computer: str) -> Problem:
    """The problem of a step on a single device, with real times and bytes.

    Args:
        step: which.
        computer: whose seconds ops take, by the roofline: `PROCESSOR` or `ACCELERATOR`.
    """
    from benchmarks import networks
    from benchmarks.emulate import flops_times
    from benchmarks.emulate.flops import Device as Computer
    from benchmarks.emulate.flops import sized
    from caramel.planning.placement.from_graph import problem_of

    # Of the order of a core with AVX-512. Computed and measured (`step-headline.json`) seconds of
    # the first two steps: 0.39 and 0.71, 0.81 and 1.20.
    core = Computer(150e9, 0.7, 0.9, 5e9)
    job = networks.build(step.network, batch=step.batch, image=step.image)
    context = job.context()
    times = flops_times(
        context, device=core if computer == PROCESSOR else computer, batch=step.batch
    )
    return problem_of(
        sized(context, step.batch),
        context.job,
        [Device("d0")],
        equal_rates(1, 1.0),
        seconds=times,
    ).problem


def drawn(problem: Problem, setting: Setting, seed: int) -> Problem:
    """The graph of a step with random operations and bytes, on random devices, as in section 5.1.

    Of the step only the edges and what must be together are left: the paper draws the size of all
    tensors, and knows no edges without one. Any device may execute the placeholders.
    """
    draw = random.Random(seed)
    vertices = tuple(
        replace(vertex, operations=draw.randint(*setting.sizes), resident_bytes=0.0)
        for vertex in problem.vertices
    )
    tensors = tuple(
        replace(tensor, bytes=draw.randint(*setting.sizes), hands_on=None)
        for tensor in problem.tensors
    )
    devices, rates = random_devices(setting, draw)
    return replace(
        problem, vertices=vertices, tensors=tensors, devices=devices, rates=rates, constraints={}
    )


def on_equal_devices(
    problem: Problem, count: int, memory_bytes: float, bytes_per_s: float, latency_s: float
) -> Problem:
    """The step on some devices that are like the one that it has; feeds arrive on the first."""
    devices = tuple(Device(f"d{number}", 1.0, memory_bytes) for number in range(count))
    return replace(
        problem, devices=devices, rates=equal_rates(count, bytes_per_s), latency_s=latency_s
    )
