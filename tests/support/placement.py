"""Problems of placement: those with values that were computed by hand, and random ones."""

from __future__ import annotations

import math
import random

from caramel.planning.placement.problem import Device, Problem, Tensor, Vertex, equal_rates


def problem(operations, tensors, speeds, rate, *, memory=math.inf, resident=0, **more):
    """A problem with vertices v0, v1, ... and devices d0, d1, ... that are all connected alike.

    Args:
        operations: of each vertex.
        tensors: source, bytes and readers of each.
        speeds: of each device.
        rate: of all links.
        memory: of each device.
        resident: bytes of each vertex.
        more: what else a problem has.
    """
    return Problem(
        tuple(Vertex(f"v{n}", c, resident) for n, c in enumerate(operations)),
        tuple(Tensor(source, size, readers) for source, size, readers in tensors),
        tuple(Device(f"d{n}", speed, memory) for n, speed in enumerate(speeds)),
        equal_rates(len(speeds), rate),
        **more,
    )


def diamond(rate, **more):
    tensors = [(0, 4, (1, 2)), (1, 6, (3,)), (2, 6, (3,))]
    return problem((2, 3, 4, 1), tensors, (1, 2), rate, **more)


def constrained_diamond():
    return diamond(2, together=((0, 3),), constraints={"v1": ("d0",)})


def chain(memory):
    """Three vertices, of which a device of 12 bytes holds two."""
    tensors = [(0, 2, (1,)), (1, 2, (2,))]
    return problem((4, 4, 4), tensors, (2, 1), 1, memory=memory, resident=4)


def digits(text):
    """A placement that is written as one digit for each vertex."""
    return tuple(map(int, text))


def random_problem(seed, *, vertices=6, devices=2, constraints=False, memory=math.inf, small=False):
    """A random DAG of few vertices on devices of random speeds and rates.

    Args:
        seed: the same gives the same problem.
        vertices: how many.
        devices: how many.
        constraints: whether some vertices must be together or on some devices.
        memory: of each device.
        small: whether all numbers are small integers, so that there are many ties.
    """
    draw = random.Random(seed)
    most = 3 if small else 100
    tensors = []
    for source in range(vertices - 1):
        for _ in range(draw.randint(0, 2)):
            later = range(source + 1, vertices)
            readers = draw.sample(later, min(len(later), draw.randint(1, 2)))
            tensors.append(Tensor(source, draw.randint(0 if small else 1, most), tuple(readers)))
    together, constrained = [], {}
    if constraints:
        together = [tuple(draw.sample(range(vertices), 2)) for _ in range(vertices // 4)]
        alone = sorted(set(range(vertices)) - {v for members in together for v in members})
        for vertex in draw.sample(alone, min(len(alone), vertices // 4)):
            allowed = draw.sample(range(devices), draw.randint(1, devices))
            constrained[f"v{vertex}"] = tuple(f"d{number}" for number in allowed)
    lowest = 1 if small else 10
    rates = [[draw.randint(lowest, most) for _ in range(devices)] for _ in range(devices)]
    return Problem(
        tuple(
            Vertex(f"v{n}", draw.randint(0 if small else 1, most), draw.randint(0, 5))
            for n in range(vertices)
        ),
        tuple(tensors),
        tuple(Device(f"d{n}", draw.randint(lowest, most), memory) for n in range(devices)),
        tuple(map(tuple, rates)),
        latency_s=draw.choice((0.0, 0.5)) if small else 0.0,
        together=tuple(together),
        constraints=constrained,
    )
