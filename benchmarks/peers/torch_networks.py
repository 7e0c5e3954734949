"""The networks of `benchmarks.networks` in PyTorch: the same layers, parameters and order of them.

Dense layers that are convolutions over whole maps there are dense layers here. Where TensorFlow
pads one more row at the end than at the beginning, PyTorch pads both ends; sizes are the same.
Only processes of PyTorch's environment import this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

CLASSES = 1000
RESIDUAL_DEVIATION = 1e-3  # of a unit's last weights: else the sum of many units explodes
WIDTH, LAYERS = 512, 32  # of the toys

# Layers ------------------------------------------------------------------------------------------


def _conv(
    filters: int, kernel: int | tuple[int, int], stride: int = 1, *, valid: bool = False
) -> nn.Module:
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (0, 0) if valid else (sides[0] // 2, sides[1] // 2)
    return nn.Sequential(nn.LazyConv2d(filters, sides, stride, padding), nn.ReLU(inplace=True))


def _linear_conv(filters: int, kernel: int, stride: int = 1) -> nn.Module:
    return nn.LazyConv2d(filters, kernel, stride, kernel // 2)


def _separable_conv(filters: int, kernel: int, stride: int, depth: int) -> nn.Module:
    """Of images: three channels, each by itself into `depth`, then all together."""
    each = nn.Conv2d(3, 3 * depth, kernel, stride, kernel // 2, groups=3, bias=False)
    return nn.Sequential(each, _conv(filters, 1))


def _max_pool(kernel: int = 3, stride: int = 1, *, valid: bool = False) -> nn.Module:
    return nn.MaxPool2d(kernel, stride, 0 if valid else kernel // 2)


def _avg_pool() -> nn.Module:
    return nn.AvgPool2d(3, 1, 1, count_include_pad=False)


def _dense(units: int) -> nn.Module:
    return nn.Sequential(nn.LazyLinear(units), nn.ReLU(inplace=True))


def _mean_to_logits() -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(CLASSES))


class _Resized(nn.Module):
    """Maps of one size, as `benchmarks.networks.layers.resized` makes them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = (size, size)

    def forward(self, x: Any) -> Any:
        return x if x.shape[2:] == self.size else nn.functional.interpolate(x, self.size)


class _Branches(nn.Module):
    """Branches side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Any) -> Any:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _branches(*branches: Sequence[nn.Module]) -> nn.Module:
    return _Branches(*(nn.Sequential(*branch) for branch in branches))


# AlexNet, VGG and small ones ---------------------------------------------------------------------


def _classifier(size: int) -> Sequence[nn.Module]:
    dense = (_dense(4096), _dense(4096), nn.LazyLinear(CLASSES))
    return (_Resized(size), nn.Flatten(), *dense)


def _alexnet_v2() -> nn.Module:
    return nn.Sequential(
        *(_conv(64, 11, 4, valid=True), _max_pool(3, 2, valid=True)),
        *(_conv(192, 5), _max_pool(3, 2, valid=True)),
        *(_conv(384, 3), _conv(384, 3), _conv(256, 3), _max_pool(3, 2, valid=True)),
        *_classifier(5),
    )


def _vgg(convolutions: Sequence[int]) -> nn.Module:
    layers: list[nn.Module] = []
    for filters, count in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        layers += [_conv(filters, 3) for _ in range(count)]
        layers.append(_max_pool(2, 2, valid=True))
    return nn.Sequential(*layers, *_classifier(7))


def _tiny() -> nn.Module:
    return nn.Sequential(_conv(8, 3), nn.Flatten(), _dense(512), nn.LazyLinear(10))


def _toy_layers() -> list[nn.Module]:
    return [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]


def _seq_32() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(layer, nn.ReLU()) for layer in _toy_layers()))


class _Mean(nn.Module):
    """The mean of the outputs of layers side by side."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any) -> Any:
        return sum(layer(x) for layer in self.layers) / len(self.layers)


# ResNet ------------------------------------------------------------------------------------------


class _Normal(nn.Module):
    """Batch normalisation without scale, and ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, x: Any) -> Any:
        averages = (self.mean, self.variance)
        y = nn.functional.batch_norm(x, *averages, None, self.beta, self.training, 0.001, 0.001)
        return torch.relu(y)


class _Unit(nn.Module):
    """A bottleneck unit of version 1, or of version 2, which normalises first."""

    def __init__(self, channels: int, depth: int, stride: int, version: int) -> None:
        super().__init__()
        self.projects = channels != depth
        self.normal = _Normal(channels) if version == 2 else nn.Identity()
        self.shortcut = _linear_conv(depth, 1, stride) if self.projects else nn.MaxPool2d(1, stride)
        inner = depth // 4
        self.residual = nn.Sequential(
            _conv(inner, 1), _conv(inner, 3, stride), _linear_conv(depth, 1)
        )
        self.last = nn.Identity() if version == 2 else nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        normal = self.normal(x)
        return self.last(self.shortcut(normal if self.projects else x) + self.residual(normal))


def _resnet(version: int, units: Sequence[int]) -> nn.Module:
    first = _linear_conv(64, 7, 2) if version == 2 else _conv(64, 7, 2)
    layers, channels = [first, _max_pool(3, 2)], 64
    for block, (count, stride) in enumerate(zip(units, (2, 2, 2, 1), strict=True)):
        for unit in range(count):
            depth = 256 * 2**block
            layers.append(_Unit(channels, depth, stride if unit == count - 1 else 1, version))
            channels = depth
    layers += [_Normal(channels)] if version == 2 else []
    return nn.Sequential(*layers, _mean_to_logits())


# Inception ---------------------------------------------------------------------------------------


def _v1(a: int, b: tuple[int, int], c: tuple[int, int], d: int) -> nn.Module:
    double = [(_conv(first, 1), _conv(second, 3)) for first, second in (b, c)]
    return _branches([_conv(a, 1)], *double, [_max_pool(), _conv(d, 1)])


def _inception_v1() -> nn.Module:
    return nn.Sequential(
        *(_conv(64, 7, 2), _max_pool(3, 2), _conv(64, 1), _conv(192, 3), _max_pool(3, 2)),
        _v1(64, (96, 128), (16, 32), 32),
        _v1(128, (128, 192), (32, 96), 64),
        _max_pool(3, 2),
        _v1(192, (96, 208), (16, 48), 64),
        _v1(160, (112, 224), (24, 64), 64),
        _v1(128, (128, 256), (24, 64), 64),
        _v1(112, (144, 288), (32, 64), 64),
        _v1(256, (160, 320), (32, 128), 128),
        _max_pool(3, 2),
        _v1(256, (160, 320), (32, 128), 128),
        _v1(384, (192, 384), (48, 128), 128),
        _mean_to_logits(),
    )


def _v2(
    a: int, b: tuple[int, int], c: tuple[int, int], d: int, pool: Callable[[], nn.Module]
) -> nn.Module:
    double, triple = [_conv(b[0], 1), _conv(b[1], 3)], [_conv(c[0], 1), *_threes(c[1], 1)]
    return _branches([_conv(a, 1)], double, triple, [pool(), _conv(d, 1)])


def _v2_smaller(a: tuple[int, int], b: tuple[int, int]) -> nn.Module:
    double, triple = [_conv(a[0], 1), _conv(a[1], 3, 2)], [_conv(b[0], 1), *_threes(b[1], 2)]
    return _branches(double, triple, [_max_pool(3, 2)])


def _threes(filters: int, stride: int) -> list[nn.Module]:
    return [_conv(filters, 3), _conv(filters, 3, stride)]


def _inception_v2() -> nn.Module:
    return nn.Sequential(
        *(_separable_conv(64, 7, 2, depth=8), _max_pool(3, 2)),
        *(_conv(64, 1), _conv(192, 3), _max_pool(3, 2)),
        _v2(64, (64, 64), (64, 96), 32, _avg_pool),
        _v2(64, (64, 96), (64, 96), 64, _avg_pool),
        _v2_smaller((128, 160), (64, 96)),
        _v2(224, (64, 96), (96, 128), 128, _avg_pool),
        _v2(192, (96, 128), (96, 128), 128, _avg_pool),
        _v2(160, (128, 160), (128, 160), 96, _avg_pool),
        _v2(96, (128, 192), (160, 192), 96, _avg_pool),
        _v2_smaller((128, 192), (192, 256)),
        _v2(352, (192, 320), (160, 224), 128, _avg_pool),
        _v2(352, (192, 320), (192, 224), 128, _max_pool),
        _mean_to_logits(),
    )


def _v3_early(d: int) -> nn.Module:
    return _branches(
        [_conv(64, 1)],
        [_conv(48, 1), _conv(64, 5)],
        [_conv(64, 1), *_threes(96, 1)],
        [_avg_pool(), _conv(d, 1)],
    )


def _v3_middle(n: int) -> nn.Module:
    row, column = (1, 7), (7, 1)
    longest = [_conv(n, kernel) for kernel in (column, row, column)]
    return _branches(
        [_conv(192, 1)],
        [_conv(n, 1), _conv(n, row), _conv(192, column)],
        [_conv(n, 1), *longest, _conv(192, row)],
        [_avg_pool(), _conv(192, 1)],
    )


def _v3_late() -> nn.Module:
    def both() -> nn.Module:
        return _branches([_conv(384, (1, 3))], [_conv(384, (3, 1))])

    return _branches(
        [_conv(320, 1)],
        [_conv(384, 1), both()],
        [_conv(448, 1), _conv(384, 3), both()],
        [_avg_pool(), _conv(192, 1)],
    )


class _SecondPool(nn.Module):
    """Means of windows of 5x5, or of all if maps are smaller."""

    def forward(self, x: Any) -> Any:
        return nn.functional.avg_pool2d(x, min(5, *x.shape[2:]), 3)


class _InceptionV3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            *(_conv(32, 3, 2, valid=True), _conv(32, 3, valid=True), _conv(64, 3)),
            _max_pool(3, 2, valid=True),
            *(_conv(80, 1), _conv(192, 3, valid=True), _max_pool(3, 2, valid=True)),
            *(_v3_early(32), _v3_early(64), _v3_early(64)),
            _branches(
                [_conv(384, 3, 2, valid=True)],
                [_conv(64, 1), _conv(96, 3), _conv(96, 3, 2, valid=True)],
                [_max_pool(3, 2, valid=True)],
            ),
            *(_v3_middle(128), _v3_middle(160), _v3_middle(160), _v3_middle(192)),
        )
        self.second_logits = nn.Sequential(
            *(_SecondPool(), _Resized(5), _conv(128, 1), _conv(768, 5, valid=True)),
            *(nn.Flatten(), nn.LazyLinear(CLASSES)),
        )
        rows_and_columns = [_conv(192, 1), _conv(192, (1, 7)), _conv(192, (7, 1))]
        self.logits = nn.Sequential(
            _branches(
                [_conv(192, 1), _conv(320, 3, 2, valid=True)],
                [*rows_and_columns, _conv(192, 3, 2, valid=True)],
                [_max_pool(3, 2, valid=True)],
            ),
            *(_v3_late(), _v3_late(), _mean_to_logits()),
        )

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        return self.logits(x), self.second_logits(x)


# All of them -------------------------------------------------------------------------------------

NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "alexnet_v2": _alexnet_v2,
    "inception_v1": _inception_v1,
    "inception_v2": _inception_v2,
    "inception_v3": _InceptionV3,
    "resnet_v1_50": partial(_resnet, 1, (3, 4, 6, 3)),
    "resnet_v1_101": partial(_resnet, 1, (3, 4, 23, 3)),
    "resnet_v2_50": partial(_resnet, 2, (3, 4, 6, 3)),
    "resnet_v2_101": partial(_resnet, 2, (3, 4, 23, 3)),
    "resnet_v2_152": partial(_resnet, 2, (3, 8, 36, 3)),
    "vgg_16": partial(_vgg, (2, 2, 3, 3, 3)),
    "vgg_19": partial(_vgg, (2, 2, 4, 4, 4)),
    "seq_32": _seq_32,
    "par_32": lambda: _Mean(_toy_layers()),
    "tiny": _tiny,
}


def build(name: str, shape: Sequence[int]) -> nn.Module:
    """A network for examples of this shape: height, width and channels, or a vector's length.

    It gives logits, or a tuple of them if it has more than one classifier.
    """
    network = NETWORKS[name]().eval()
    with torch.no_grad():
        network(channels_first(torch.zeros(2, *shape)))  # lazy layers learn their sizes
        for unit in network.modules():
            if isinstance(unit, _Unit):
                nn.init.normal_(unit.residual[-1].weight, std=RESIDUAL_DEVIATION)
    return network.train().to(memory_format=torch.channels_last)


def channels_first(examples: Any) -> Any:
    """Images as PyTorch sees them; their channels stay last in memory."""
    return examples.permute(0, 3, 1, 2) if examples.dim() == 4 else examples


def loss(outputs: Any, labels: Any) -> Any:
    """The mean cross entropy; that of each further classifier counts 0.4."""
    logits = outputs if isinstance(outputs, tuple) else (outputs,)
    first, *others = [nn.functional.cross_entropy(each, labels) for each in logits]
    return first + 0.4 * sum(others)
