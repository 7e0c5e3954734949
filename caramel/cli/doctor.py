"""What ``caramel doctor`` does: says what this machine has for Caramel, and what to change."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from caramel.cluster import onednn_check, tcp_check
from caramel.cluster.quiet_start import quiet_start
from caramel.core.util.disk_cache import VARIABLE, cache_directory
from caramel.core.util.fingerprint import this_machine
from caramel.core.util.sizes import bytes_text
from caramel.core.version import TENSORFLOW

_VECTORS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
_ASK_S = 10.0  # how long a command of the system may take
_LEAST_FREE = 2**30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: a name.
        found: what this machine has.
        advice: what to change, in a sentence; None if all is well.
        prevents: whether Caramel cannot work as it is.
    """

    what: str
    found: str
    advice: str | None = None
    prevents: bool = False


def findings() -> Iterator[Finding]:
    """All that is looked at, one after the other; the devices last, as TensorFlow takes seconds."""
    tensorflow = _tensorflow()
    for look in (_python, lambda: tensorflow, _machine, _memory, _vectors, _onednn, _tcp):
        yield look()
    for look in (_private_network, _test_hosts, _cache):
        yield look()
    yield Finding("devices", "not looked at: no TensorFlow") if tensorflow.prevents else _devices()


def show(found: Iterator[Finding], console: Console) -> bool:
    """Print what is found; whether Caramel can work here."""
    with console.status("looking at this machine"):
        rows = list(found)
    table = Table(show_header=False, show_edge=False)
    for _ in ("mark", "what", "found"):
        table.add_column()
    for row in rows:
        mark = "[red]✗[/]" if row.prevents else "[yellow]![/]" if row.advice else "[green]✓[/]"
        table.add_row(mark, row.what, row.found)
    console.print(table)
    for row in filter(lambda each: each.advice, rows):
        # In lines of their own, so that commands in them can be copied.
        console.print(
            f"\n{row.what}: {(row.advice or '').rstrip('.')}.",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
    return not any(row.prevents for row in rows)


def _python() -> Finding:
    return Finding("Python", platform.python_version())


def _tensorflow() -> Finding:
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        fits = version.startswith(f"{TENSORFLOW}.")
        advice = f"pip install '{name}=={TENSORFLOW}.*': Caramel needs exactly this one"
        return Finding("TensorFlow", version, None if fits else advice, prevents=not fits)
    return Finding("TensorFlow", "none", f"pip install 'tensorflow=={TENSORFLOW}.*'", prevents=True)


def _machine() -> Finding:
    machine = this_machine()
    advice = None
    if machine.cores == 1:
        advice = (
            "with one core, TensorFlow's transfers take time from the computation; give each "
            "worker two if you can"
        )
    return Finding("processor", str(machine), advice)


def _memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        own = int(limit.read_text())
    except (OSError, ValueError):  # no such group, or "max"
        own = total
    if own < total:
        return Finding(
            "memory", f"{bytes_text(own)} for this process's group, of {bytes_text(total)}"
        )
    return Finding("memory", bytes_text(total))


def _vectors() -> Finding:
    known = onednn_check.features()
    found = [name for name in _VECTORS if name in known]
    if platform.machine() not in ("x86_64", "AMD64"):
        return Finding("vector instructions", f"those of {platform.machine()}")
    if "avx" not in found:
        advice = "TensorFlow's packages need AVX; this processor cannot run them"
        return Finding("vector instructions", ", ".join(found) or "none", advice, prevents=True)
    return Finding("vector instructions", ", ".join(found))


def _onednn() -> Finding:
    setting = os.environ.get(onednn_check.SETTING)
    found = f"{onednn_check.SETTING}={setting}" if setting else "as TensorFlow chooses"
    return Finding("oneDNN", found, onednn_check.advice())


def _tcp() -> Finding:
    try:
        name = tcp_check.SETTING.read_text().strip()
    except OSError:
        name = "unknown"
    return Finding("TCP", name, tcp_check.advice(["another-host:1"]))


_PRIVATE = """
from caramel.core.errors import ClusterError
from caramel.protection.namespace import enter_network_namespace
try:
    enter_network_namespace()
except ClusterError as error:
    print(error)
"""


def _private_network() -> Finding:
    """Whether a worker can be where strangers do not reach it, as `caramel worker --secure` is."""
    what = "network of a worker's own"
    command = [sys.executable, "-c", _PRIVATE]  # in a process of its own, which stays there
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(what, f"could not be tried: {error}")
    if advice := done.stdout.strip():
        return Finding(what, "cannot be made", advice)
    return Finding(what, "can be made")


def _test_hosts() -> Finding:
    """Whether hosts can be tried out on this machine, each with its own link."""
    what = "test hosts on this machine"
    if os.geteuid() != 0:
        return Finding(what, "need root")  # nobody needs them to train
    tools = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if tools:
        return Finding(what, f"{' and '.join(tools)} missing", "install iproute2")
    return Finding(what, "can be made")


def _cache() -> Finding:
    directory = cache_directory()
    there = next(each for each in (directory, *directory.parents) if each.exists())
    advice = None
    if not os.access(there, os.W_OK):
        advice = (
            f"set {VARIABLE} to a directory that this user can write; else each job measures "
            "itself anew"
        )
    elif (free := shutil.disk_usage(there).free) < _LEAST_FREE:
        advice = f"only {bytes_text(free)} are free there"
    return Finding("cache", str(directory), advice)


def _devices() -> Finding:
    """What TensorFlow computes on."""
    with quiet_start():
        import tensorflow as tf

        kinds = [device.device_type for device in tf.config.list_physical_devices()]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    advice = None
    if "GPU" not in kinds and shutil.which("nvidia-smi"):
        advice = (
            "there is an NVIDIA driver, but TensorFlow finds no GPU: pip install "
            f"'tensorflow[and-cuda]=={TENSORFLOW}.*'"
        )
    return Finding("devices", counted, advice)
