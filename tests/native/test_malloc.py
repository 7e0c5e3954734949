"""What a process frees it keeps: in each case a process of its own allocates, writes and frees."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from caramel.cli import main, user_job
from caramel.cluster import servers
from caramel.core.errors import CaramelError
from caramel.native import malloc
from tests.support.commands import called

ALLOCATE = """
import ctypes, resource, sys, threading
from caramel.native import malloc

kept = malloc.keep_memory() if "keep" in sys.argv else None
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def step():
    large = libc.malloc(100 << 20)
    ctypes.memset(large, 1, 100 << 20)
    libc.free(large)

def in_a_thread():
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()

step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    step()
    in_a_thread()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
FIRST_OP = """
import ctypes, sys, time
import caramel

caramel.keep_memory()
from caramel.cluster.quiet_start import quiet_start
with quiet_start():
    import tensorflow as tf
with tf.Graph().as_default():
    tf.compat.v1.placeholder(tf.float32)
time.sleep(0.5)  # until the thread that this starts has allocated something
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
libc.fclose.argtypes = [ctypes.c_void_p]
out = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""
PAGES = 6 * (100 << 20) // 4096  # of six allocations


def allocated(*arguments: str, **environ: str) -> tuple[str, int]:
    """What `keep_memory` said, and how many pages the allocations after the first have got."""
    own = {name: value for name, value in os.environ.items() if not is_of_the_allocator(name)}
    finished = subprocess.run(
        [sys.executable, "-c", ALLOCATE, *arguments],
        env={**own, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    kept, pages = finished.stdout.split()
    return kept, int(pages)


def is_of_the_allocator(name: str) -> bool:
    return name.startswith(("MALLOC_", "GLIBC_TUNABLES"))


def has_glibc() -> bool:
    return "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "") if os.name == "posix" else False


needs_glibc = pytest.mark.skipif(not has_glibc(), reason="needs the allocator of glibc")


@needs_glibc
def test_freed_memory_is_used_again_whichever_thread_has_freed_it():
    kept, pages = allocated("keep")
    assert kept == "True"
    assert pages < PAGES / 100
    assert allocated()[1] > PAGES / 2, "the allocator keeps it anyway"


@needs_glibc
@pytest.mark.parametrize(
    "variable", [{"MALLOC_ARENA_MAX": "0"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=8"}]
)
def test_the_users_own_settings_hold(variable):
    kept, pages = allocated("keep", **variable)
    assert kept == "False"
    assert pages > PAGES / 2


@needs_glibc
def test_who_asks_before_the_graph_is_built_has_one_heap(tmp_path):
    """TensorFlow's first op starts a thread, which would get a heap of its own."""
    own = {name: value for name, value in os.environ.items() if not is_of_the_allocator(name)}
    told = tmp_path / "heaps.xml"
    subprocess.run([sys.executable, "-c", FIRST_OP, str(told)], env=own, check=True, timeout=200)
    assert told.read_text().count("<heap") == 1


def test_another_c_library_is_left_alone(monkeypatch):
    for name in filter(is_of_the_allocator, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())
    assert not malloc.keep_memory()


def test_a_process_keeps_its_memory_before_its_server_starts(monkeypatch):
    order = []

    def start(*_, **__):
        order.append("started")
        raise InterruptedError

    monkeypatch.setattr(malloc, "keep_memory", lambda: order.append("kept"))
    monkeypatch.setattr(servers, "start_server", start)
    with pytest.raises(InterruptedError):
        servers.embedded_servers(17)  # nobody else's
    assert order == ["kept", "started"]


@pytest.mark.parametrize(
    "command",
    [
        ["profile", "--module", "job", "--out", "profile.json"],
        ["trace", "--module", "job", "--out", "trace.json"],
    ],
    ids=["profile", "trace"],
)
def test_a_command_keeps_its_memory_before_it_builds_the_job(
    command, monkeypatch, capsys, tmp_path
):
    order = []

    def load(_):
        order.append("loaded")
        raise CaramelError("seen")

    monkeypatch.setattr(main, "keep_memory", lambda: order.append("kept"))
    monkeypatch.setattr(user_job, "load_job", load)
    assert "seen" in called(monkeypatch, capsys, tmp_path, *command).stderr
    assert order == ["kept", "loaded"]


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "1000000\n"}, 1_000_000),
        ({"memory/memory.limit_in_bytes": "2000000\n"}, 2_000_000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_a_container_has_as_much_memory_as_it_may_use(tmp_path, files, limit):
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert malloc.total_bytes(tmp_path) == (limit or machine)
