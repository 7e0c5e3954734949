"""Cases, and what is prepared for them: examples and initial values that are equal for all peers.

Examples are random numbers drawn by NumPy from the case's seed and written to a file, one record
for each: float32 pixels and an int32 label. Worker w of N reads records w, w + N, w + 2N, ...,
`batch` at a time, over and over. Initial values are those of the network built for one device with
the case's seed; a process of its own makes them, so that this file imports no TensorFlow:

    python -m benchmarks.peers.data DIRECTORY CASE WORKERS

A case with an accelerator has emulated computation instead of examples (`emulated`, `kernels`).
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from benchmarks.environment import TENSORFLOW

BATCHES = 5
"""Batches of all workers that the file has, unless it would be too large."""

LARGEST_FILE_BYTES = 2**29
INITIAL, EXAMPLES, FACTS = "initial.npz", "examples.bin", "facts.json"
KERNELS = "kernels.json"

Updates = Literal["real", "none"]


@dataclass(frozen=True)
class Case:
    """What is trained, and how often.

    Attributes:
        network: one of `benchmarks.networks.NETWORKS`, "tiny", or one tensor (`graph.TENSORS`).
        batch: examples per worker and step.
        image: height and width of the images in pixels; None for the network's own.
        steps: timed steps.
        warm_up: steps before them, not timed.
        threads: threads of each worker for one op.
        inter_op_threads: ops that TensorFlow may run at once. With one, what is to be sent waits
            behind all computation.
        learning_rate: of momentum, with 0.9, which all peers use.
        seed: of initial values and examples.
        timeout_s: how long each part of a run may take, in seconds.
        accelerator: one of `benchmarks.emulate.DEVICES` if the computation is emulated; None if it
            is real.
        slowdown: emulated times are multiplied by it, for a network slower than the one it stands
            for.
        computation_s_per_byte: if given, emulated times are scaled so that a step computes for so
            long for each byte of its parameters, in place of `slowdown`.
        updates: "none" if a step assigns gradients to parameters instead of updating them, which
            costs nothing; only with an accelerator.
        network_repeats: how often each aggregation is measured where a plan needs it.

    Raises:
        ValueError: these do not go together.
    """

    network: str
    batch: int
    image: int | None = None
    steps: int = 10
    warm_up: int = 2
    threads: int = 1
    inter_op_threads: int = 2
    learning_rate: float = 0.01
    seed: int = 1
    timeout_s: float = 1800.0
    accelerator: str | None = None
    slowdown: float = 1.0
    computation_s_per_byte: float | None = None
    updates: Updates = "real"
    network_repeats: int = 20

    def __post_init__(self) -> None:
        """Refuse what has no meaning."""
        if self.updates not in get_args(Updates):
            raise ValueError(f"updates are 'real' or 'none', not {self.updates!r}")
        if not (self.slowdown > 0 and math.isfinite(self.slowdown)):
            raise ValueError(f"a slowdown of {self.slowdown} means nothing")
        if self.accelerator is None and (self.updates, self.slowdown) != ("real", 1.0):
            raise ValueError("slowdown and updates are for emulated accelerators; name one")

    @property
    def checked_steps(self) -> int:
        """Steps from the initial values after which parameters are compared.

        Where a step puts gradients in the place of parameters, the last one alone counts; the first
        of a deferring plan is unlike the others.
        """
        return 5 if self.updates == "real" else 2


MOMENTUM = 0.9
RUN = (
    *("steps", "warm_up", "threads", "inter_op_threads", "learning_rate", "timeout_s", "updates"),
    "network_repeats",
)
"""The fields of a case that nothing prepared depends on."""


@dataclass(frozen=True)
class Prepared:
    """What was prepared for a case.

    Attributes:
        directory: where it is.
        sizes: bytes of each parameter, in the order of the network.
    """

    directory: Path
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """What an emulated accelerator does for one layer.

    Attributes:
        shapes: of the layer's parameters.
        forward_s: seconds of the forward pass, up to the end of this layer.
        backward_s: seconds of the backward pass, from the layer behind it to its gradients.
    """

    shapes: tuple[tuple[int, ...], ...]
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Examples:
    """The examples of a case.

    Attributes:
        shape: of one example's inputs.
        classes: labels are below this.
        path: the file.
    """

    shape: tuple[int, ...]
    classes: int
    path: str

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        return 4 * math.prod(self.shape) + 4

    def read(self, worker: int, workers: int, batch: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """The batches of one worker: inputs and labels."""
        records = np.fromfile(self.path, np.uint8).reshape(-1, self.record_bytes)
        own = np.ascontiguousarray(records[worker::workers])
        labels = own[:, -4:].copy().view(np.int32)[:, 0]
        inputs = own[:, :-4].copy().view(np.float32).reshape(-1, *self.shape)
        starts = range(0, len(own), batch)
        return [(inputs[i : i + batch], labels[i : i + batch]) for i in starts]


def examples_of(directory: str | Path) -> Examples:
    """The examples that were prepared in a directory."""
    facts = json.loads((Path(directory) / FACTS).read_text())
    path = str(Path(directory) / EXAMPLES)
    return Examples(tuple(facts["shape"]), facts["classes"], path)


def kernels_of(directory: str | Path) -> list[Kernel]:
    """The layers of the emulated computation prepared in a directory, in forward order."""
    return [
        Kernel(tuple(map(tuple, each["shapes"])), each["forward_s"], each["backward_s"])
        for each in json.loads((Path(directory) / KERNELS).read_text())
    ]


def initial_values(directory: str | Path) -> dict[str, np.ndarray]:
    """The initial values that were prepared in a directory, by variable names."""
    with np.load(Path(directory) / INITIAL) as file:
        return {name: file[name] for name in file.files}


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Write values by name, as an npz file."""
    np.savez(path, **values)


@functools.cache
def _root() -> Path:
    """A directory for this process; removed at its end, by itself and not by a fork."""
    path, owner = tempfile.mkdtemp(prefix="peers-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return Path(path)


def prepared(case: Case, workers: int) -> Prepared:
    """What a case needs before it runs; made once and kept while this process lives.

    Cases that differ only in how they are run share it.
    """
    standard = Case(case.network, case.batch)
    return _prepared(replace(case, **{key: getattr(standard, key) for key in RUN}), workers)


@functools.cache
def _prepared(case: Case, workers: int) -> Prepared:
    directory = Path(tempfile.mkdtemp(prefix=f"{case.network}-", dir=_root()))
    made = subprocess.run(
        [sys.executable, "-m", __name__, str(directory), json.dumps(asdict(case)), str(workers)],
        env={**os.environ, **TENSORFLOW},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise RuntimeError(f"nothing could be prepared for {case}: {made.stderr[-2000:]}")
    facts = json.loads((directory / FACTS).read_text())
    return Prepared(directory, tuple(facts["sizes"]))


def _prepare(directory: Path, case: Case, workers: int) -> None:
    from benchmarks.peers import graph

    network = graph.network(case.network)
    shape = graph.example_shape(case)
    initial = graph.draw_initial_values(case)
    write_values(directory / INITIAL, initial)
    if case.accelerator is None:
        _write_examples(directory / EXAMPLES, case, shape, network.classes, workers)
    else:
        from benchmarks.peers import emulated

        emulated.write(directory, case, graph.context_of(case))
    sizes = [value.nbytes for value in initial.values()]
    facts = {"shape": shape, "classes": network.classes, "sizes": sizes}
    (directory / FACTS).write_text(json.dumps(facts))


def _write_examples(
    path: Path, case: Case, shape: tuple[int, ...], classes: int, workers: int
) -> None:
    random = np.random.default_rng(case.seed)
    share = case.batch * workers
    batches = max(1, min(BATCHES, LARGEST_FILE_BYTES // (4 * math.prod(shape) * share)))
    with path.open("wb") as file:
        for label in random.integers(0, classes, share * batches).astype(np.int32):
            file.write(random.standard_normal(shape, np.float32).tobytes() + label.tobytes())


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    _prepare(Path(sys.argv[1]), Case(**json.loads(sys.argv[2])), int(sys.argv[3]))
