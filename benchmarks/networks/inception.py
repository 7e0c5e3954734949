"""Inception v1 (arXiv:1409.4842), v2 (arXiv:1502.03167) and v3 (arXiv:1512.00567).

The counts of variables in the papers are those of networks whose convolutions have biases and no
batch normalisation. A module is a table: its branches, each a list of steps. Maps at the end are
averaged whatever their size; v3's second classifier takes 5x5 maps, to which those of other images
than 299x299 are brought (`layers.resized`). Images have at least 8x8 pixels, 75x75 for v3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from benchmarks.networks import layers

tf1 = tf.compat.v1


@dataclass(frozen=True, slots=True)
class _Conv:
    filters: int
    kernel: tuple[int, int]
    stride: int = 1
    padding: str = "SAME"


@dataclass(frozen=True, slots=True)
class _Pool:
    kind: str
    stride: int = 1
    padding: str = "SAME"


@dataclass(frozen=True, slots=True)
class _Both:
    """Two convolutions side by side, with 1x3 and 3x1 kernels."""

    filters: int


_Step = _Conv | _Pool | _Both
_Branch = tuple[_Step, ...]
_Module = tuple[_Branch, ...]

_AVG, _MAX = _Pool("avg"), _Pool("max")


def _one(filters: int) -> _Conv:
    return _Conv(filters, (1, 1))


def _three(filters: int, stride: int = 1, padding: str = "SAME") -> _Conv:
    return _Conv(filters, (3, 3), stride, padding)


def _five(filters: int) -> _Conv:
    return _Conv(filters, (5, 5))


def _row(filters: int) -> _Conv:
    return _Conv(filters, (1, 7))


def _column(filters: int) -> _Conv:
    return _Conv(filters, (7, 1))


# Version 1 --------------------------------------------------------------------------------------


def _v1(a: int, b: tuple[int, int], c: tuple[int, int], d: int) -> _Module:
    return ((_one(a),), (_one(b[0]), _three(b[1])), (_one(c[0]), _three(c[1])), (_MAX, _one(d)))


_V1: Mapping[str, _Module | _Pool] = {
    "Mixed_3b": _v1(64, (96, 128), (16, 32), 32),
    "Mixed_3c": _v1(128, (128, 192), (32, 96), 64),
    "MaxPool_4a": _Pool("max", 2),
    "Mixed_4b": _v1(192, (96, 208), (16, 48), 64),
    "Mixed_4c": _v1(160, (112, 224), (24, 64), 64),
    "Mixed_4d": _v1(128, (128, 256), (24, 64), 64),
    "Mixed_4e": _v1(112, (144, 288), (32, 64), 64),
    "Mixed_4f": _v1(256, (160, 320), (32, 128), 128),
    "MaxPool_5a": _Pool("max", 2),
    "Mixed_5b": _v1(256, (160, 320), (32, 128), 128),
    "Mixed_5c": _v1(384, (192, 384), (48, 128), 128),
}


def inception_v1(images: Any, classes: int, dropout: float) -> list[Any]:
    """The logits."""
    x = layers.conv(images, "Conv2d_1a", 64, 7, 2)
    x = layers.max_pool(x, 3, 2)
    x = layers.conv(x, "Conv2d_2b", 64, 1)
    x = layers.conv(x, "Conv2d_2c", 192, 3)
    x = layers.max_pool(x, 3, 2)
    return [_logits(_stack(x, _V1), classes, dropout)]


# Version 2 --------------------------------------------------------------------------------------


def _v2(a: int, b: tuple[int, int], c: tuple[int, int], d: int, pool: _Pool = _AVG) -> _Module:
    double = (_one(c[0]), _three(c[1]), _three(c[1]))
    return ((_one(a),), (_one(b[0]), _three(b[1])), double, (pool, _one(d)))


def _v2_smaller(a: tuple[int, int], b: tuple[int, int]) -> _Module:
    double = (_one(b[0]), _three(b[1]), _three(b[1], 2))
    return ((_one(a[0]), _three(a[1], 2)), double, (_Pool("max", 2),))


_V2: Mapping[str, _Module] = {
    "Mixed_3b": _v2(64, (64, 64), (64, 96), 32),
    "Mixed_3c": _v2(64, (64, 96), (64, 96), 64),
    "Mixed_4a": _v2_smaller((128, 160), (64, 96)),
    "Mixed_4b": _v2(224, (64, 96), (96, 128), 128),
    "Mixed_4c": _v2(192, (96, 128), (96, 128), 128),
    "Mixed_4d": _v2(160, (128, 160), (128, 160), 96),
    "Mixed_4e": _v2(96, (128, 192), (160, 192), 96),
    "Mixed_5a": _v2_smaller((128, 192), (192, 256)),
    "Mixed_5b": _v2(352, (192, 320), (160, 224), 128),
    "Mixed_5c": _v2(352, (192, 320), (192, 224), 128, _MAX),
}


def inception_v2(images: Any, classes: int, dropout: float) -> list[Any]:
    """The logits."""
    x = layers.separable_conv(images, "Conv2d_1a", 64, 7, 2, depth=8)
    x = layers.max_pool(x, 3, 2)
    x = layers.conv(x, "Conv2d_2b", 64, 1)
    x = layers.conv(x, "Conv2d_2c", 192, 3)
    x = layers.max_pool(x, 3, 2)
    return [_logits(_stack(x, _V2), classes, dropout)]


# Version 3 --------------------------------------------------------------------------------------


def _v3_early(d: int) -> _Module:
    double = (_one(64), _three(96), _three(96))
    return ((_one(64),), (_one(48), _five(64)), double, (_AVG, _one(d)))


def _v3_middle(n: int) -> _Module:
    double = (_one(n), _column(n), _row(n), _column(n), _row(192))
    return ((_one(192),), (_one(n), _row(n), _column(192)), double, (_AVG, _one(192)))


_V3_LATE: _Module = (
    (_one(320),),
    (_one(384), _Both(384)),
    (_one(448), _three(384), _Both(384)),
    (_AVG, _one(192)),
)
_V3_SMALLER = _Pool("max", 2, "VALID")

_V3: Mapping[str, _Module] = {
    "Mixed_5b": _v3_early(32),
    "Mixed_5c": _v3_early(64),
    "Mixed_5d": _v3_early(64),
    "Mixed_6a": (
        (_three(384, 2, "VALID"),),
        (_one(64), _three(96), _three(96, 2, "VALID")),
        (_V3_SMALLER,),
    ),
    "Mixed_6b": _v3_middle(128),
    "Mixed_6c": _v3_middle(160),
    "Mixed_6d": _v3_middle(160),
    "Mixed_6e": _v3_middle(192),
}
_V3_LAST: Mapping[str, _Module] = {
    "Mixed_7a": (
        (_one(192), _three(320, 2, "VALID")),
        (_one(192), _row(192), _column(192), _three(192, 2, "VALID")),
        (_V3_SMALLER,),
    ),
    "Mixed_7b": _V3_LATE,
    "Mixed_7c": _V3_LATE,
}


def inception_v3(images: Any, classes: int, dropout: float) -> list[Any]:
    """The logits, and those of the second classifier further down."""
    x = layers.conv(images, "Conv2d_1a", 32, 3, 2, padding="VALID")
    x = layers.conv(x, "Conv2d_2a", 32, 3, padding="VALID")
    x = layers.conv(x, "Conv2d_2b", 64, 3)
    x = layers.max_pool(x, 3, 2, "VALID")
    x = layers.conv(x, "Conv2d_3b", 80, 1, padding="VALID")
    x = layers.conv(x, "Conv2d_4a", 192, 3, padding="VALID")
    x = layers.max_pool(x, 3, 2, "VALID")
    x = _stack(x, _V3)
    second = _second_logits(x, classes)
    return [_logits(_stack(x, _V3_LAST), classes, dropout), second]


def _second_logits(x: Any, classes: int) -> Any:
    with tf1.variable_scope("AuxLogits"):
        x = layers.avg_pool(x, min(5, x.shape[1], x.shape[2]), 3, "VALID")
        x = layers.conv(layers.resized(x, 5), "Conv2d_1b", 128, 1)
        x = layers.conv(x, "Conv2d_2a", 768, 5, padding="VALID")
        x = layers.conv(x, "Conv2d_2b", classes, 1, activation=layers.linear, gain=1.0)
        return tf.squeeze(x, [1, 2])


# Modules ----------------------------------------------------------------------------------------


def _stack(x: Any, modules: Mapping[str, _Module | _Pool]) -> Any:
    for name, module in modules.items():
        if isinstance(module, _Pool):
            x = _pool(x, module)
            continue
        with tf1.variable_scope(name):
            x = tf.concat([_branch(x, n, steps) for n, steps in enumerate(module)], 3)
    return x


def _branch(x: Any, number: int, steps: Iterable[_Step]) -> Any:
    with tf1.variable_scope(f"Branch_{number}"):
        for position, step in enumerate(steps):
            name = f"Conv2d_{position}"
            if isinstance(step, _Pool):
                x = _pool(x, step)
            elif isinstance(step, _Both):
                flat = layers.conv(x, f"{name}_1x3", step.filters, (1, 3))
                tall = layers.conv(x, f"{name}_3x1", step.filters, (3, 1))
                x = tf.concat([flat, tall], 3)
            else:
                x = layers.conv(
                    x, name, step.filters, step.kernel, step.stride, padding=step.padding
                )
    return x


def _pool(x: Any, step: _Pool) -> Any:
    pool = layers.max_pool if step.kind == "max" else layers.avg_pool
    return pool(x, 3, step.stride, step.padding)


def _logits(x: Any, classes: int, dropout: float) -> Any:
    with tf1.variable_scope("Logits"):
        x = layers.dropout(tf.reduce_mean(x, [1, 2], keepdims=True), dropout)
        x = layers.conv(x, "Conv2d_1c", classes, 1, activation=layers.linear, gain=1.0)
        return tf.squeeze(x, [1, 2])
