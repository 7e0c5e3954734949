"""Random graphs of the sizes of the networks in the paper's Table 1.

Its three networks cannot be had any more as they were. What is known of them is how many vertices,
edges and collocated vertices each has, and which part of the vertices is on the critical path. So
vertices stand in as many layers as that path has vertices, one of each layer on a chain, and what
else there is reads from layers before.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from caramel.planning.placement.problem import Device, Problem, Tensor, Vertex

LONGEST_SKIP = 3  # layers that an edge leads on, at most


@dataclass(frozen=True)
class Shape:
    """How large a graph is.

    Attributes:
        vertices: how many.
        edges: how many, at least one into each vertex that is in no first layer.
        collocated: vertices that must be with another one.
        on_path: the part of the vertices that the longest path has.
    """

    vertices: int
    edges: int
    collocated: int
    on_path: float


PAPER = {
    "convolutional_network": Shape(347, 531, 104, 0.24),
    "recurrent_network": Shape(3_069, 5_533, 533, 0.39),
    "dynamic_rnn": Shape(5_271, 9_214, 1_356, 0.24),
}
LARGE = Shape(20_000, 36_000, 4_000, 0.1)
"""The largest graph for which the limits on times hold."""


@dataclass(frozen=True)
class Setting:
    """Which devices there are, and ranges of random numbers (section 5.1)."""

    devices: int = 50
    speeds: tuple[int, int] = (10, 100)
    rates: tuple[int, int] = (10, 60)
    sizes: tuple[int, int] = (1, 100)


def random_dag(shape: Shape, setting: Setting, seed: int) -> Problem:
    """A random graph on random devices; rates are the same in both directions."""
    draw = random.Random(seed)
    layers = _layers(shape, draw)
    edges = _edges(layers, shape, draw)
    return Problem(
        tuple(Vertex(f"v{n}", draw.randint(*setting.sizes)) for n in range(shape.vertices)),
        tuple(Tensor(source, draw.randint(*setting.sizes), (target,)) for source, target in edges),
        *random_devices(setting, draw),
        together=_together(shape, draw),
    )


def random_devices(
    setting: Setting, draw: random.Random
) -> tuple[tuple[Device, ...], tuple[tuple[float, ...], ...]]:
    """Devices of random speeds, and the rates between them."""
    count = setting.devices
    rates = [[1.0] * count for _ in range(count)]
    for first in range(count):
        for second in range(first):
            rates[first][second] = rates[second][first] = draw.randint(*setting.rates)
    devices = tuple(Device(f"d{n}", draw.randint(*setting.speeds)) for n in range(count))
    return devices, tuple(map(tuple, rates))


def _layers(shape: Shape, draw: random.Random) -> list[list[int]]:
    """Vertices of each layer, ascending; the first of each is on the chain."""
    count = max(1, round(shape.on_path * shape.vertices))
    places = sorted([*range(count), *draw.choices(range(count), k=shape.vertices - count)])
    layers: list[list[int]] = [[] for _ in range(count)]
    for vertex, place in enumerate(places):
        layers[place].append(vertex)
    return layers


def _edges(layers: list[list[int]], shape: Shape, draw: random.Random) -> list[tuple[int, int]]:
    """The chain, one edge into each other vertex, and more until there are enough."""
    place = {vertex: number for number, layer in enumerate(layers) for vertex in layer}
    first = len(layers[0])
    edges = {(before[0], after[0]): None for before, after in itertools.pairwise(layers)}
    chain = {layer[0] for layer in layers}

    def before(vertex: int) -> int:
        skip = draw.randint(1, min(LONGEST_SKIP, place[vertex]))
        return draw.choice(layers[place[vertex] - skip])

    for vertex in range(first, shape.vertices):
        if vertex not in chain:
            edges[before(vertex), vertex] = None
    while len(edges) < shape.edges:
        vertex = draw.randrange(first, shape.vertices)
        edges[before(vertex), vertex] = None
    return list(edges)


def _together(shape: Shape, draw: random.Random) -> tuple[tuple[int, ...], ...]:
    """Collocated vertices, two by two and a last three: an op with the state that it uses."""
    chosen = sorted(draw.sample(range(shape.vertices), shape.collocated))
    pairs = [tuple(chosen[n : n + 2]) for n in range(0, len(chosen) - 1, 2)]
    if len(chosen) % 2:
        pairs[-1] = (*pairs[-1], chosen[-1])
    return tuple(pairs)
