"""Which graph is it, and which machine? Answers that are the same in every process."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Machine:
    """What ops run on.

    Attributes:
        processor: its name.
        cores: how many of its cores this process may use.
        device: what runs the ops: "CPU", or the model of an accelerator.
    """

    processor: str
    cores: int
    device: str

    def __str__(self) -> str:
        cores = f"{self.cores} core" if self.cores == 1 else f"{self.cores} cores"
        other = "" if self.device == "CPU" else f", {self.device}"
        return f"{self.processor}, {cores}{other}"


def this_machine(device: str = "CPU") -> Machine:
    """The machine that this process runs on, with the given device."""
    can_tell = hasattr(os, "sched_getaffinity")  # not on macOS
    cores = len(os.sched_getaffinity(0)) if can_tell else os.cpu_count() or 1
    return Machine(_processor(), cores, device)


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    except OSError:  # only Linux has it
        pass
    return platform.processor() or platform.machine() or "unknown"


def graph_hash(graph_def: Any) -> str:
    """A hash of a GraphDef that does not depend on the process, nor on the order of functions."""
    return digest(*_parts(graph_def))


def digest(*parts: str | bytes) -> str:
    """A hash of several texts; where one ends and the next begins counts."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def _parts(graph_def: Any) -> Iterator[bytes]:
    # Maps have no order of their own in a proto: only `deterministic` gives them one.
    yield graph_def.versions.SerializeToString(deterministic=True)
    for node in graph_def.node:
        yield node.SerializeToString(deterministic=True)
    functions = sorted(graph_def.library.function, key=lambda function: function.signature.name)
    for function in functions:
        yield function.SerializeToString(deterministic=True)
    gradients = sorted(graph_def.library.gradient, key=lambda gradient: gradient.function_name)
    for gradient in gradients:
        yield gradient.SerializeToString(deterministic=True)
