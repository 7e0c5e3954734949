"""What ``caramel simulate`` does: reads what is to be simulated, and how a job scales there.

Nothing here needs TensorFlow: a profile says what a step computes and aggregates.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from caramel.cli.clusters import count_of
from caramel.core.errors import CaramelError, PlanError
from caramel.core.patterns import PATTERNS, check_pattern
from caramel.core.profile import Profile
from caramel.core.time_facts import TimingTable
from caramel.core.util.json_records import from_json_value, read_json, to_json_value
from caramel.core.util.sizes import parse_whole
from caramel.core.workload import JobOutline
from caramel.planning.pattern_choice import AUTO
from caramel.planning.what_if.scaling import Scaled, Setting, sweep
from caramel.planning.what_if.served import Served, serve
from caramel.simulation.assumed import AssumedHost, assumed_hardware, assumed_host
from caramel.simulation.hardware import Hardware, Host

WORKERS = "2..256"
BANDWIDTH = "200mbit,1gbit,10gbit"

MOST_WORKERS = 512
MOST_DIFFERENT = 32
"""Each worker is simulated where they differ, which takes a while."""

_KIND, _FORMAT = "caramel scaling curves", 1
_RATE = re.compile(r"(?P<number>[0-9]{1,18}(\.[0-9]+)?) *(?P<unit>[kmg]?)bit", re.IGNORECASE)
_RATE_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_TIME = re.compile(r"(?P<number>[0-9]{1,18}(\.[0-9]+)?) *(?P<unit>us|ms|s)", re.IGNORECASE)
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class HostEntry:
    """A worker in a file of hosts.

    Attributes:
        send: rate of its link, such as "1gbit"; by default that of all links.
        receive: likewise.
        slowdown: it computes so many times more slowly than the machine that was profiled.
    """

    send: str | None = None
    receive: str | None = None
    slowdown: float = 1.0


@dataclass(frozen=True)
class Curves:
    """How a job scales.

    Attributes:
        parameters: number of gradients that are aggregated.
        computation_s: of a step, as the ops were timed.
        points: by setting, in the order of the table.
        served: the same with parameter servers, for each number of these that was asked for.
        left_out: embeddings of which only rows travel: nobody knows how many.
    """

    parameters: int
    computation_s: float
    points: Mapping[Setting, Scaled]
    served: Mapping[Setting, tuple[Served, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def to_json(self) -> str:
        """All points as JSON text."""
        points = [
            {
                **to_json_value(setting),
                **to_json_value(scaled),
                "step_s": scaled.step_s,
                "speedup": scaled.speedup,
                "efficiency": scaled.efficiency,
                **self._served_json(setting),
            }
            for setting, scaled in self.points.items()
        ]
        header = {"kind": _KIND, "format": _FORMAT}
        job = {"parameters": self.parameters, "computation_s": self.computation_s}
        return json.dumps({**header, **job, "points": points}, indent=1) + "\n"

    def _served_json(self, setting: Setting) -> dict[str, Any]:
        if setting not in self.served:
            return {}
        own = [{**to_json_value(each), "step_s": each.step_s} for each in self.served[setting]]
        return {"parameter_servers": own}


def simulated_curves(
    profile: Profile,
    *,
    workers: str | None,
    bandwidth: str | None,
    latency: str,
    pattern: str,
    hosts: Path | None,
    parameter_servers: str | None = None,
    server_bandwidth: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Curves:
    """Simulate the profile's job in every setting; the arguments are those of the command.

    Raises:
        ProfileError: the profile has no job.
        CaramelError: an option that cannot be understood, or that does not fit the others.
    """
    outline = profile.outline
    entries = None if hosts is None else read_hosts(hosts)
    patterns = parse_patterns(pattern)
    settings = _settings(workers, bandwidth, latency, entries)
    timing = profile.timing
    assert timing is not None, "a profile with a job has its timing"
    hardware = {
        each: assumed_hardware(
            _hosts(each, entries),
            each.latency_s,
            timing,
            profile.networks,
            profile.calibration,
        )
        for each in settings
    }
    _check_cost(hardware)
    servers = _servers(parameter_servers, server_bandwidth, settings, timing, outline)
    # It sends nothing, so its rates do not matter.
    alone = Host(1.0, 1.0, timing.slowdown)
    points = sweep(
        outline,
        hardware,
        alone=alone,
        patterns=patterns,
        calibration=profile.calibration,
        progress=progress,
    )
    served = {
        setting: tuple(serve(outline, hardware[setting], each) for each in own)
        for setting, own in servers.items()
    }
    left_out = tuple(each.parameter for each in outline.gradients if each.is_sparse)
    return Curves(len(outline.gradients), outline.free.computation_s, points, served, left_out)


def _servers(
    counts: str | None,
    bandwidth: str | None,
    settings: Sequence[Setting],
    timing: TimingTable,
    outline: JobOutline,
) -> dict[Setting, list[list[Host]]]:
    """The servers of each setting, for each of some numbers of them; nothing if there are none."""
    if counts is None:
        if bandwidth is not None:
            raise CaramelError("--server-bandwidth has no effect without --parameter-servers")
        return {}
    numbers = parse_counts("--parameter-servers", counts, least=1)
    if numbers[-1] > len(outline.gradients):
        raise CaramelError(
            f"--parameter-servers {numbers[-1]}: the job has {len(outline.gradients)} parameters, "
            "and each server needs one"
        )
    own = None if bandwidth is None else _of_option("--server-bandwidth", parse_rate, bandwidth)
    found = {}
    for setting in settings:
        rate = own or setting.bits_per_s
        if rate is None:
            raise CaramelError(
                "--parameter-servers needs --server-bandwidth where every host of --hosts has "
                "rates of its own"
            )
        host = assumed_host(AssumedHost(rate, rate), timing)
        found[setting] = [[host] * number for number in numbers]
    return found


def _settings(
    workers: str | None, bandwidth: str | None, latency: str, entries: Sequence[HostEntry] | None
) -> list[Setting]:
    if entries is None:
        counts = parse_workers(workers or WORKERS)
        needs_rate = True
    else:
        counts = [len(entries)] if workers is None else parse_workers(workers)
        needs_rate = any(None in (entry.send, entry.receive) for entry in entries)
        if max(counts) > MOST_WORKERS:
            raise CaramelError(
                f"--hosts describes {len(entries)} hosts; at most {MOST_WORKERS} can be simulated: "
                "choose fewer with --workers"
            )
        if max(counts) > len(entries):
            raise CaramelError(
                f"--workers {max(counts)}: --hosts describes {len(entries)} hosts only"
            )
    if not needs_rate and bandwidth is not None:
        raise CaramelError("--bandwidth has no effect: every host of --hosts has rates of its own")
    rates: list[float | None] = [None]
    if needs_rate:
        rates = [
            _of_option("--bandwidth", parse_rate, text)
            for text in (bandwidth or BANDWIDTH).split(",")
        ]
    return [
        Setting(count, rate, latency_s)
        for rate in rates
        for latency_s in (_of_option("--latency", parse_time, text) for text in latency.split(","))
        for count in counts
    ]


def _hosts(setting: Setting, entries: Sequence[HostEntry] | None) -> list[AssumedHost]:
    if entries is None:
        entries = [HostEntry()] * setting.workers
    return [_host(entry, setting.bits_per_s) for entry in entries[: setting.workers]]


def _host(entry: HostEntry, bits_per_s: float | None) -> AssumedHost:
    rates = [
        bits_per_s if text is None else parse_rate(text) for text in (entry.send, entry.receive)
    ]
    return AssumedHost(rates[0] or 0.0, rates[1] or 0.0, entry.slowdown)


def _check_cost(hardware: Mapping[Setting, Hardware]) -> None:
    for setting, own in hardware.items():
        if not own.is_uniform and setting.workers > MOST_DIFFERENT:
            raise CaramelError(
                f"{setting.workers} hosts that differ take too long to simulate; at most "
                f"{MOST_DIFFERENT} can: choose fewer with --workers"
            )


# What is typed ----------------------------------------------------------------------------------


def parse_workers(text: str) -> list[int]:
    """Numbers of workers from "2,4,6", or "2..256", which doubles: 2, 4, 8, ..., 256; or how many
    there are in one cluster, such as "local:4"."""
    if ":" in text:
        text = str(count_of(text))
    return parse_counts("--workers", text, least=2)


def parse_counts(option: str, text: str, *, least: int) -> list[int]:
    """Such numbers of an option, none of them less than the least."""
    counts: dict[int, None] = {}
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        ends = [first, last] if dots else [first]
        numbers = [number for end in ends if (number := parse_whole(end)) is not None]
        if len(numbers) < len(ends):
            raise CaramelError(f"{option}: '{part}' is no number such as 4, nor a range as 2..256")
        low, high = numbers[0], numbers[-1]
        if low > high:
            raise CaramelError(f"{option}: '{part}' ends before it begins; write {high}..{low}")
        if not least <= low <= high <= MOST_WORKERS:
            raise CaramelError(f"{option}: '{part}' is not within {least} to {MOST_WORKERS}")
        while low < high:
            counts[low] = None
            low *= 2
        counts[high] = None
    return sorted(counts)


def _of_option(option: str, parse: Callable[[str], float], text: str) -> float:
    """What is given as a part of an option.

    Raises:
        CaramelError: it cannot be understood; names the option.
    """
    try:
        return parse(text)
    except CaramelError as error:
        raise CaramelError(f"{option}: {error}") from None


def parse_rate(text: str) -> float:
    """Bits per second from "200mbit", "1gbit" or "2.5gbit"."""
    found = _RATE.fullmatch(text.strip())
    if found is None or not float(found["number"]):
        raise CaramelError(f"'{text}' is no rate of a link; expected one such as 200mbit or 1gbit")
    return float(found["number"]) * _RATE_UNITS[found["unit"].lower()]


def parse_time(text: str) -> float:
    """Seconds from "0.1ms", "30ms" or "50us"."""
    found = _TIME.fullmatch(text.strip())
    if found is None:
        raise CaramelError(f"'{text}' is no time; expected one such as 50us, 0.1ms or 1s")
    return float(found["number"]) * _TIME_UNITS[found["unit"].lower()]


def parse_patterns(text: str) -> tuple[str, ...]:
    """Patterns from "auto", which is all of them, or "ring,shuffle"."""
    if text == AUTO:
        return PATTERNS
    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_pattern(name, AUTO)
    return tuple(dict.fromkeys(names))


def read_hosts(path: Path) -> tuple[HostEntry, ...]:
    """The hosts in a file.

    Raises:
        CaramelError: it cannot be read, or has another form; says where.
    """
    try:
        value: Any = read_json(path.read_text())
    except OSError as error:
        raise CaramelError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise CaramelError(f"{path} is not JSON: {error}") from None
    try:
        entries = from_json_value(tuple[HostEntry, ...], value)
        for number, entry in enumerate(entries):
            _check_entry(entry, f"$[{number}]")
    except PlanError as error:
        raise CaramelError(f"{path}: {error}") from None
    if len(entries) < 2:
        raise CaramelError(f"{path} describes {len(entries)} hosts; two are the least")
    return entries


def _check_entry(entry: HostEntry, where: str) -> None:
    try:
        # Any rate: only what the entry itself says is looked at.
        _host(entry, 1.0)
    except CaramelError as error:
        raise PlanError(f"{where}: {error}") from None


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar that is shown from when it moves on, and what moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with ExitStack() as stack:
        bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
        bar = bars.add_task("settings", total=None)

        def move(done: int, total: int) -> None:
            # Mistakes in options are told before, without a bar above them.
            if not bars.live.is_started:
                stack.enter_context(bars)
            bars.update(bar, completed=done, total=total)

        yield move
