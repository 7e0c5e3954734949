"""What every peer has: what it is asked, and what it shows.

A peer's processes are in `rank`, how they are started and measured in `running`. None of these
imports TensorFlow: the processes of some peers have none.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks.peers.data import Case

if TYPE_CHECKING:
    from benchmarks.peers.running import Running
    from benchmarks.testbed import Testbed

Setting = Mapping[str, Any]


class PeerError(RuntimeError):
    """A peer cannot run a case, or failed; the message says why."""


@dataclass(frozen=True)
class Result:
    """What one run of a peer has shown.

    Attributes:
        peer: the peer's name.
        setting: the variant that was run.
        case: what was run.
        step_s: seconds of every timed step, measured at worker 0.
        own_computation_s: seconds of the same step without aggregation, in the same processes,
            of a peer whose computation is not that of plain TensorFlow; else None.
        tx_bytes: what each host's interface sent, per timed step, headers included.
        processor_s: seconds of processor that the whole machine spent, per timed step.
        expected_bytes: the bytes of tensors that each host must send per step; of Caramel, what the
            edges of its graph carry.
        parameters: file (npz) with the parameters after the checked steps, by variable names;
            None if the peer's are not comparable.
        versions: of the software.
        load: the machine's load average over a minute, before the run.
        facts: what else the peer reports.
        problems: why the row does not count; empty if it does. `validate` fills it.
    """

    peer: str
    setting: Setting
    case: Case
    step_s: tuple[float, ...]
    own_computation_s: float | None
    tx_bytes: tuple[float, ...]
    processor_s: float
    expected_bytes: tuple[float, ...]
    parameters: str | None
    versions: Mapping[str, str]
    load: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def median_s(self) -> float:
        """The median step in seconds."""
        return float(np.median(self.step_s))

    def read_parameters(self) -> dict[str, np.ndarray]:
        """The parameters after the checked steps.

        Raises:
            PeerError: this result has none.
        """
        if self.parameters is None:
            raise PeerError(f"the parameters of {self.peer} are not comparable")
        with np.load(self.parameters) as file:
            return {name: file[name] for name in file.files}

    def to_json(self) -> dict[str, Any]:
        """Everything in it, as JSON has it."""
        return {**asdict(self), "median_s": self.median_s}


class Peer(Protocol):
    """One way to train the same network on the same workers."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def versions(self) -> dict[str, str]:
        """Versions of the software it consists of."""

    def available(self) -> str | None:
        """None if it can run on this machine, else why not."""

    def settings(self) -> list[dict[str, Any]]:
        """The variants to try, the default first."""

    def expected_bytes(self, sizes: Sequence[int], workers: int, setting: Setting) -> list[float]:
        """The bytes of tensors that each host must send per step.

        Args:
            sizes: of the parameters, in bytes, in the order of the network.
            workers: how many.
            setting: one of `settings()`.
        """

    def start(self, bed: Testbed, case: Case, setting: Setting) -> Running:
        """Start a case with one worker on each host of the bed.

        Raises:
            PeerError: it cannot run this case, or failed.
        """


def versions_of(*packages: str, python: str | None = None) -> dict[str, str]:
    """Versions of installed packages, in this environment or in that of another interpreter."""
    if python is None:
        return {package: metadata.version(package) for package in packages}
    code = (
        "import json, sys; from importlib import metadata; "
        "print(json.dumps({p: metadata.version(p) for p in sys.argv[1:]}))"
    )
    output = subprocess.run(
        [python, "-c", code, *packages], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(output.stdout)
    return found


def evenly(sizes: Sequence[int], workers: int) -> list[float]:
    """What each host sends in an all-reduce that sends the least, spread evenly.

    Each parameter but for the part that is a host's own leaves it twice: as a gradient to whoever
    adds it up, and as a sum (Patarasuk & Yuan, 2009: 2 S (N - 1) / N).
    """
    return [2 * sum(sizes) * (workers - 1) / workers] * workers
