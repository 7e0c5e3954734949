"""PyTorch's DistributedDataParallel with Gloo: what most people would pick instead.

It has an environment of its own (``make bench-torch``). Networks (`torch_networks`) have the same
architecture and sizes, but PyTorch's own initial values, kernels and rounding, so parameters are
not compared, and its own computation time is reported: compare step ÷ max(own computation, wire
limit). Emulated computation (`torch_emulated`) is the same for all.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from benchmarks.peers.base import Setting, evenly, versions_of
from benchmarks.peers.data import MOMENTUM, Case, examples_of, kernels_of
from benchmarks.peers.rank import Rank, leave
from benchmarks.peers.running import REPOSITORY, Run, Running, launch

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

        def start_all(run: Run) -> None:
            address = run.addresses(1)[0]
            env = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": str(case.threads)}
            for number, host in enumerate(bed.hosts):
                run.start(host, run.command(number, python=str(PYTHON), address=address), env)

        return launch(self, __name__, bed, case, setting, start_all, compared=False)


PEER = TorchDdp()


def main() -> None:
    """One worker."""
    import torch
    import torch.distributed as dist

    rank = Rank.read()
    torch.set_num_threads(rank.case.threads)
    torch.manual_seed(rank.case.seed)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{rank.extra['address']}",
        rank=rank.number,
        world_size=rank.workers,
    )
    network, loss_of = _job(rank)

    def step_of(model: Any) -> Callable[[], float]:
        optimizer = _optimizer(rank.case, model.parameters())

        def step() -> float:
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            optimizer.step()
            return float(loss)

        return step

    @functools.cache
    def distributed_step() -> Callable[[], float]:
        # Made after the step without it was timed: it changes what a backward pass does.
        model = torch.nn.parallel.DistributedDataParallel(
            network,
            bucket_cap_mb=rank.setting["bucket_cap_mb"],
            static_graph=rank.setting["static_graph"],
            gradient_as_bucket_view=True,
            broadcast_buffers=False,  # nobody else sends moving averages
        )
        return step_of(model)

    rank.measure(lambda: distributed_step()(), None, own_step=step_of(network))
    leave()


def _job(rank: Rank) -> tuple[Any, Callable[[Any], Any]]:
    """The network, and what gives its loss on the next batch."""
    import torch

    if rank.case.accelerator is not None:
        from benchmarks.peers.torch_emulated import Emulated

        return Emulated(kernels_of(rank.prepared)), lambda model: model()

    from benchmarks.peers import torch_networks

    examples = examples_of(rank.prepared)
    batches = cycle(
        (torch_networks.channels_first(torch.from_numpy(inputs)), torch.from_numpy(labels).long())
        for inputs, labels in examples.read(rank.number, rank.workers, rank.case.batch)
    )

    def loss_of(model: Any) -> Any:
        inputs, labels = next(batches)
        return torch_networks.loss(model(inputs), labels)

    return torch_networks.build(rank.case.network, examples.shape), loss_of


def _optimizer(case: Case, parameters: Any) -> Any:
    import torch

    if case.updates == "real":
        return torch.optim.SGD(parameters, case.learning_rate, MOMENTUM)

    class Assignment(torch.optim.Optimizer):
        """In place of an optimizer: copies each gradient into its parameter."""

        @torch.no_grad()
        def step(self) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.copy_(parameter.grad)

    return Assignment(parameters, {})


if __name__ == "__main__":
    main()
