"""PyTorch's DistributedDataParallel with Gloo: what most people would pick instead.

It has an environment of its own (``make bench-torch``). Networks have the same architecture and
sizes, but PyTorch's own initial values, kernels and rounding, so parameters are not compared, and
its own computation time is reported: compare step ÷ max(own computation, wire limit).
"""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import (
    REPOSITORY,
    PeerError,
    Rank,
    Run,
    Running,
    Setting,
    evenly,
    launch,
    leave,
    versions_of,
)
from benchmarks.peers.data import MOMENTUM, Case, examples_of

if TYPE_CHECKING:
    from benchmarks.testbed import Testbed

PYTHON = REPOSITORY / ".venv-torch" / "bin" / "python"


class TorchDdp:
    """DistributedDataParallel."""

    name = "torch_ddp"

    def versions(self) -> dict[str, str]:
        """PyTorch's."""
        return versions_of("torch", python=str(PYTHON))

    def available(self) -> str | None:
        """Whether its environment is there."""
        if not PYTHON.exists():
            return "not installed"
        found = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True)
        return "not installed" if found.returncode else None

    def settings(self) -> list[dict[str, Any]]:
        """Sizes of buckets in MB, and a static graph."""
        sizes = [{"bucket_cap_mb": size, "static_graph": False} for size in (25, 1, 5, 100)]
        return [*sizes, {"bucket_cap_mb": 25, "static_graph": True}]

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """What a ring all-reduce sends."""
        return evenly(sizes, workers)

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a worker on each host."""
        if case.network not in NETWORKS:
            raise PeerError(f"torch_ddp has no '{case.network}'; it has {', '.join(NETWORKS)}")

        def start_all(run: Run) -> None:
            address = run.addresses(1)[0]
            threads = str(case.threads)
            env = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": threads}
            for number, host in enumerate(bed.hosts):
                run.start(host, run.command(number, python=str(PYTHON), address=address), env)

        return launch(self, __name__, bed, case, setting, start_all, compared=False)


PEER = TorchDdp()


# The networks, with layers as in `benchmarks.networks`: biases, no batch normalisation ------------


def _tiny(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)),
    )


def _vgg(torch: Any, convolutions: Sequence[int]) -> Any:
    nn = torch.nn
    layers, channels = [], 3
    for filters, count in zip((64, 128, 256, 512, 512), convolutions, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Upsample((7, 7)), nn.Flatten(), nn.Linear(512 * 49, 4096), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


def _resnet(torch: Any, units: Sequence[int]) -> Any:
    nn = torch.nn

    class Unit(nn.Module):  # type: ignore[name-defined]
        def __init__(self, channels: int, depth: int, stride: int) -> None:
            super().__init__()
            inner = depth // 4
            self.residual = nn.Sequential(
                *(nn.Conv2d(channels, inner, 1), nn.ReLU()),
                *(nn.Conv2d(inner, inner, 3, stride, padding=1), nn.ReLU()),
                nn.Conv2d(inner, depth, 1),
            )
            self.shortcut = (
                nn.Conv2d(channels, depth, 1, stride)
                if channels != depth
                else nn.MaxPool2d(1, stride)
            )
            nn.init.normal_(self.residual[-1].weight, std=1e-3)  # no sum of many units explodes

        def forward(self, x: Any) -> Any:
            return torch.relu(self.shortcut(x) + self.residual(x))

    layers = [nn.Conv2d(3, 64, 7, 2, padding=3), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for block, (count, stride) in enumerate(zip(units, (2, 2, 2, 1), strict=True)):
        for unit in range(count):
            depth = 256 * 2**block
            layers.append(Unit(channels, depth, stride if unit == count - 1 else 1))
            channels = depth
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


NETWORKS: dict[str, Callable[[Any], Any]] = {
    "tiny": _tiny,
    "vgg_16": lambda torch: _vgg(torch, (2, 2, 3, 3, 3)),
    "vgg_19": lambda torch: _vgg(torch, (2, 2, 4, 4, 4)),
    "resnet_v1_50": lambda torch: _resnet(torch, (3, 4, 6, 3)),
    "resnet_v1_101": lambda torch: _resnet(torch, (3, 4, 23, 3)),
}


def main() -> None:
    """One worker."""
    import torch
    import torch.distributed as dist

    rank = Rank.read()
    case = rank.case
    torch.set_num_threads(case.threads)
    torch.manual_seed(case.seed)
    network = NETWORKS[case.network](torch).to(memory_format=torch.channels_last)
    examples = examples_of(rank.prepared)
    batches = [
        (
            torch.from_numpy(inputs).permute(0, 3, 1, 2),  # channels last in memory already
            torch.from_numpy(labels).long(),
        )
        for inputs, labels in examples.read(rank.number, rank.workers, case.batch)
    ]

    def step_of(model: Any) -> Callable[[], float]:
        optimizer = torch.optim.SGD(model.parameters(), case.learning_rate, MOMENTUM)
        source = cycle(batches)

        def step() -> float:
            inputs, labels = next(source)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            return float(loss)

        return step

    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{rank.extra['address']}",
        rank=rank.number,
        world_size=rank.workers,
    )
    own = step_of(copy.deepcopy(network))
    model = torch.nn.parallel.DistributedDataParallel(
        network,
        bucket_cap_mb=rank.setting["bucket_cap_mb"],
        static_graph=rank.setting["static_graph"],
        gradient_as_bucket_view=True,
    )
    rank.measure(step_of(model), None, own_step=own)
    leave()


if __name__ == "__main__":
    main()
