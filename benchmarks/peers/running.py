"""How a peer is started on the hosts of a test bed and measured, a block of steps at a time.

A peer is one process per rank, each started as ``python -m MODULE JSON`` on a host
(`rank.Rank.read` reads that JSON). `launch` starts them and returns a `Running`, so that blocks of
several peers can alternate.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import TENSORFLOW
from benchmarks.peers.base import Peer, PeerError, Result, Setting
from benchmarks.peers.data import Case, Prepared, prepared
from benchmarks.peers.rank import ONLY, OVER, POLL_S, Rank, of_plan
from benchmarks.results import processor_s

if TYPE_CHECKING:
    from benchmarks.testbed import Host, Testbed

REPOSITORY = Path(__file__).parents[2]
SETTLE_S = 0.2  # for packets and acknowledgements on their way when the counters are read
FIRST_PORT, LAST_PORT = 20000, 30000  # the hosts of a bed have ports of their own

_ports = itertools.cycle(range(FIRST_PORT, LAST_PORT))
TAIL_CHARACTERS = 3000
NOISE = re.compile(r"[IE]0000 |WARNING: All log messages before")  # TensorFlow's, at its start


@dataclass
class Run:
    """One run of a peer, seen from the process that measures.

    Attributes:
        module: what the ranks run.
        bed: the test bed.
        case: what is run.
        ranks: how many processes meet; the others (`start_other`) only serve.
        blocks: how many blocks of steps were ordered.
    """

    module: str
    bed: Testbed
    case: Case
    setting: Setting
    ranks: int
    prepared: Prepared
    directory: Path
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)
    blocks: int = 0

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

    Use it as a context manager: its processes end with it. `plan` is the one that does its steps,
    where several take turns in one session.
    """

    peer: Peer
    run: Run
    setting: Setting
    load: float
    restless: bool
    compared: bool
    plan: str = ONLY
    step_s: list[float] = field(default_factory=list)
    own_computation_s: float | None = None
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
        run, number = self.run, self.run.blocks
        run.blocks += 1
        if self.restless:
            run.signal(signal.SIGCONT)
        order = {"warm_up": warm_up, "steps": steps, "plan": self.plan}
        run.release(f"block{number}", order)
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
        facts = run.directory / f"{of_plan('facts', self.plan)}.json"
        parameters = run.directory / f"{of_plan('parameters', self.plan)}.npz"
        told = json.loads(facts.read_text()) if facts.exists() else {}
        expected = told.get("sent_bytes") or self.peer.expected_bytes(
            run.prepared.sizes, len(run.bed.hosts), self.setting
        )
        return Result(
            peer=self.peer.name,
            setting=self.setting,
            case=run.case,
            step_s=tuple(self.step_s),
            own_computation_s=self.own_computation_s,
            tx_bytes=tuple(count / steps for count in self._sent),
            processor_s=self._processor_s / steps,
            expected_bytes=tuple(expected),
            parameters=str(parameters) if self.compared else None,
            versions=self.peer.versions(),
            load=self.load,
            facts=told,
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
    plans: Sequence[str] = (ONLY,),
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
        plans: those of its session, if there are several; what is returned is the first.

    Raises:
        PeerError: it is not available, or failed.
    """
    if reason := peer.available():
        raise PeerError(f"{peer.name} cannot run: {reason}")
    load = os.getloadavg()[0]
    ready = prepared(case, len(bed.hosts))
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=ready.directory))
    started = Run(module, bed, case, setting, ranks or len(bed.hosts), ready, directory)
    running = Running(peer, started, setting, load, restless, compared, plans[0])
    try:
        start(started)
        for plan in plans:
            started.meet(of_plan("checked", plan), case.timeout_s)
            started.release(of_plan("checked", plan))
            started.meet(of_plan("written", plan), case.timeout_s)
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
