"""What a benchmark measured: samples, statistics, and a file that says where they come from."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environment import TENSORFLOW
from benchmarks.testbed import CONGESTION_CONTROL

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("caramel-tf", "tensorflow", "numpy", "torch", "mpi4py", "horovod")
_BUSY_LOAD_PER_CORE = 0.3  # of other programs, from which on a machine counts as loaded


@dataclass(frozen=True)
class Row:
    """One cell of a benchmark: what was measured, and all samples in seconds."""

    what: Mapping[str, Any]
    samples_s: tuple[float, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    invalid: str | None = None

    @property
    def median_s(self) -> float:
        """The median of the samples."""
        return float(np.median(self.samples_s))

    @property
    def best_s(self) -> float:
        """The smallest sample."""
        return float(np.min(self.samples_s))

    @property
    def spread(self) -> float:
        """Over what part of their median the middle 80 % of the samples are spread."""
        low_s, high_s = np.percentile(self.samples_s, [10, 90])
        return float((high_s - low_s) / self.median_s)


@dataclass(frozen=True)
class Interval:
    """A ratio with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f}-{self.high:.2f})"


def ratio_of_medians(
    numerator: Sequence[float], denominator: Sequence[float], *, draws: int = 2000, seed: int = 0
) -> Interval:
    """How many times larger one median is, with a bootstrap interval over samples.

    Where there are as many of each, samples with the same number were taken right after each other
    and are drawn together, so what slowed down a whole round does not widen the interval. Else
    they did not take turns.
    """
    drawn = _drawn_ratios(numerator, denominator, draws, seed)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(float(np.median(numerator) / np.median(denominator)), float(low), float(high))


def ratio_across_lots(
    numerator: tuple[Sequence[float], Sequence[float]],
    denominator: tuple[Sequence[float], Sequence[float]],
    *,
    draws: int = 2000,
    seed: int = 0,
) -> Interval:
    """How many times larger one median is than one of another lot, with a bootstrap interval.

    Each comes with the samples of something that was measured in both lots. They are compared by
    their ratios to these, so what made a whole lot slower does not count.
    """
    top = _drawn_ratios(*numerator, draws, seed)
    bottom = _drawn_ratios(*denominator, draws, seed + 1)
    low, high = np.percentile(top / bottom, [2.5, 97.5])
    middles = [float(np.median(own) / np.median(other)) for own, other in (numerator, denominator)]
    return Interval(middles[0] / middles[1], float(low), float(high))


def _drawn_ratios(
    numerator: Sequence[float], denominator: Sequence[float], draws: int, seed: int
) -> np.ndarray:
    random = np.random.default_rng(seed)
    top = random.integers(0, len(numerator), (draws, len(numerator)))
    bottom = top
    if len(numerator) != len(denominator):
        bottom = random.integers(0, len(denominator), (draws, len(denominator)))
    medians = [
        np.median(np.asarray(samples)[picks], axis=1)
        for samples, picks in ((numerator, top), (denominator, bottom))
    ]
    return np.asarray(medians[0] / medians[1])


def machine() -> dict[str, Any]:
    """The machine, TCP on the hosts of beds, TensorFlow's environment, and what is installed."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "tcp": CONGESTION_CONTROL,
        "tensorflow": TENSORFLOW,
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def load_of_others() -> float:
    """The load of the last minute for each core, to be asked before a benchmark begins."""
    return os.getloadavg()[0] / (os.cpu_count() or 1)


def processor_s() -> float:
    """Seconds that all processors of this machine have worked since it started."""
    user, nice, system, _, _, irq, softirq = Path("/proc/stat").read_text().split()[1:8]
    ticks = sum(int(count) for count in (user, nice, system, irq, softirq))
    return ticks / os.sysconf("SC_CLK_TCK")


def busy_share(seconds: float = 1.0) -> float:
    """Which share of the processors others use now: 0 to 1."""
    before, begin = processor_s(), time.perf_counter()
    time.sleep(seconds)
    return (processor_s() - before) / ((time.perf_counter() - begin) * (os.cpu_count() or 1))


def is_loaded(load_per_core: float) -> bool:
    """Whether a machine was too busy with other things for its numbers to be trusted."""
    return load_per_core > _BUSY_LOAD_PER_CORE


def write(
    name: str, settings: Mapping[str, Any], rows: Sequence[Row], *, load: float, directory: Path
) -> Path:
    """Write a result file; returns its path.

    Args:
        load: what `load_of_others` said before the benchmark began.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    content = {
        "benchmark": name,
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": settings.get("command"),
        "machine": machine(),
        "load_before_per_core": round(load, 2),
        "settings": dict(settings),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=1, default=float) + "\n")
    return path
