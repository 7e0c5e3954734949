"""PyTorch's all-reduce with Gloo, in place, and a division in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.allreduce.member import PERIOD, Cell, Place, mean_factor, serve

if TYPE_CHECKING:
    from benchmarks.allreduce.group import Group


@dataclass(frozen=True)
class System:
    """``torch.distributed.all_reduce``."""

    name: str = "torch_gloo"
    sleeps: bool = True

    def available(self) -> str | None:
        """Whether its environment is there."""
        from benchmarks.peers.torch_ddp import PEER

        return PEER.available()

    def versions(self) -> dict[str, str]:
        """PyTorch's."""
        from benchmarks.peers.torch_ddp import PEER

        return PEER.versions()

    def start(self, group: Group) -> int:
        """A rank on each host."""
        from benchmarks.peers.torch_ddp import PYTHON

        address = f"{group.bed.hosts[0].address}:{group.port()}"
        env = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
        for rank, host in enumerate(group.bed.hosts):
            command = group.command(__name__, rank, python=str(PYTHON), address=address)
            group.popen(host, command, env)
        return len(group.bed.hosts)


def main() -> None:
    """One rank."""
    import torch
    import torch.distributed as dist

    place = Place.read()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{place.extra['address']}",
        rank=place.rank,
        world_size=place.workers,
    )

    def make(elements: int) -> Mapping[str, Cell]:
        ramp = (1 + torch.arange(elements) % PERIOD).float()
        tensor = torch.empty(elements)

        def step() -> None:
            dist.all_reduce(tensor)
            tensor.div_(place.workers)

        def error() -> Any:
            return (tensor - mean_factor(place.workers) * ramp).abs().max().item()

        return {"": Cell(lambda: tensor.copy_(ramp * (place.rank + 1)), step, error)}

    serve(place, make)


if __name__ == "__main__":
    main()
