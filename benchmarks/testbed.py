"""Several hosts on one machine, joined by a real network whose rate is limited.

    python -m benchmarks.testbed --hosts 4 --rate 1gbit --pin -- COMMAND

Each host is a network namespace with an interface eth0, a hostname that resolves to eth0's address,
and, if wanted, a core of its own. eth0 is one end of a veth pair, the other end is a port of the
bed's own bridge. A token bucket (tbf) limits what a host sends. What it receives is limited only by
its senders, so several at once can exceed one link, unless the bed is made with `both_ways`.

`rate` is a rate as tc takes it, such as "1gbit" (10^9 bit/s) or "200mbit". tc counts Ethernet
frames: 1514 bytes carry at most 1448 bytes of a TCP stream (`PAYLOAD_SHARE`). An interface's own
counters show less overhead, since the kernel passes on up to 64 KB under a single header.

Everything a bed makes bears its name, `cm<creator's process id>b<subnet, hexadecimal>`: the bridge,
and with h0, h1, ... added each host's namespace, port and directory in /etc/netns. All of it is
removed when the bed is closed, also by an exception, SIGINT, SIGTERM or SIGHUP; what a killed
creator left is removed when the next bed is made. This needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

PAYLOAD_SHARE = 1448 / 1514
"""Of what tc counts, the part that a TCP stream can fill: 1500 bytes less the headers of IP (20)
and TCP (20, and 12 for timestamps), of the 1500 and an Ethernet header (14)."""

BURST, LATENCY = "256kb", "20ms"
"""How much a host may send at once, and how long a packet may wait before packets are dropped."""

MOST_HOSTS = 100
INTERFACE = "eth0"
NETWORK = "10.77.{subnet}.0/24"
NAMESPACES = Path("/run/netns")
ETC = Path("/etc/netns")
LOCK_DIRECTORY = "/run"  # is always there, so that no file for the lock is left behind
LOCK_TIMEOUT_S = 60.0
NAME = re.compile(r"(?P<bed>cm(?P<pid>\d{1,7})b(?P<subnet>[0-9a-f]{2}))(?:h\d{1,2})?")
ON_HOST = 'hostname "$0" && exec "$@"'


class BedError(RuntimeError):
    """A test bed cannot be made, changed or removed; the message says why."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a bed.

    Attributes:
        name: its hostname, which resolves to `address` on every host of the bed.
        address: the IPv4 address of its interface.
        namespace: its network namespace, as in `ip netns exec NAMESPACE`.
        core: the only core its programs use, or None if they may use all.
        interface: its network interface, as seen on the host.
    """

    name: str
    address: str
    namespace: str
    core: int | None
    interface: str = INTERFACE


@dataclass(frozen=True, slots=True)
class Counters:
    """What a host's interface has sent (tx) and received (rx), as the host itself counts it.

    Bytes include headers. A packet is what the kernel passes on at once: up to 64 KB of a stream
    count as one packet with one header.
    """

    host: str
    tx_bytes: int
    tx_packets: int
    rx_bytes: int
    rx_packets: int


def difference(before: Sequence[Counters], after: Sequence[Counters]) -> tuple[Counters, ...]:
    """What each host has sent and received between two calls of `Testbed.counters`."""
    return tuple(
        Counters(
            host=new.host,
            tx_bytes=new.tx_bytes - old.tx_bytes,
            tx_packets=new.tx_packets - old.tx_packets,
            rx_bytes=new.rx_bytes - old.rx_bytes,
            rx_packets=new.rx_packets - old.rx_packets,
        )
        for old, new in zip(before, after, strict=True)
    )


class Testbed:
    """Hosts on this machine with a network of their own, as a context manager.

    In a thread other than the main one, SIGTERM and SIGHUP are left to the program.
    """

    __test__ = False  # pytest would take it for a test

    def __init__(
        self,
        hosts: int = 2,
        rate: str = "1gbit",
        *,
        pin_cores: bool = False,
        both_ways: bool = False,
        reach_from_root: bool = False,
        grace_s: float = 3.0,
    ) -> None:
        """Describe a bed; entering it makes it.

        Args:
            hosts: how many, 1 to 100.
            rate: what each host may send, as tc takes it, such as "1gbit".
            pin_cores: keep the programs of host i on core i, modulo the cores there are.
            both_ways: limit what a host receives to `rate`, too.
            reach_from_root: give the machine itself an unlimited interface to the hosts.
            grace_s: seconds that programs get between SIGTERM and SIGKILL when the bed is closed.

        Raises:
            BedError: an impossible number of hosts.
        """
        if not 1 <= hosts <= MOST_HOSTS:
            raise BedError(f"a bed has 1 to {MOST_HOSTS} hosts, not {hosts}")
        self.hosts: tuple[Host, ...] = ()
        self._count, self._rate, self._both_ways = hosts, rate, both_ways
        self._cores = sorted(os.sched_getaffinity(0)) if pin_cores else None
        self._reach_from_root, self._grace_s = reach_from_root, grace_s
        self._name = ""  # empty while there is no bed
        self._owner_pid = os.getpid()
        self._processes: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Testbed:
        """Make the bed.

        Raises:
            BedError: something is missing, or a command failed. Nothing is left behind.
        """
        if lacking := missing():
            raise BedError(f"a test bed needs {', '.join(lacking)}")
        if self._name:
            raise BedError("this bed is open already")
        self._owner_pid = os.getpid()
        _exit_on_signals()
        try:
            with _signals_deferred(), _lock():
                _remove_leftovers()
                subnet = _free_subnet()
                self._name = f"cm{self._owner_pid}b{subnet:02x}"
                _open_beds.add(self._name)
                self._make(IPv4Network(NETWORK.format(subnet=subnet)))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the bed."""
        self.close()

    def close(self) -> None:
        """End all programs on the hosts and remove the bed. A second call does nothing.

        Raises:
            BedError: something could not be removed.
        """
        if os.getpid() != self._owner_pid:  # a fork of the owner
            return
        try:
            if self._name:
                with _signals_deferred():
                    self._remove()
        finally:
            _open_beds.discard(self._name)
            self._name, self.hosts = "", ()
            self._processes.clear()
            _restore_signals()

    def popen(
        self,
        host: Host | int | None,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> subprocess.Popen[Any]:
        """Start a program on a host. It ends with the bed, as does all that it starts there.

        Args:
            host: where; None is the machine itself, outside of the bed.
            argv: the program and its arguments.
            env: variables set in addition to those of this process.
            popen: further arguments of `subprocess.Popen`; the program has a session of its own
                unless `start_new_session=False` is one of them.

        Returns:
            The process; its id is the program's. A program that does not exist exits with 127.

        Raises:
            BedError: there is no such host.
        """
        command = list(argv) if host is None else _on_host(self._host(host), argv)
        popen.setdefault("start_new_session", True)
        process = subprocess.Popen(command, env={**os.environ, **(env or {})}, **popen)
        self._processes.append(process)
        return process

    def run(
        self,
        host: Host | int | None,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        check: bool = True,
        **popen: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on a host to its end, as `popen` starts it; its output is captured.

        Raises:
            BedError: there is no such host, or (with `check`) the program failed.
            subprocess.TimeoutExpired: it did not end within `timeout_s` seconds. It is killed.
        """
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = self.popen(host, argv, env=env, **{**pipes, **popen})
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            self._processes.remove(process)
        if check and process.returncode:
            where = "the machine" if host is None else self._host(host).name
            raise BedError(
                f"{' '.join(argv)} on {where} ended with {process.returncode}: {errors or output}"
            )
        return subprocess.CompletedProcess(list(argv), process.returncode, output, errors)

    def cut(self, host: Host | int) -> None:
        """Cut a host off: no packet reaches or leaves it any more, and nobody is told."""
        self._set_port(host, "disabled")

    def heal(self, host: Host | int) -> None:
        """Let packets through again to and from a host that was cut off."""
        self._set_port(host, "forwarding")

    def set_rate(self, host: Host | int, rate: str) -> None:
        """Limit what a host sends (and receives, with `both_ways`) to `rate`, from now on."""
        name = self._host(host).namespace
        limit = ("root", "tbf", "rate", rate, "burst", BURST, "latency", LATENCY)
        _call("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, *limit)
        if self._both_ways:
            _call("tc", "qdisc", "replace", "dev", name, *limit)

    def counters(self) -> tuple[Counters, ...]:
        """What each host has sent and received since the bed was made, in the order of `hosts`."""
        return tuple(_read_counters(host) for host in self.hosts)

    def _host(self, host: Host | int) -> Host:
        if isinstance(host, Host) and host in self.hosts:
            return host
        if isinstance(host, int) and 0 <= host < len(self.hosts):
            return self.hosts[host]
        raise BedError(f"this bed has no host {host}: it has {len(self.hosts)}, counted from 0")

    def _make(self, network: IPv4Network) -> None:
        cores = self._cores
        self.hosts = tuple(
            Host(
                name=f"host{i}",
                address=str(network[i + 1]),
                namespace=f"{self._name}h{i}",
                core=cores[i % len(cores)] if cores else None,
            )
            for i in range(self._count)
        )
        _call("ip", "link", "add", self._name, "type", "bridge", "mcast_snooping", "0")
        _keep_silent("ip", self._name)
        _call("ip", "link", "set", self._name, "up")
        if self._reach_from_root:
            own = f"{network[-2]}/{network.prefixlen}"
            _call("ip", "address", "add", own, "dev", self._name)
        for host in self.hosts:
            self._make_host(host, network.prefixlen)

    def _make_host(self, host: Host, prefix_length: int) -> None:
        name = host.namespace
        own = f"{host.address}/{prefix_length}"
        ip = ("ip", "-n", name)
        _write_hosts_file(name, self.hosts)
        _call("ip", "netns", "add", name)
        _call(*("ip", "link", "add", name, "type", "veth"), *("peer", INTERFACE, "netns", name))
        _keep_silent("ip", name)
        _keep_silent(*ip, INTERFACE)
        _call("ip", "link", "set", name, "master", self._name, "up")
        _call(*ip, "link", "set", "lo", "up")
        _call(*ip, "address", "add", own, "dev", INTERFACE)
        self.set_rate(host, self._rate)
        _call(*ip, "link", "set", INTERFACE, "up")

    def _set_port(self, host: Host | int, state: str) -> None:
        # Not its link: without a carrier the host itself would notice. And not by `ip`, which
        # tells the bridge of the change in such a way that it opens the port again.
        number = {"disabled": "0", "forwarding": "3"}[state]
        port = self._host(host).namespace
        _call("bridge", "link", "set", "dev", port, "state", number)

    def _remove(self) -> None:
        try:
            _end_processes(self._name, self._processes, self._grace_s)
        finally:
            with _lock():
                _remove_by_name(self._name)


# What is needed ----------------------------------------------------------------------------------


def missing() -> list[str]:
    """What this machine lacks for a bed, in words; empty if nothing."""
    if os.geteuid() != 0:
        return ["root"]
    programs = dict.fromkeys(("ip", "tc", "bridge"), "iproute2")
    programs |= {"unshare": "util-linux", "taskset": "util-linux", "hostname": "hostname"}
    lacking = [
        f"the program {program} (package {package})"
        for program, package in programs.items()
        if shutil.which(program) is None
    ]
    if not lacking and _try("unshare", "--net", "--uts", "true").returncode:
        lacking = ["permission to make network namespaces"]
    return lacking


# Programs ----------------------------------------------------------------------------------------


def _on_host(host: Host, argv: Sequence[str]) -> list[str]:
    # Each of these replaces itself by the next, so the program keeps the process id.
    enter = ["ip", "netns", "exec", host.namespace, "unshare", "--uts"]
    pin = [] if host.core is None else ["taskset", "-c", str(host.core)]
    return [*enter, "sh", "-c", ON_HOST, host.name, *pin, *argv]


def _end_processes(
    bed: str, processes: Sequence[subprocess.Popen[Any]], grace_s: float = 0.0
) -> None:
    """End what runs in the namespaces of `bed`, and `processes` with their groups."""
    steps = [(signal.SIGTERM, grace_s)] if grace_s > 0 else []
    for number, wait_s in [*steps, (signal.SIGKILL, 5.0)]:
        _signal_all(bed, processes, number)
        deadline = time.monotonic() + wait_s
        while _still_running(bed, processes) and time.monotonic() < deadline:
            if number == signal.SIGKILL:  # also what was started in between
                _signal_all(bed, processes, number)
            time.sleep(0.02)
    if left := _still_running(bed, processes):
        raise BedError(f"processes that do not end: {', '.join(map(str, sorted(left)))}")


def _signal_all(
    bed: str, processes: Sequence[subprocess.Popen[Any]], number: signal.Signals
) -> None:
    for process in processes:
        with suppress(ProcessLookupError):  # its group is its own only in a session of its own
            if process.poll() is None and os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, number)
    for pid in _still_running(bed, processes):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _still_running(bed: str, processes: Sequence[subprocess.Popen[Any]]) -> set[int]:
    running = {process.pid for process in processes if process.poll() is None}
    return running | _processes_in(bed)


def _processes_in(bed: str) -> set[int]:
    """The ids of all processes in the namespaces of `bed`, without this one."""
    namespaces = set()
    for name in _names_in(NAMESPACES, bed):
        with suppress(OSError):
            namespaces.add(_identity(NAMESPACES / name))
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if _identity(entry / "ns" / "net") in namespaces:
                    found.add(int(entry.name))
    return found


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


# What a bed consists of --------------------------------------------------------------------------


def _write_hosts_file(namespace: str, hosts: Sequence[Host]) -> None:
    """`ip netns exec` shows this file as /etc/hosts."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{host.address} {host.name}" for host in hosts]
    directory = ETC / namespace
    directory.mkdir(parents=True)
    (directory / "hosts").write_text("\n".join(lines) + "\n")


def _read_counters(host: Host) -> Counters:
    text = _call("ip", "-n", host.namespace, "-s", "-j", "link", "show", host.interface)
    sums = json.loads(text)[0]["stats64"]
    return Counters(
        host=host.name,
        tx_bytes=sums["tx"]["bytes"],
        tx_packets=sums["tx"]["packets"],
        rx_bytes=sums["rx"]["bytes"],
        rx_packets=sums["rx"]["packets"],
    )


def _free_subnet() -> int:
    """The lowest x of 10.77.x.0/24 that no bed has and no route of this machine touches."""
    routes = json.loads(_call("ip", "-j", "-4", "route", "show", "table", "all"))
    used = []
    for route in routes:
        with suppress(ValueError):  # such as "default"
            used.append(IPv4Network(route["dst"]))
    beds = (NAME.fullmatch(bed) for bed in _all_beds())
    taken = {int(match["subnet"], 16) for match in beds if match}
    for subnet in range(256):
        network = IPv4Network(NETWORK.format(subnet=subnet))
        if subnet not in taken and not any(map(network.overlaps, used)):
            return subnet
    raise BedError("all 256 subnets of 10.77.0.0/16 are in use")


def _all_beds() -> set[str]:
    """The beds that have left any trace on this machine."""
    names = [*_links(), *_names_in(NAMESPACES), *_names_in(ETC)]
    return {match["bed"] for match in map(NAME.fullmatch, names) if match}


def _links(bed: str | None = None) -> list[str]:
    return [name for _, name in socket.if_nameindex() if _belongs(name, bed)]


def _names_in(directory: Path, bed: str | None = None) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if _belongs(name, bed)]
    except FileNotFoundError:
        return []


def _belongs(name: str, bed: str | None) -> bool:
    match = NAME.fullmatch(name)
    return match is not None and bed in (None, match["bed"])


def _remove_by_name(bed: str) -> None:
    """Remove all that bears the name of `bed`, complete or not; the caller holds the lock."""
    for link in _links(bed):
        _try("ip", "link", "delete", link)
    for name in _names_in(NAMESPACES, bed):
        _try("ip", "netns", "delete", name)
    for name in _names_in(ETC, bed):
        shutil.rmtree(ETC / name, ignore_errors=True)
    with suppress(OSError):  # somebody else uses it
        ETC.rmdir()
    if left := {*_links(bed), *_names_in(NAMESPACES, bed), *_names_in(ETC, bed)}:
        raise BedError(f"could not remove {', '.join(sorted(left))}")


def _remove_leftovers() -> None:
    """Remove the beds whose creators have gone; the caller holds the lock."""
    for bed in sorted(_all_beds()):
        match = NAME.fullmatch(bed)
        assert match is not None
        if _is_left_over(bed, int(match["pid"])):
            with suppress(BedError):  # it is in nobody's way
                _end_processes(bed, [])
                _remove_by_name(bed)


def _is_left_over(bed: str, creator_pid: int) -> bool:
    if creator_pid == os.getpid():
        return bed not in _open_beds
    try:
        status = Path(f"/proc/{creator_pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(") ")[2].startswith("Z")  # ended, its parent has not noticed yet


# Commands, the lock, signals ---------------------------------------------------------------------


def _try(*command: str) -> subprocess.CompletedProcess[str]:
    # In a session of its own: Ctrl-C in a terminal does not stop a removal half-way.
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, start_new_session=True
    )


def _call(*command: str) -> str:
    done = _try(*command)
    if done.returncode:
        reason = "; ".join(done.stderr.split("\n")[:3]).strip("; ")
        raise BedError(f"{' '.join(command)} failed: {reason or done.returncode}")
    return done.stdout


def _keep_silent(*ip_and_interface: str) -> None:
    """Let an interface have no IPv6 address, and so nothing to announce on the wire."""
    *ip, interface = ip_and_interface
    _try(*ip, "link", "set", interface, "addrgenmode", "none")  # fails where there is no IPv6


@contextmanager
def _lock() -> Iterator[None]:
    """Only one bed of this machine is made or removed at a time."""
    descriptor = os.open(LOCK_DIRECTORY, os.O_RDONLY | os.O_DIRECTORY)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > deadline:
                raise BedError(f"another bed is being made for over {LOCK_TIMEOUT_S:.0f} s")
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)  # this also unlocks


_open_beds: set[str] = set()
"""The names of this process's beds."""

_DEADLY = (signal.SIGTERM, signal.SIGHUP)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _exit_on_signals() -> None:
    """Make signals that would kill this process exit it instead, so that beds are removed."""
    if threading.current_thread() is threading.main_thread():
        for number in _DEADLY:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)


def _restore_signals() -> None:
    if threading.current_thread() is threading.main_thread() and not _open_beds:
        for number in _DEADLY:
            if signal.getsignal(number) is _exit:
                signal.signal(number, signal.SIG_DFL)


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Signals that arrive in the body take effect after it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, *_DEADLY)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for each in arrived:
            signal.raise_signal(each)


# The command -------------------------------------------------------------------------------------

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def _command(
    command: Annotated[
        list[str],
        typer.Argument(
            help="What to run, after --. In it, {hosts} stands for the hosts' addresses and "
            "{namespaces} for their namespaces, with commas in between."
        ),
    ],
    hosts: Annotated[int, typer.Option(help="How many hosts.")] = 2,
    rate: Annotated[str, typer.Option(help="What each may send, as tc takes it.")] = "1gbit",
    pin: Annotated[bool, typer.Option("--pin", help="Give each host a core of its own.")] = False,
    both_ways: Annotated[
        bool, typer.Option("--both-ways", help="Limit what a host receives, too.")
    ] = False,
    on: Annotated[
        str, typer.Option(help="Where to run COMMAND: a host's number, or root for the machine.")
    ] = "0",
) -> None:
    """Run COMMAND in a bed of hosts; exit as it does."""
    if on != "root" and not on.isdecimal():
        raise BedError(f"--on takes a host's number or root, not {on}")
    bed = Testbed(hosts, rate, pin_cores=pin, both_ways=both_ways, reach_from_root=on == "root")
    with bed:
        for host in bed.hosts:
            core = "" if host.core is None else f" core {host.core}"
            print(f"{host.name} {host.address} {rate}{core} {host.namespace}", file=sys.stderr)
        argv = [_expand(argument, bed.hosts) for argument in command]
        exit_code = bed.popen(None if on == "root" else int(on), argv).wait()
        Console(stderr=True).print(_traffic_table(bed))
    sys.exit(exit_code if exit_code >= 0 else 128 - exit_code)


def _expand(argument: str, hosts: Sequence[Host]) -> str:
    argument = argument.replace("{hosts}", ",".join(host.address for host in hosts))
    return argument.replace("{namespaces}", ",".join(host.namespace for host in hosts))


def _traffic_table(bed: Testbed) -> Table:
    table = Table("host", "address", title="Traffic of each interface")
    for title in ("sent, bytes", "packets", "received, bytes", "packets"):
        table.add_column(title, justify="right")
    for host, sums in zip(bed.hosts, bed.counters(), strict=True):
        values = (sums.tx_bytes, sums.tx_packets, sums.rx_bytes, sums.rx_packets)
        table.add_row(host.name, host.address, *(f"{value:,}" for value in values))
    return table


def main() -> NoReturn:
    """Run the command line and exit as COMMAND does; 2 where there can be no bed."""
    try:
        app(standalone_mode=True)
    except (BedError, OSError) as error:
        print(f"testbed: error: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
