"""Which graph is it, and which machine? Answers that are the same in every process."""

from __future__ import annotations

import hashlib
import itertools
import os
import platform
import re
from collections.abc import Iterable, Iterator
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
    return Machine(_processor(), processors(), device)


def processors() -> int:
    """How many processors this process may use; a container may have fewer than there are."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    """A hash of a GraphDef that is the same whenever a program builds the same graph.

    It depends on neither the process nor the order of functions, nor on the numbers in their names,
    which count all that the process has made; but on the names of nodes, by which facts are known.
    """
    return digest(*_parts(graph_def))


def digest(*parts: str | bytes) -> str:
    """A hash of several texts; where one ends and the next begins counts."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        # Else "ab", "c" would be "a", "bc".
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def _parts(graph_def: Any) -> Iterator[bytes]:
    # Maps have no order of their own in a proto: only `deterministic` gives them one.
    yield graph_def.versions.SerializeToString(deterministic=True)
    functions = {function.signature.name: function for function in graph_def.library.function}
    gradients = {gradient.function_name: gradient for gradient in graph_def.library.gradient}
    names = _CountedNames(functions)
    for node in graph_def.node:
        yield names.part(node, node.name)
    # Functions that are called by their numbers come in the order in which they are mentioned.
    found = sorted(name for name in functions if not _is_counted(name))
    for name in itertools.chain(found, names.mentioned):  # a function may mention others
        for about in (functions.get(name), gradients.get(name)):
            if about is not None:
                yield names.part(about)


def _is_counted(name: str) -> bool:
    return any(character.isdigit() for character in name)


_TYPES = ("PartitionedCall-", "CustomGradient-")


class _CountedNames:
    """Puts another number into the names of functions: that of their first mention.

    Attributes:
        mentioned: the names, in the order in which parts mention them.
    """

    def __init__(self, functions: Iterable[str]) -> None:
        self.mentioned: list[str] = []
        self._instead: dict[str, str] = {}
        # A name may be the beginning of another one.
        longest_first = sorted(filter(_is_counted, functions), key=len, reverse=True)
        counted = [re.escape(name) for name in longest_first]
        # By a type such as "PartitionedCall-12" the gradient of a call is found.
        types = r"(?:(?:Stateful)?PartitionedCall|CustomGradient)-\d+"
        self._name = re.compile(rf"(?:{'|'.join([*counted, types])})(?!\d)")
        self._in_bytes = [name.encode() for name in [*longest_first, *_TYPES]]

    def part(self, message: Any, name: str = "") -> bytes:
        """A message as bytes, with other names but its own."""
        data: bytes = message.SerializeToString(deterministic=True)
        if not any(each in data for each in self._in_bytes):  # far quicker than the expression
            return data
        # Bytes hold the lengths of names, too, which depend on the count; a text does not.
        return f"{name}\n{self._name.sub(self._other, str(message))}".encode()

    def _other(self, found: re.Match[str]) -> str:
        name = found[0]
        if name not in self._instead:
            self._instead[name] = f"{re.sub(r'_?[0-9]+', '', name)}({len(self.mentioned)})"
            self.mentioned.append(name)
        return self._instead[name]
