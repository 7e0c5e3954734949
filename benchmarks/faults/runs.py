"""Does training end as if nothing had happened, whatever fault comes at whatever moment?

Each run trains a job of `benchmarks.faults.jobs` on some tasks, and at a random step one fault is
made. In the end the variables are compared with what plain TensorFlow makes of the same examples
on one device, the examples with those of an undisturbed run, and nothing may be left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import track

from benchmarks.environment import TENSORFLOW
from benchmarks.faults.case import Case
from benchmarks.faults.jobs import KINDS, SERVED, SERVERS, Kind, ids_of, on_one_device
from benchmarks.results import Row, load_of_others, write
from benchmarks.testbed import Testbed
from benchmarks.workers import addresses
from caramel.cluster.processes import free_ports

WORKERS = 3
LARGEST_ERROR = 1e-12
_MARK = "CARAMEL_FAULTS_RUN"  # by it the processes of a run are found
_ENDING_S = 5.0

LOCAL = ("kill a worker", "stop a worker", "kill the client", "SIGTERM", "disk full")
REMOTE = ("cut a link", "slow a link", "lose a worker", "kill a worker elsewhere")
FAULTS = (*LOCAL, *REMOTE)
_STAYS_AWAY = ("lose a worker", "lose a server")


@dataclass(frozen=True)
class Fault:
    """What is made in some runs.

    Attributes:
        name: what is done.
        kinds: of jobs, of which each run has one.
    """

    name: str
    kinds: tuple[Kind, ...]


@dataclass(frozen=True)
class Suite:
    """Some runs.

    Attributes:
        faults: they take turns.
        has_hosts: whether workers that are elsewhere have hosts of their own.
    """

    faults: tuple[Fault, ...]
    has_hosts: bool = True


_WITHOUT_PIPELINE = tuple(kind for kind in KINDS if kind != "pipeline")
WORKERS_ALONE = "workers"
SUITES = {
    WORKERS_ALONE: Suite(
        tuple(Fault(f, _WITHOUT_PIPELINE if f == "lose a worker" else KINDS) for f in FAULTS)
    ),
    "apart": Suite(
        (
            *(
                Fault(f"{what} a {task}", ("servers",))
                for what in ("kill", "lose")
                for task in ("worker", "server")
            ),
            Fault("kill a worker", ("placed",)),
            Fault("lose a worker", ("placed",)),
        ),
        has_hosts=False,
    ),
}
"""Each has a result file of its own: what each worker has, and what is apart on several tasks."""


@dataclass(frozen=True)
class Settings:
    """How many runs of how many steps; `wait_s` is how long lost workers are waited for."""

    runs: int
    steps: int
    save_every: int = 50
    wait_s: float = 30.0
    timeout_s: float = 240.0


FULL = Settings(200, 300)
QUICK = Settings(5, 60)
OF_SUITE = {"apart": Settings(30, 300, timeout_s=600.0)}
"""Where it is not `FULL`."""


@dataclass
class Outcome:
    """What one run has shown.

    Attributes:
        wrong: what is not as it has to be; nothing if all is well.
        next_step_s: from the fault to the end of the next step, in seconds.
        error: the largest relative difference of a variable from one device.
    """

    seed: int
    fault: str
    kind: Kind
    wrong: list[str] = field(default_factory=list)
    next_step_s: float | None = None
    error: float | None = None
    recoveries: list[Any] = field(default_factory=list)


def run(
    settings: Settings,
    name: str,
    directory: Path,
    console: Console,
    only: Sequence[str] = (),
    goes_on: bool = False,
    suite: str = WORKERS_ALONE,
) -> Path:
    """Run all, print a table and write a result file; returns the file.

    Args:
        only: faults; by default all.
        suite: which runs.
        goes_on: whether runs that the file has are not done again.

    Raises:
        ValueError: a fault or a suite that there is not.
    """
    if suite not in SUITES:
        raise ValueError(f"there is no suite '{suite}'; there are {', '.join(SUITES)}")
    own, command = SUITES[suite], "python -m benchmarks faults"
    names = list(dict.fromkeys(fault.name for fault in own.faults))
    if unknown := [fault for fault in only if fault not in names]:
        raise ValueError(f"there is no fault '{unknown[0]}'; there are {', '.join(names)}")
    load = load_of_others()
    chosen = [fault for fault in own.faults if not only or fault.name in only]
    if suite != WORKERS_ALONE:
        name, command = f"{name}-{suite}", f"{command} --suite {suite}"
    settings = OF_SUITE.get(suite, settings) if settings == FULL else settings
    command += " --quick" if settings == QUICK else ""
    outcomes = _done(directory / f"{name}.json", settings) if goes_on else []
    seeds = sorted(set(range(settings.runs)) - {each.seed for each in outcomes})
    for seed in track(seeds, "runs", console=console, transient=True):
        outcome = one_run(settings, seed, chosen[seed % len(chosen)], own)
        outcomes.append(outcome)
        if outcome.wrong:
            console.print(f"run {seed}, {outcome.fault}, {outcome.kind}: {outcome.wrong}")
        rows = [_row(each, outcomes) for each in chosen]
        described = {"command": command, **asdict(settings), "done": len(outcomes)}
        # After each: an interruption of hours of runs costs one of them.
        path = write(name, described, rows, load=load, directory=directory)
    console.print(Markdown("\n".join(markdown(rows))))
    console.print(f"results: {path}")
    return path


def _done(path: Path, settings: Settings) -> list[Outcome]:
    """The runs that a result file has, if there is one of such runs."""
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    if content["settings"]["steps"] != settings.steps:
        raise ValueError(f"{path} has runs of {content['settings']['steps']} steps")
    rows = [Row(**row) for row in content["rows"]]
    return [Outcome(**each) for row in rows for each in row.facts["outcomes"]]


def _row(fault: Fault, outcomes: Sequence[Outcome]) -> Row:
    own = [each for each in outcomes if each.fault == fault.name and each.kind in fault.kinds]
    errors = [each.error for each in own if each.error is not None]
    kind = {"kind": fault.kinds[0]} if len(fault.kinds) == 1 else {}
    return Row(
        {"fault": fault.name, **kind},
        tuple(each.next_step_s for each in own if each.next_step_s is not None),
        {
            "runs": len(own),
            "right": sum(not each.wrong for each in own),
            "largest_error": max(errors, default=None),
            "outcomes": [asdict(each) for each in own],
        },
    )


def markdown(rows: Sequence[Row]) -> list[str]:
    """How many runs of each fault ended right, and how long the next step took."""
    lines = ["| fault | runs | ended right | next step, s | at most, s | largest error |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        times, facts = row.samples_s, row.facts
        error = "" if facts["largest_error"] is None else f"{facts['largest_error']:.0e}"
        seconds = (f"{np.median(times):.1f}", f"{max(times):.1f}") if times else ("", "")
        fault = ", ".join(map(str, row.what.values()))
        cells = (fault, facts["runs"], facts["right"], *seconds, error)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


# One run -----------------------------------------------------------------------------------------


def one_run(settings: Settings, seed: int, made: Fault, suite: Suite) -> Outcome:
    """A training in which one fault is made; everything about it follows from the seed."""
    random = np.random.default_rng([11, seed])
    fault, kinds = made.name, made.kinds
    outcome = Outcome(seed, fault, kinds[random.integers(len(kinds))])
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        checkpoints = directory / "checkpoints"
        checkpoints.mkdir()
        if fault == "disk full":
            stack.enter_context(_small_disk(checkpoints))
        bed, tasks = None, None
        if fault in REMOTE and suite.has_hosts:
            bed = stack.enter_context(Testbed(WORKERS, "1gbit"))
            tasks = addresses(bed)
        elif fault in _STAYS_AWAY:
            tasks = [f"127.0.0.1:{port}" for port in free_ports(sum(_tasks_of(outcome.kind)))]
        training = _Training(settings, outcome, directory, random, tasks, bed)
        stack.callback(training.end_all)
        training.start()
        training.wait_for_step(int(random.integers(settings.steps // 15, settings.steps * 4 // 5)))
        at_s = time.time()
        training.make(fault)
        training.wait_for_end()
        if outcome.wrong:
            return outcome
        outcome.next_step_s = _next_step_s(training.told(), at_s)
        _check(training, outcome)
    return outcome


def _tasks_of(kind: Kind) -> tuple[int, int]:
    """How many workers and parameter servers train a job."""
    return (SERVED, SERVERS) if kind == "servers" else (WORKERS, 0)


class _Training:
    """The client and the workers of a run; these are on the hosts of a bed, or elsewhere as their
    addresses say, or the client's."""

    def __init__(
        self,
        settings: Settings,
        outcome: Outcome,
        directory: Path,
        random: np.random.Generator,
        tasks: list[str] | None = None,
        bed: Testbed | None = None,
    ) -> None:
        self.settings, self._outcome, self.directory = settings, outcome, directory
        self._bed, self._random = bed, random
        self._log = (directory / "log").open("ab")
        self._mark = f"{os.getpid()}-{outcome.seed}"
        self._deadline_s = time.monotonic() + settings.timeout_s
        self._workers: dict[int, subprocess.Popen[Any]] = {}
        self._client: subprocess.Popen[Any]
        resumes = outcome.fault in ("kill the client", "SIGTERM", "disk full")
        waits = outcome.fault not in _STAYS_AWAY
        self._count, servers = _tasks_of(outcome.kind)
        self._case = Case(
            kind=outcome.kind,
            count=self._count,
            servers=servers,
            tasks=tasks,
            steps=settings.steps,
            save_every=max(1, settings.steps * settings.save_every // FULL.steps),
            wait_s=settings.wait_s if waits else 1.0,
            resumes=resumes,
            directory=str(directory),
            checkpoints=str(directory / "checkpoints"),
        )

    # What happens

    def start(self) -> None:
        """Start the workers, if they are elsewhere, and the client."""
        for number in range(len(self._case.tasks or ())):
            self._start_worker(number)
        command = [sys.executable, "-m", "benchmarks.faults.client", json.dumps(asdict(self._case))]
        if self._outcome.fault == "kill the client":
            command = [sys.executable, "-m", "caramel", "run", "--restarts", "3", "--", *command]
        self._client = self._popen(0, command)

    def _start_worker(self, number: int) -> None:
        assert self._case.tasks is not None
        workers, servers = self._case.tasks[: self._count], self._case.tasks[self._count :]
        command = [sys.executable, "-m", "caramel", "worker", "--cluster", ",".join(workers)]
        command += ["--ps", ",".join(servers)] if servers else []
        self._workers[number] = self._popen(number, [*command, *self._words_of(number).split()])

    def _words_of(self, task: int) -> str:
        """What the command of a task has, and that of no other one."""
        if task < self._count:
            return f"--job worker --task {task}"
        return f"--job ps --task {task - self._count}"

    def _popen(self, host: int, command: Sequence[str]) -> subprocess.Popen[Any]:
        options: dict[str, Any] = {"stdout": self._log, "stderr": self._log}
        env = {**TENSORFLOW, _MARK: self._mark}
        if self._bed is not None:
            return self._bed.popen(host, command, env=env, **options)
        return subprocess.Popen(
            command, env={**os.environ, **env}, start_new_session=True, **options
        )

    def make(self, fault: str) -> None:
        """Make a fault."""
        match fault:
            case "kill a worker":
                self._signal_worker(signal.SIGKILL)
            case "kill a server" | "lose a server":
                server = int(self._random.integers(self._case.servers))
                self._signal(self._count + server, signal.SIGKILL)
            case "stop a worker":
                self._signal_worker(signal.SIGSTOP)
            case "kill the client":
                for pid in self._pids("benchmarks.faults.client", without="caramel run"):
                    os.kill(pid, signal.SIGKILL)
            case "SIGTERM":
                self._client.terminate()
                if (code := self._client.wait(self._left_s())) != 128 + signal.SIGTERM:
                    self._outcome.wrong.append(f"SIGTERM: exit code {code}")
                self.start()
            case "disk full":
                pass  # it has been all the time
            case "cut a link":
                assert self._bed is not None
                host = int(self._random.integers(1, WORKERS))
                self._bed.cut(host)
                time.sleep(float(self._random.uniform(1, 20)))
                self._bed.heal(host)
            case "slow a link":
                assert self._bed is not None
                host = int(self._random.integers(WORKERS))
                self._bed.set_rate(host, "10mbit")
                time.sleep(float(self._random.uniform(1, 10)))
                self._bed.set_rate(host, self._bed.rate)
            case "lose a worker" | "kill a worker elsewhere":
                number = int(self._random.integers(self._count))
                self._signal(number, signal.SIGKILL)
                if fault == "kill a worker elsewhere":
                    time.sleep(float(self._random.uniform(0, 3)))
                    self._start_worker(number)
            case _:
                raise AssertionError(fault)

    def _signal_worker(self, number: signal.Signals) -> None:
        self._signal(int(self._random.integers(self._count)), number)

    def _signal(self, task: int, number: signal.Signals) -> None:
        for pid in self._pids(self._words_of(task)):
            os.kill(pid, number)

    # What is waited for

    def wait_for_step(self, step: int) -> None:
        """Wait until so many steps are done; the client ended before if something is wrong."""
        while self._client.poll() is None and len(self.told()) < step and self._left_s() > 0:
            time.sleep(0.05)

    def wait_for_end(self) -> None:
        """Wait until training has ended."""
        try:
            code = self._client.wait(self._left_s())
        except subprocess.TimeoutExpired:
            self._outcome.wrong.append(f"did not end within {self.settings.timeout_s:g} s")
            return
        if code != 0 or not (self.directory / "end.json").exists():
            log = (self.directory / "log").read_text(errors="replace").strip().splitlines()
            self._outcome.wrong.append(f"exit code {code}: {' / '.join(log[-3:])}"[:2000])

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())

    # What is there

    def told(self) -> list[dict[str, Any]]:
        """The steps that were told, in order; one may be there twice."""
        rows = []
        with suppress(FileNotFoundError):
            for line in (self.directory / "steps").read_text().splitlines():
                with suppress(ValueError):  # the client was killed while it wrote
                    rows.append(json.loads(line))
        return rows

    def _pids(self, *parts: str, without: str | None = None) -> list[int]:
        """The processes of this run whose command has some text."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with suppress(OSError):
                if f"{_MARK}={self._mark}".encode() not in (entry / "environ").read_bytes():
                    continue
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if all(part in command for part in parts) and not (without and without in command):
                    found.append(int(entry.name))
        return found

    def left(self) -> list[str]:
        """What is there of the client and its workers although training has ended."""
        deadline = time.monotonic() + _ENDING_S
        elsewhere = {process.pid for process in self._workers.values()}
        while time.monotonic() < deadline:
            pids = [] if self._bed is not None else self._pids()
            if not set(pids) - elsewhere:
                break
            time.sleep(0.1)
        else:
            return [f"process {pid} is left" for pid in pids]
        names = {path.name for path in self.directory.iterdir()}
        more = names - {"steps", "log", "values.npz", "end.json", "checkpoints"}
        return [f"file {name} is left" for name in sorted(more)]

    def end_all(self) -> None:
        """End what is left of the run."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._client.wait()
        self._log.close()


def _next_step_s(told: Sequence[Mapping[str, Any]], at_s: float) -> float | None:
    """From a fault to the end of the longest wait for a step since, in seconds."""
    ends = [row["at_s"] for row in told]
    waits = [(b - a, b) for a, b in pairwise(ends) if b > at_s]
    return max(waits)[1] - at_s if waits else None


def _check(training: _Training, outcome: Outcome) -> None:
    """Compare what came out with what has to."""
    steps = training.settings.steps
    told = {row["step"]: row["ids"] for row in training.told()}  # of a step done again the last
    wanted = _undisturbed(steps) if outcome.kind == "pipeline" else [*map(ids_of, range(steps))]
    missing = sorted(set(range(steps)) - told.keys())
    # Of a program that ends within a step, nobody can tell of that, though it counts.
    if len(missing) > (outcome.fault in ("kill the client", "SIGTERM")):
        outcome.wrong.append(f"{len(missing)} of {steps} steps were not told")
        return
    if any(not np.array_equal(ids, wanted[step]) for step, ids in told.items()):
        outcome.wrong.append("other examples than in an undisturbed run")
    end = json.loads((training.directory / "end.json").read_text())
    outcome.recoveries = end["recoveries"]
    if (end["not_saved"] > 0) != (outcome.fault == "disk full"):
        outcome.wrong.append(f"{end['not_saved']} checkpoints could not be written")
    if not end["alike"]:
        outcome.wrong.append("the workers' variables differ")
    with np.load(training.directory / "values.npz") as values:
        outcome.error = _error(values, on_one_device(wanted))
    if not outcome.error <= LARGEST_ERROR:
        outcome.wrong.append(f"variables are off by {outcome.error:.1e}")
    outcome.wrong += training.left()


def _error(values: Mapping[str, Any], reference: Mapping[str, np.ndarray]) -> float:
    """The largest difference of a variable, relative to its largest element."""
    return max(
        float(np.max(np.abs(values[name] - wanted)) / max(np.max(np.abs(wanted)), 1e-300))
        for name, wanted in reference.items()
    )


@cache
def _undisturbed(steps: int) -> list[np.ndarray]:
    """The examples of each step of a pipeline when nothing happens."""
    outcome = Outcome(-1, "nothing", "pipeline")
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        directory = Path(folder)
        (directory / "checkpoints").mkdir()
        settings = Settings(1, steps)
        training = _Training(settings, outcome, directory, np.random.default_rng(0))
        training.start()
        training.wait_for_end()
        told = training.told()
        training.end_all()
    if outcome.wrong:
        raise RuntimeError(f"an undisturbed run failed: {outcome.wrong}")
    return [np.asarray(row["ids"]) for row in told]


@contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    """A file system without room for a checkpoint."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)
