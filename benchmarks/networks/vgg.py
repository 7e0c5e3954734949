"""VGG-16 and VGG-19: Simonyan & Zisserman (arXiv:1409.1556), configurations D and E.

Their first dense layer takes 7x7 maps; those of other images than 224x224 are brought to that size
(`layers.resized`), so that all 528 and 548 MiB stay. Images have at least 32x32 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.networks import layers
from benchmarks.networks.alexnet import classifier

_FILTERS = (64, 128, 256, 512, 512)


def vgg(images: Any, classes: int, dropout: float, *, convolutions: Sequence[int]) -> list[Any]:
    """The logits; `convolutions` says how many of them are in each of the five blocks."""
    x = images
    for block, (filters, count) in enumerate(zip(_FILTERS, convolutions, strict=True), start=1):
        for number in range(1, count + 1):
            x = layers.conv(x, f"conv{block}_{number}", filters, 3)
        x = layers.max_pool(x, 2, 2, "VALID")
    return [classifier(layers.resized(x, 7), classes, dropout)]
