"""A bed: how its hosts are made, used and removed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from types import TracebackType
from typing import Any

from benchmarks.testbed.hosts import Counters, Host, read_counters, write_hosts_file
from benchmarks.testbed.names import INTERFACE, NETWORK, free_subnet
from benchmarks.testbed.programs import end_processes, on_host
from benchmarks.testbed.removal import open_beds, remove_by_name, remove_leftovers
from benchmarks.testbed.signals import exit_on_signals, restore_signals, signals_deferred
from benchmarks.testbed.system import BedError, call, keep_silent, lock, missing

BURST, LATENCY = "256kb", "20ms"
"""How much a host may send at once, and how long a packet may wait before packets are dropped."""

CONGESTION_CONTROL = "cubic"
"""What TCP on the hosts does by default, whatever the machine is set to: what most machines do."""

MOST_HOSTS = 100


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
        congestion_control: str = CONGESTION_CONTROL,
        grace_s: float = 3.0,
    ) -> None:
        """Describe a bed; entering it makes it.

        Args:
            hosts: how many, 1 to 100.
            rate: what each host may send, as tc takes it, such as "1gbit".
            pin_cores: keep the programs of host i on core i, modulo the cores there are.
            both_ways: limit what a host receives to `rate`, too.
            reach_from_root: give the machine itself an unlimited interface to the hosts.
            congestion_control: what TCP does on the hosts, as the kernel names it.
            grace_s: seconds that programs get between SIGTERM and SIGKILL when the bed is closed.

        Raises:
            BedError: an impossible number of hosts.
        """
        if not 1 <= hosts <= MOST_HOSTS:
            raise BedError(f"a bed has 1 to {MOST_HOSTS} hosts, not {hosts}")
        self.hosts: tuple[Host, ...] = ()
        self.rate = rate
        self._count, self._both_ways = hosts, both_ways
        self._cores = sorted(os.sched_getaffinity(0)) if pin_cores else None
        self._reach_from_root, self._grace_s = reach_from_root, grace_s
        self._congestion_control = congestion_control
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
        exit_on_signals()
        try:
            with signals_deferred(), lock():
                remove_leftovers()
                subnet = free_subnet()
                self._name = f"cm{self._owner_pid}b{subnet:02x}"
                open_beds.add(self._name)
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
                with signals_deferred():
                    self._remove()
        finally:
            open_beds.discard(self._name)
            self._name, self.hosts = "", ()
            self._processes.clear()
            restore_signals()

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
        command = list(argv) if host is None else on_host(self._host(host), argv)
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
        call("tc", "-n", name, "qdisc", "replace", "dev", INTERFACE, *limit)
        if self._both_ways:
            call("tc", "qdisc", "replace", "dev", name, *limit)

    def counters(self) -> tuple[Counters, ...]:
        """What each host has sent and received since the bed was made, in the order of `hosts`."""
        return tuple(read_counters(host) for host in self.hosts)

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
        call("ip", "link", "add", self._name, "type", "bridge", "mcast_snooping", "0")
        keep_silent("ip", self._name)
        call("ip", "link", "set", self._name, "up")
        if self._reach_from_root:
            own = f"{network[-2]}/{network.prefixlen}"
            call("ip", "address", "add", own, "dev", self._name)
        for host in self.hosts:
            self._make_host(host, network)

    def _make_host(self, host: Host, network: IPv4Network) -> None:
        name, subnet = host.namespace, str(network)
        own = f"{host.address}/{network.prefixlen}"
        ip = ("ip", "-n", name)
        write_hosts_file(name, self.hosts)
        call("ip", "netns", "add", name)
        call(*("ip", "link", "add", name, "type", "veth"), *("peer", INTERFACE, "netns", name))
        keep_silent("ip", name)
        keep_silent(*ip, INTERFACE)
        call("ip", "link", "set", name, "master", self._name, "up")
        call(*ip, "link", "set", "lo", "up")
        call(*ip, "address", "add", own, "dev", INTERFACE)
        self.set_rate(host, self.rate)
        call(*ip, "link", "set", INTERFACE, "up")
        # A route may say it where a namespace may not, and only the bed's own traffic is concerned.
        route = (subnet, "dev", INTERFACE, "proto", "kernel", "scope", "link", "src", host.address)
        call(*ip, "route", "replace", *route, "congctl", self._congestion_control)

    def _set_port(self, host: Host | int, state: str) -> None:
        # Not its link: without a carrier the host itself would notice. And not by `ip`, which
        # tells the bridge of the change in such a way that it opens the port again.
        number = {"disabled": "0", "forwarding": "3"}[state]
        port = self._host(host).namespace
        call("bridge", "link", "set", "dev", port, "state", number)

    def _remove(self) -> None:
        try:
            end_processes(self._name, self._processes, self._grace_s)
        finally:
            with lock():
                remove_by_name(self._name)
