"""The systems that are measured, one module each.

| file               | system                                                                      |
|--------------------|-----------------------------------------------------------------------------|
| `caramel_plain`    | Caramel, one aggregation in a step, with every pattern and depth            |
| `horovod_gloo`     | Horovod with Gloo; the variant is its cycle time in milliseconds            |
| `torch_gloo`       | PyTorch's ``torch.distributed.all_reduce`` with Gloo                        |
| `mpi`              | ``Allreduce`` of mpi4py on MPICH                                            |
| `mirrored`         | the all-reduce of TensorFlow's MultiWorkerMirroredStrategy                  |
| `parameter_server` | one TensorFlow server adds up what all workers send, and they read the mean |
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.allreduce.group import System


def get(name: str) -> System:
    """The system called ``module`` or ``module:variant``."""
    module, _, variant = name.partition(":")
    found = importlib.import_module(f"{__name__}.{module}").System
    system: System = found(variant) if variant else found()
    return system
