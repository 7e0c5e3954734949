"""Python programs that are forked from a process which has imported TensorFlow already.

To import it takes seconds of a processor, and many tests start programs that do. `Popen` and `run`
are those of `subprocess`, but what begins with `sys.executable` is forked. It is a child of the
process that asked for it, like any other. So are the workers of `Cluster.local`, if it is asked
within `workers`: one that is started anew takes most of a second of processor to load TensorFlow.
In a program that `forks`, all of them and all Python programs are forked that it starts.

Not for programs whose environment says what TensorFlow does when it is imported.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired  # in place of that module

_SET_CHILD_SUBREAPER = 36  # of prctl: orphans among its descendants become a process's children
_NEW_MOUNTS, _NEW_NAMES, _NEW_NETWORK = 0x20000, 0x4000000, 0x40000000  # of unshare and setns
_BIND, _SLAVES, _DETACH = 0x1000, 0x84000, 2  # of mount, in all that is below, and of umount2
_MOST_BYTES = 1 << 20
_given: _Forks | None = None  # of a program that was forked itself
_SERVER = "import sys; sys.path[0] = sys.argv[1]; import forking; forking.serve(int(sys.argv[2]))"


class Popen(subprocess.Popen):
    """A process like any other; a Python program is forked.

    If it `forks`, so are those that it starts. Nobody calls `preexec_fn`. A `host` of a testbed is
    where it runs.
    """

    def __init__(
        self, command: Any, *, forks: bool = False, host: Any = None, **options: Any
    ) -> None:
        self._forks, self._place = forks, host and [host.namespace, host.name]
        super().__init__(command, **options)

    def _execute_child(self, *given: Any) -> None:
        asked = inspect.signature(super()._execute_child).bind(*given).arguments
        words = asked["args"]
        is_python = not isinstance(words, str) and words[0] == sys.executable
        if not is_python or asked["pass_fds"] or sys.platform != "linux":
            super()._execute_child(*given)
            return
        streams = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        self.pid = _forks().fork(
            [own if given == -1 else given for own, given in enumerate(streams)],
            words=[os.fspath(word) for word in words[1:]],
            directory=os.fspath(asked["cwd"] or os.getcwd()),
            environment=dict(os.environ if asked["env"] is None else asked["env"]),
            leads=asked["start_new_session"],
            forks=self._forks,
            place=self._place,
        )
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))


def run(
    command: list[Any],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess:
    """As `subprocess.run` does it, with `Popen`."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
    done = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


@contextmanager
def workers() -> Iterator[None]:
    """What `Cluster.local` starts in this context is forked.

    For tests of what workers do. How they are started is a matter of `test_cluster`,
    `test_processes` and `test_workers`.
    """
    from caramel.cluster import processes

    before, processes.subprocess = processes.subprocess, sys.modules[__name__]
    try:
        yield
    finally:
        processes.subprocess = before


class _Forks:
    """What forks for this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def fork(self, streams: list[int], **program: Any) -> int:
        """The process id of a new child of this process, which runs a program."""
        with self._lock:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._connection, [json.dumps(program).encode()], streams)
                return int(self._connection.recv(_MOST_BYTES))
            finally:
                _adopt_orphans(False)


@functools.cache
def _forks() -> _Forks:
    return _started() if _given is None else _given


def _started() -> _Forks:
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    directory, null = str(Path(__file__).parent), subprocess.DEVNULL
    command = [sys.executable, "-c", _SERVER, directory, str(its.fileno())]
    subprocess.Popen(command, pass_fds=[its.fileno()], stdin=null, stdout=null, stderr=null)
    its.close()
    return _Forks(own)


def _adopt_orphans(adopts: bool) -> None:
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(adopts), 0, 0, 0)


# In the process that forks -----------------------------------------------------------------------


def serve(descriptor: int) -> None:
    """Fork for the process at the other end of a socket, for as long as that lives."""
    gc.disable()
    import rich.progress  # noqa: F401
    import tensorflow  # noqa: F401
    import typer  # noqa: F401

    with suppress(ImportError):
        import sklearn.datasets
        import sklearn.model_selection  # noqa: F401
    # No fork looks through what is imported, and copies it by that.
    gc.freeze()
    gc.enable()
    _serve(socket.socket(fileno=descriptor))


def _serve(connection: socket.socket) -> None:
    """Returns only in forks, when their programs have ended."""
    while True:
        content, streams, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        if not content:
            os._exit(0)
        reads, writes = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            child = os.fork()
            if child == 0:
                while os.getppid() == between:  # until the process that asked has adopted it
                    time.sleep(0.001)
                connection.close()
                os.close(reads)
                os.close(writes)
                _run(streams, **json.loads(content))
                return
            os.write(writes, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(os.read(reads, 100))
        for each in (reads, writes, *streams):
            os.close(each)


def _fork_programs(streams: list[int]) -> None:
    """A child, which is as this process is now, forks what this one will start."""
    global _given
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        own.close()
        for each in streams:
            os.close(each)
        _serve(its)
        sys.exit()  # a program that has ended
    its.close()
    _given = _Forks(own)
    subprocess.Popen = Popen


def _enter(namespace: str, name: str) -> None:
    """Go on as ``ip netns exec`` and ``unshare --uts`` let a program run."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: Any) -> None:
        given = [each.encode() if isinstance(each, str) else each for each in arguments]
        if getattr(libc, function)(*given):
            raise OSError(ctypes.get_errno(), f"{function}{arguments}")

    with open(f"/run/netns/{namespace}") as network:
        call("setns", network.fileno(), _NEW_NETWORK)
    call("unshare", _NEW_MOUNTS | _NEW_NAMES)
    call("mount", "none", "/", None, ctypes.c_ulong(_SLAVES), None)
    call("umount2", "/sys", _DETACH)
    call("mount", namespace, "/sys", "sysfs", ctypes.c_ulong(0), None)
    hosts = f"/etc/netns/{namespace}/hosts"
    call("mount", hosts, "/etc/hosts", "none", ctypes.c_ulong(_BIND), None)
    socket.sethostname(name)


def _run(
    streams: list[int],
    words: list[str],
    directory: str,
    environment: dict[str, str],
    leads: bool,
    forks: bool,
    place: list[str] | None,
) -> None:
    """Be a Python interpreter that was started with these words; `leads` a session of its own."""
    if leads:
        os.setsid()
    if place:
        _enter(*place)
    if forks:
        _fork_programs(streams)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(directory)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    after = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:] = [*filter(None, after), *(path for path in sys.path[1:] if path not in before)]
    first, *others = words
    if first == "-c":
        sys.path[0], sys.argv = "", ["-c", *others[1:]]
        exec(compile(others[0], "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif first == "-m":
        sys.path[0], sys.argv = directory, others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0], sys.argv = str(Path(first).parent.resolve()), words
        runpy.run_path(first, run_name="__main__")
