"""The systems that Caramel is measured against, each on the hosts of one test bed.

| file                | peer                                                                       |
|---------------------|----------------------------------------------------------------------------|
| `alone`             | one worker without aggregation                                             |
| `plain`             | Caramel with one aggregation per gradient, and no plan                     |
| `planned`           | Caramel with a plan                                                        |
| `traced`            | what it is planned from: times of ops while all compute                    |
| `mirrored`          | MultiWorkerMirroredStrategy                                                |
| `parameter_servers` | parameter servers with synchronous workers (`SyncReplicasOptimizer`)       |
| `mpi`               | an MPI all-reduce of each gradient between computation and update          |
| `torch_ddp`         | PyTorch DistributedDataParallel with Gloo                                  |
| `horovod`           | Horovod with Gloo or MPI                                                   |
| `base`              | what every peer is asked, and what it shows                                |
| `running`, `rank`   | its processes, as seen by the process that measures, and by themselves     |
| `data`, `graph`     | examples and initial values; the network, for those that run TensorFlow    |
| `emulated`          | the computation of a case on an emulated accelerator                       |
| `kernels`           | the same for peers without TensorFlow, layer by layer                      |
| `validate`          | which results count                                                        |

    with Testbed(2, "1gbit", pin_cores=True) as bed:
        peer = get("mirrored")
        result = run(peer, bed, Case("resnet_v1_50", batch=4, image=128), peer.settings()[0])

`run` runs one peer alone; `Peer.start` gives a `Running`, whose blocks of steps can alternate with
those of other peers.
"""

from __future__ import annotations

import importlib

from benchmarks.peers.base import Peer, PeerError, Result
from benchmarks.peers.data import Case
from benchmarks.peers.running import Running, run

NAMES = (
    "alone",
    "plain",
    "planned",
    "mirrored",
    "parameter_servers",
    "mpi",
    "torch_ddp",
    "horovod",
)

__all__ = ["NAMES", "Case", "Peer", "PeerError", "Result", "Running", "get", "run"]


def get(name: str) -> Peer:
    """The peer of this name.

    Raises:
        PeerError: there is none.
    """
    if name not in NAMES:
        raise PeerError(f"there is no peer '{name}'; there are {', '.join(NAMES)}")
    peer: Peer = importlib.import_module(f"benchmarks.peers.{name}").PEER
    return peer
