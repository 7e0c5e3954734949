"""What all peers share: the case they run, how their processes are started, what they report.

A peer is one process per rank, each started as ``python -m MODULE JSON`` on a host of a test bed
(`Rank.read` reads that JSON). `launch` starts them and returns a `Running`, which takes samples a
block of steps at a time, so that blocks of several peers can alternate. All ranks and the measuring
process meet, by files in a directory of the run, so that counters are read while nothing is under
way:

============ ====================================================================================
`checked`    the initial values and `CHECKED_STEPS` steps are done; rank 0 writes the parameters
`begin0`     the warm-up of the first block is done; the counters are read
`end0`       its timed steps are done; the counters are read again
`begin1` ... the same for further blocks
============ ====================================================================================

This file imports no TensorFlow: the processes of some peers have none.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks.environment import TENSORFLOW
from benchmarks.peers.data import Case, Prepared, prepared, write_values
from benchmarks.results import processor_s

if TYPE_CHECKING:
    from benchmarks.testbed import Host, Testbed

CHECKED_STEPS = 5
"""Steps from the initial values after which parameters are compared."""

REPOSITORY = Path(__file__).parents[2]
POLL_S = 0.01
IDLE_POLL_S = 0.05
OVER, FACTS = "over", "facts.json"
SETTLE_S = 0.2  # for packets and acknowledgements on their way when the counters are read
FIRST_PORT, LAST_PORT = 20000, 30000  # the hosts of a bed have ports of their own

_ports = itertools.cycle(range(FIRST_PORT, LAST_PORT))
TAIL_CHARACTERS = 3000
NOISE = re.compile(r"[IE]0000 |WARNING: All log messages before")  # TensorFlow's, at its start

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
        expected_bytes: the bytes of tensors that each host must send per step.
        parameters: file (npz) with the parameters after `CHECKED_STEPS` steps, by variable names;
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
        """The parameters after `CHECKED_STEPS` steps.

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


# The measuring process ---------------------------------------------------------------------------


@dataclass
class Run:
    """One run of a peer, seen from the process that measures.

    Attributes:
        module: what the ranks run.
        bed: the test bed.
        case: what is run.
        ranks: how many processes meet; the others (`start_other`) only serve.
    """

    module: str
    bed: Testbed
    case: Case
    setting: Setting
    ranks: int
    prepared: Prepared
    directory: Path
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)

    def addresses(self, count: int | None = None) -> list[str]:
        """A free ``host:port`` on each of the first `count` hosts (on all by default)."""
        hosts = self.bed.hosts[: len(self.bed.hosts) if count is None else count]
        return [f"{host.address}:{port()}" for host in hosts]

    def rank(self, number: int, **extra: Any) -> Rank:
        """What the rank of this number is told."""
        return Rank(
            case=self.case,
            setting=dict(self.setting),
            number=number,
            workers=len(self.bed.hosts),
            directory=str(self.directory),
            prepared=str(self.prepared.directory),
            extra=extra,
        )

    def command(self, number: int, *, python: str = sys.executable, **extra: Any) -> list[str]:
        """The command of a rank."""
        return [python, "-m", self.module, self.rank(number, **extra).to_json()]

    def start(
        self, host: Host | int | None, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        """Start a process of the run, with its output in a file; it ends with the run."""
        path = self.directory / f"process{len(self.processes)}.log"
        with path.open("wb") as log:
            self.processes.append(
                self.bed.popen(
                    host,
                    command,
                    env={**TENSORFLOW, **(env or {})},
                    cwd=REPOSITORY,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
            )

    def meet(self, point: str, timeout_s: float) -> None:
        """Wait until all ranks are at a point; they go on after `release`.

        Raises:
            PeerError: a process has ended or the time is over; with the end of its output.
        """
        deadline = time.monotonic() + timeout_s
        while not all((self.directory / f"{point}.{i}").exists() for i in range(self.ranks)):
            for number, process in enumerate(self.processes):
                if process.poll() is not None:
                    raise PeerError(
                        f"{self.module}: a process ended with {process.returncode} before "
                        f"'{point}': {self._tail(number)}"
                    )
            if time.monotonic() > deadline:
                tails = [self._tail(number) for number in range(len(self.processes))]
                raise PeerError(
                    f"{self.module}: '{point}' was not reached in {timeout_s:g} s: "
                    + "\n".join(tails)
                )
            time.sleep(POLL_S)

    def release(self, point: str, order: Mapping[str, Any] | None = None) -> None:
        """Let the ranks go on, with an order of what to do."""
        written = self.directory / f"{point}.new"
        written.write_text(json.dumps(order))
        written.rename(self.directory / f"{point}.go")

    def signal(self, number: int) -> None:
        """Send a signal to all processes."""
        for process in (each for each in self.processes if each.poll() is None):
            for pid in _tree(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def end(self) -> None:
        """End all processes."""
        self.signal(signal.SIGKILL)
        for process in self.processes:
            process.wait()

    def _tail(self, number: int) -> str:
        lines = (self.directory / f"process{number}.log").read_text(errors="replace").splitlines()
        text = "\n".join(line for line in lines if not NOISE.match(line))
        return text[-TAIL_CHARACTERS:].strip() or "(no output)"


@dataclass
class Running:
    """A peer whose processes run and have done the checked steps.

    Use it as a context manager: its processes end with it.
    """

    peer: Peer
    run: Run
    load: float
    restless: bool
    compared: bool
    step_s: list[float] = field(default_factory=list)
    own_computation_s: float | None = None
    _blocks: int = 0
    _sent: list[int] = field(default_factory=list)
    _processor_s: float = 0.0

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def block(self, steps: int, *, warm_up: int = 1) -> tuple[float, ...]:
        """Do `warm_up` steps and then `steps` that are timed; returns their seconds.

        Raises:
            PeerError: a process failed.
        """
        number, run = self._blocks, self.run
        self._blocks += 1
        if self.restless:
            run.signal(signal.SIGCONT)
        run.release(f"block{number}", {"warm_up": warm_up, "steps": steps})
        counted: list[tuple[list[int], float]] = []
        for point in (f"begin{number}", f"end{number}"):
            run.meet(point, run.case.timeout_s)
            time.sleep(SETTLE_S)
            tx_bytes = [counters.tx_bytes for counters in run.bed.counters()]
            counted.append((tx_bytes, processor_s()))
            run.release(point)
        (before, begin_s), (after, end_s) = counted
        sent = [last - first for first, last in zip(before, after, strict=True)]
        self._sent = [sum(pair) for pair in zip(self._sent or [0] * len(sent), sent, strict=True)]
        self._processor_s += end_s - begin_s
        measured = json.loads((run.directory / f"measured{number}.json").read_text())
        self.step_s += measured["step_s"]
        self.own_computation_s = measured["own_computation_s"]
        self.pause()
        return tuple(measured["step_s"])

    def pause(self) -> None:
        """Stop the processes between blocks, if they do not idle by themselves."""
        if self.restless:
            self.run.signal(signal.SIGSTOP)

    def result(self) -> Result:
        """What all blocks so far have shown."""
        run, steps = self.run, len(self.step_s)
        facts = run.directory / FACTS
        workers = len(run.bed.hosts)
        return Result(
            peer=self.peer.name,
            setting=run.setting,
            case=run.case,
            step_s=tuple(self.step_s),
            own_computation_s=self.own_computation_s,
            tx_bytes=tuple(count / steps for count in self._sent),
            processor_s=self._processor_s / steps,
            expected_bytes=tuple(
                self.peer.expected_bytes(run.prepared.sizes, workers, run.setting)
            ),
            parameters=str(run.directory / "parameters.npz") if self.compared else None,
            versions=self.peer.versions(),
            load=self.load,
            facts=json.loads(facts.read_text()) if facts.exists() else {},
        )

    def close(self) -> None:
        """End the processes."""
        self.run.release(OVER)
        self.run.end()


def run(peer: Peer, bed: Testbed, case: Case, setting: Setting) -> Result:
    """Run a case with one worker on each host of the bed, alone.

    Raises:
        PeerError: it cannot run this case, or failed.
    """
    with peer.start(bed, case, setting) as running:
        running.block(case.steps, warm_up=case.warm_up)
        return running.result()


def launch(
    peer: Peer,
    module: str,
    bed: Testbed,
    case: Case,
    setting: Setting,
    start: Callable[[Run], None],
    *,
    ranks: int | None = None,
    compared: bool = True,
    restless: bool = False,
) -> Running:
    """Start the processes of a peer and let them do the checked steps.

    Args:
        peer: which peer.
        module: what its ranks run.
        bed: the hosts, one worker on each.
        case: what to run.
        setting: the variant.
        start: starts the processes.
        ranks: how many of them meet; one per host by default.
        compared: whether its parameters are comparable.
        restless: whether its processes use processor or network while no step is to be done; they
            are then stopped between blocks.

    Raises:
        PeerError: it is not available, or failed.
    """
    if reason := peer.available():
        raise PeerError(f"{peer.name} cannot run: {reason}")
    load = os.getloadavg()[0]
    ready = prepared(case, len(bed.hosts))
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=ready.directory))
    started = Run(module, bed, case, setting, ranks or len(bed.hosts), ready, directory)
    running = Running(peer, started, load, restless, compared)
    try:
        start(started)
        started.meet("checked", case.timeout_s)
        started.release("checked")
        started.meet("written", case.timeout_s)
        running.pause()
    except BaseException:
        running.close()
        raise
    return running


def _tree(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in _tree(int(child)))]


def port() -> int:
    """A port that no earlier run of this process has used."""
    return next(_ports)


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


# A rank ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """What one process of a peer is told.

    Attributes:
        case: what to run.
        setting: the variant.
        number: which worker it is.
        workers: how many there are.
        directory: of the run, for what it reports.
        prepared: the directory with data and initial values.
        extra: what else this peer's ranks have to know, such as addresses.
    """

    case: Case
    setting: dict[str, Any]
    number: int
    workers: int
    directory: str
    prepared: str
    extra: dict[str, Any]

    def to_json(self) -> str:
        """All of it as one argument of a command."""
        return json.dumps(asdict(self))

    @staticmethod
    def read() -> Rank:
        """What the command line of this process says."""
        values = json.loads(sys.argv[1])
        return Rank(**{**values, "case": Case(**values["case"])})

    def alone(self) -> Rank:
        """The same rank, as the only worker there is."""
        return replace(self, number=0, workers=1)

    def meet(self, point: str) -> None:
        """Wait at a point until all are there and the measuring process lets them go on."""
        directory = Path(self.directory)
        (directory / f"{point}.{self.number}").touch()
        while not (directory / f"{point}.go").exists():
            time.sleep(POLL_S)

    def order(self, number: int) -> dict[str, int] | None:
        """The next block of steps to do; None if there is none any more."""
        directory = Path(self.directory)
        wanted, over = directory / f"block{number}.go", directory / f"{OVER}.go"
        while not wanted.exists():
            if over.exists():
                return None
            time.sleep(IDLE_POLL_S)
        order: dict[str, int] = json.loads(wanted.read_text())
        return order

    def measure(
        self,
        step: Callable[[], Any],
        parameters: Callable[[], Mapping[str, np.ndarray]] | None,
        *,
        own_step: Callable[[], Any] | None = None,
        facts: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        """Do the checked steps, and blocks of steps until it is over.

        Args:
            step: does one step and returns when it is done.
            parameters: reads the parameters; called at rank 0.
            own_step: does the computation of one step alone; timed before everything else.
            facts: what else there is to report; called at rank 0 after the checked steps.
        """
        directory = Path(self.directory)
        own_s = timed(own_step, self.case.warm_up, self.case.steps) if own_step else None
        for _ in range(CHECKED_STEPS):
            step()
        self.meet("checked")
        if self.number == 0 and parameters is not None:
            write_values(directory / "parameters.npz", parameters())
        if self.number == 0 and facts is not None:
            (directory / FACTS).write_text(json.dumps(facts()))
        (directory / f"written.{self.number}").touch()
        number = 0
        while (order := self.order(number)) is not None:
            timed(step, 0, order["warm_up"])
            self.meet(f"begin{number}")
            step_s = timed(step, 0, order["steps"])
            if self.number == 0:
                own = float(np.median(own_s)) if own_s else None
                measured = {"step_s": step_s, "own_computation_s": own}
                (directory / f"measured{number}.json").write_text(json.dumps(measured))
            self.meet(f"end{number}")
            number += 1


def timed(step: Callable[[], Any], warm_up: int, steps: int) -> list[float]:
    """Seconds of each of `steps` steps, after `warm_up` that are not timed."""
    for _ in range(warm_up):
        step()
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def leave() -> None:
    """End this process at once: nobody waits for the threads of its libraries."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
