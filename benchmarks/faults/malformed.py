"""Is everything that is malformed refused, by one clear error?

Launchers' variables, descriptions of clusters, options of commands, profiles, plans and files of
checkpoints are changed at random, from a seed. Each is either refused by an error of Caramel's in a
short line, or taken for what it says: what was understood, written down again, is what was given.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from benchmarks.faults.mutations import mutated_bytes, mutated_json, mutated_text, nasty
from benchmarks.results import Row
from caramel.cli.simulate import simulated_curves
from caramel.cluster.cluster import Cluster
from caramel.core.errors import CaramelError, InvariantError
from caramel.core.plan import Plan
from caramel.core.profile import Profile
from caramel.core.util.json_records import to_json_value

LONGEST_S = 20.0  # what takes longer hangs
LONGEST_MESSAGE = 2000  # characters


@dataclass(frozen=True, slots=True)
class Case:
    """Something that may be malformed.

    Attributes:
        kind: what it is.
        given: it, for messages.
        take: reads it.
        is_understood: whether what `take` returned says the same as what was given.
    """

    kind: str
    given: Any
    take: Callable[[], Any]
    is_understood: Callable[[Any], bool]


@dataclass
class Report:
    """What has become of the cases.

    Attributes:
        refused: how many of each kind were.
        accepted: how many were taken for what they say.
        faults: what is wrong, a line for each.
    """

    refused: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class _HangsError(BaseException):
    """It takes too long."""


def judge(cases: Iterator[Case]) -> Report:
    """Try all of them. It works in the main thread."""
    report = Report()
    for case in cases:
        fault = _tried(case, report)
        if fault is not None:
            report.faults.append(f"{case.kind}: {fault}: {_short(case.given)}")
    return report


def _tried(case: Case, report: Report) -> str | None:
    """What is wrong with how a case was taken; None for nothing."""
    begin_s = time.monotonic()
    try:
        with _no_longer(LONGEST_S):
            taken = case.take()
            if not case.is_understood(taken):
                return f"was taken for {_short(taken)}"
    except _HangsError:
        return f"hangs for {time.monotonic() - begin_s:.0f} s"
    except InvariantError as error:
        return f"raised what is to be reported: {error}"
    except CaramelError as error:
        report.refused[case.kind] += 1
        message = str(error)
        is_clear = message.strip() and "\n" not in message and len(message) <= LONGEST_MESSAGE
        return None if is_clear else f"has no clear message: {_short(message)}"
    except BaseException as error:
        return f"raised {type(error).__name__}: {_short(error)}"
    report.accepted[case.kind] += 1
    return None


def cases(seed: int, count: int, directory: Path) -> Iterator[Case]:
    """So many cases, of all kinds in turn.

    Args:
        directory: where files may be written.
    """
    samples = _Samples(directory)
    makers = (
        _tf_config,
        _slurm,
        _mpi,
        _cluster,
        _option,
        lambda r: samples.profile(r),
        lambda r: samples.plan(r),
        lambda r: samples.checkpoint(r),
    )
    for number in range(count):
        yield makers[number % len(makers)](Random(f"{seed} {number}"))


# Launchers and clusters --------------------------------------------------------------------------

TF_CONFIG = json.dumps(
    {
        "cluster": {
            "chief": ["a:1000"],
            "worker": ["b:1000", "c:1000"],
            "ps": ["d:1000"],
            "evaluator": ["e:1000"],
        },
        "task": {"type": "worker", "index": 1},
        "rpc_layer": "grpc",
    }
)
SLURM: Mapping[str, str] = {
    "SLURM_PROCID": "3",
    "SLURM_STEP_NODELIST": "node[01-03,7],gpu5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1,1",
    "SLURM_STEP_NUM_TASKS": "8",
}


def _tf_config(random: Random) -> Case:
    text = mutated_json(TF_CONFIG, random)
    environ = {"TF_CONFIG": text}

    def is_understood(cluster: Cluster) -> bool:
        given = json.loads(text)["cluster"]
        given.pop("evaluator", None)
        wanted = {job: _in_order(tasks) for job, tasks in given.items() if len(tasks)}
        return cluster.as_dict() == wanted

    return Case("TF_CONFIG", text, lambda: Cluster.from_environment(environ), is_understood)


def _in_order(tasks: Any) -> list[Any]:
    return [tasks[key] for key in sorted(tasks)] if isinstance(tasks, dict) else tasks


def _slurm(random: Random) -> Case:
    environ = dict(SLURM)
    name = random.choice(list(environ))
    if random.random() < 0.15:
        del environ[name]
    else:
        environ[name] = mutated_text(environ[name], random)

    def is_understood(cluster: Cluster) -> bool:
        hosts = [str(task.address).rpartition(":")[0] for task in cluster.tasks]
        rank = environ["SLURM_PROCID"]
        return (
            all(host and not set(host) & set("[](),\0 ") for host in hosts)
            and str(cluster.task) == str(int(rank))
            and rank.isascii()
        )

    return Case("Slurm", environ, lambda: Cluster.from_environment(environ), is_understood)


def _mpi(random: Random) -> Case:
    size = mutated_text("2", random) if random.random() < 0.8 else str(nasty(random))
    name = random.choice(("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"))
    environ = {name: size}

    def is_understood(cluster: Cluster) -> bool:
        return size == "1" and cluster.size == 1  # this process is the only one

    return Case("MPI", environ, lambda: Cluster.from_environment(environ), is_understood)


def _cluster(random: Random) -> Case:
    base: Any = random.choice((["a:1", "b:2"], {"worker": ["a:1", "b:2"], "ps": ["c:3"]}, 4))
    given = nasty(random) if random.random() < 0.3 else base
    if given is base and not isinstance(base, int):
        text = mutated_json(json.dumps(base), random)
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            given = text

    def is_understood(cluster: Cluster) -> bool:
        if cluster.kind == "embedded":
            return type(given) is int and cluster.size == given
        jobs = given if isinstance(given, dict) else {"worker": given}
        return cluster.as_dict() == {job: _in_order(t) for job, t in jobs.items() if len(t)}

    both = random.random() < 0.5
    take = Cluster.coerce_with_servers if both else Cluster.coerce
    return Case("cluster", given, lambda: take(given), is_understood)


# Commands ----------------------------------------------------------------------------------------

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("worker", "--cluster", "a:1,b:2", "--task", "7"),
    ("worker", "--cluster", "a:1", "--ps", "c:3", "--job", "nobody"),
    ("worker", "--cluster", '{"worker": ["a:1"]}', "--task", "1"),
    ("worker", "--cluster", "a:1,b:2", "--task", "9", "--intra-op-threads", "2"),
    ("profile", "--out", "/no/such/directory/p.json", "--sizes", "64,4MB", "--module", "m:f"),
    ("profile", "--out", "/no/such/directory/p.json", "--threshold", "4KB", "--workers", "a:1"),
    ("simulate", "--profile", "/no/such/profile.json", "--workers", "2..8"),
    ("simulate", "--profile", "/no/such/profile.json", "--bandwidth", "1gbit"),
    ("plan", "--module", "m:f", "--profile", "p.json", "--out", "/no/such/directory/plan.json"),
    ("trace", "--module", "m:f", "--out", "/no/such/directory/t.json", "--steps", "3"),
    ("run", "--restarts", "5", "--", "/no/such/program", "x"),
)
"""Each of these is a mistake, and what is changed besides must not make it none."""


def _option(random: Random) -> Case:
    command = list(random.choice(COMMANDS))
    at = random.randrange(1, len(command))
    is_value = not command[at].startswith("-") and not command[at].startswith("/no/such")
    if is_value:
        command[at] = mutated_text(command[at], random)
    else:
        command.insert(random.randrange(1, len(command)), mutated_text("--option", random))
    return Case("option", command, lambda: _called(command), lambda taken: False)


def _called(command: list[str]) -> int:
    """The exit code of a command, or -1 if it has none.

    Raises:
        CaramelError: it has ended as one that was used in a wrong way, and said so in short.
    """
    from caramel.cli.main import main

    before, output = sys.argv, io.StringIO()
    sys.argv = ["caramel", *command]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with redirect_stderr(output), redirect_stdout(output):
            main()
    except SystemExit as ended:
        if ended.code == 2 and "Traceback" not in output.getvalue():
            raise CaramelError("exit code 2") from None
        return ended.code if isinstance(ended.code, int) else -1
    finally:
        sys.argv = before
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return -1


# Files -------------------------------------------------------------------------------------------


class _Samples:
    """Well-formed files, made when they are first asked for.

    Args:
        directory: where files may be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._profile = self._plan = ""
        self._checkpoint = ""

    def profile(self, random: Random) -> Case:
        self._profile = self._profile or sample_profile().to_json()
        text = mutated_json(self._profile, random)
        file = self._directory / "profile.json"

        def take() -> Profile:
            file.write_bytes(text.encode(errors="surrogatepass"))
            profile = Profile.load(file)
            if profile.job is not None:
                _simulate(profile)
            return profile

        def is_understood(profile: Profile) -> bool:
            return _says(json.loads(text), json.loads(profile.to_json()))

        return Case("profile", text, take, is_understood)

    def plan(self, random: Random) -> Case:
        self._plan = self._plan or sample_plan().to_json()
        text = mutated_json(self._plan, random)

        def is_understood(plan: Plan) -> bool:
            return _says(json.loads(text), json.loads(plan.to_json()))

        return Case("plan", text, lambda: Plan.from_json(text), is_understood)

    def checkpoint(self, random: Random) -> Case:
        import numpy as np

        from caramel.core.facts import Variable
        from caramel.core.graph import TensorSpec
        from caramel.runtime.checkpoint import SavedTensor, read_checkpoint, write_checkpoint
        from caramel.runtime.resuming import checkpoints

        value = np.arange(4.0)
        spec = TensorSpec("float64", (4,))
        variable = Variable("a", "a", "a/init", "a/read", spec, True, True, "a")
        path = self._directory / "checkpoints" / "m"
        write_checkpoint(path, [SavedTensor("a", "", value)])
        names = [f for f in path.parent.iterdir() if f.name.startswith(path.name)]
        file = random.choice([*sorted(names), path.parent / "checkpoint"])
        content = mutated_bytes(file.read_bytes(), random)

        def take() -> Any:
            file.write_bytes(content)
            checkpoints(path.parent)
            given = path if random.random() < 0.7 else path.parent
            return read_checkpoint(given, [variable]).values["a"]

        def is_understood(taken: Any) -> bool:
            return np.array_equal(taken, value)

        return Case("checkpoint", (file.name, content), take, is_understood)


def _simulate(profile: Profile) -> None:
    """Use a profile. What comes out are numbers, or an error says why not."""
    curves = simulated_curves(
        profile, workers="2,3", bandwidth="1gbit", latency="0.1ms", pattern="auto", hosts=None
    )
    for point in curves.points.values():
        assert math.isfinite(point.step_s), point


def sample_profile() -> Profile:
    """A profile that has everything."""
    from caramel.core.calibration import DEFAULT
    from caramel.core.measurements import AggregationTimes, Measurements, SendTimes
    from caramel.core.time_facts import Link, NetworkModel, TimingTable, TransferCost
    from caramel.core.util.fingerprint import Machine
    from caramel.core.workload import Gradient, JobOutline, Piece, Update, Workload

    costs = {"shuffle": TransferCost(0.001, 1e-8, 0.0, 0.9e-8), "ring": TransferCost(0.002, 2e-8)}
    links = (Link(0, 1, 1.25e8, 0.0003), Link(1, 0, 1.2e8, 0.0004))
    work = Workload(
        (Piece("a", 0.001, 1, frozenset("p")), Piece("b/c", 2e-6, 1, yields=("p",))),
        (Update("u", 0.5, frozenset("p"), frozenset("p"), frozenset(["p", "slot"])),),
    )
    times = AggregationTimes("shuffle", 64, (0.2, 0.1, 0.4))
    sends = (SendTimes(0, 1, 64, (0.03,)),)
    addresses = ("127.0.0.1:1", "127.0.0.1:2")
    return Profile(
        "2.21.0",
        Machine("a processor", 2, "CPU"),
        "abc",
        TimingTable({"a": 0.001, "b/c": 2e-6}, steps=10, error=0.01, cores=2, step_s=0.002),
        JobOutline(work, work, (Gradient("p", 12, "float32"),)),
        (NetworkModel(2, costs, 1.25e8, 150_000, links),),
        (Measurements(2, (times,), (0.01, 0.02), sends, (0.005,), addresses),),
        DEFAULT.with_measured({"transfer_s": 0.0003}),
    )


def sample_plan() -> Plan:
    """A plan that has groups, parts, edges and gates."""
    from caramel.core.decision import Decided, Edge, Gate, Group, Part
    from caramel.core.graph import TensorSpec
    from caramel.core.names import TensorRef
    from caramel.core.planned_job import AggregatedGradient, PlannedJob

    def gradient(name: str, elements: int) -> AggregatedGradient:
        spec = TensorSpec("float32", (elements,))
        return AggregatedGradient(name, TensorRef(f"{name}/raw"), spec, (f"{name}/read",))

    job = PlannedJob(
        devices=("/job:worker/task:0", "/job:worker/task:1"),
        reduction="mean",
        variables=(),
        gradients=(gradient("v", 64), gradient("w", 16)),
        train_op="train",
        loss="loss",
    )
    parts = (Part("v", 0, 32), Part("v", 32, 64))
    groups = (
        Group("one", (parts[0].name,), "ring", depth=2),
        Group("two", (parts[1].name, "w"), "shuffle", deferred=True),
    )
    decided = Decided(groups, parts, (Edge("a", "b"),), (Gate("one", "two"),))
    return Plan(job, decided)


def _says(given: Any, understood: Any) -> bool:
    """Whether all that was given is what was understood; what was left out has a default."""
    if isinstance(given, dict):
        return isinstance(understood, dict) and all(
            key in understood and _says(item, understood[key]) for key, item in given.items()
        )
    if isinstance(given, list):
        if not isinstance(understood, list):
            return False
        if len(given) > len(understood):
            return False  # of sets nothing is given twice
        return all(map(_says, given, understood)) or _as_set(given) == _as_set(understood)
    if isinstance(given, bool) or isinstance(understood, bool) or given is None:
        return given is understood
    return bool(given == understood)


def _as_set(values: list[Any]) -> Any:
    return sorted(map(json.dumps, map(to_json_value, values)))


# Around ------------------------------------------------------------------------------------------


@contextmanager
def _no_longer(limit_s: float) -> Iterator[None]:
    """Interrupt what takes longer; it works in the main thread."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _HangsError

    before = signal.signal(signal.SIGALRM, interrupt)
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)
        signal.signal(signal.SIGALRM, before)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def run(seed: int = 41, count: int = 2000) -> Report:
    """Try so many malformed inputs."""
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # of files of checkpoints
    before = os.environ.get("CARAMEL_CACHE")
    with tempfile.TemporaryDirectory() as directory:
        try:
            os.environ["CARAMEL_CACHE"] = directory
            return judge(cases(seed, count, Path(directory)))
        finally:
            os.environ.pop("CARAMEL_CACHE")
            if before is not None:
                os.environ["CARAMEL_CACHE"] = before


def rows(report: Report) -> list[Row]:
    """For each kind how many were refused, how many mean something after all, and what is wrong."""
    kinds = sorted({*report.refused, *report.accepted})
    of_kind = {kind: [each for each in report.faults if each.startswith(kind)] for kind in kinds}
    return [
        Row(
            {"kind": kind},
            (),
            {
                "refused": report.refused[kind],
                "accepted": report.accepted[kind],
                "faults": of_kind[kind],
            },
        )
        for kind in kinds
    ]


def markdown(rows: Sequence[Row]) -> list[str]:
    """How many inputs of each kind were refused, and how many were taken for what they say."""
    lines = ["| input | refused by one clear error | taken for what it says | neither |"]
    lines.append("|---|---|---|---|")
    for row in rows:
        facts = row.facts
        cells = (row.what["kind"], facts["refused"], facts["accepted"], len(facts["faults"]))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines
