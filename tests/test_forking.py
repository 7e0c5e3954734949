"""Programs that are forked run as those that are started anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forking

SHOWN = """
import os, sys
print(os.getppid(), sys.argv, __name__, os.getcwd(), os.environ["SAID"], "caramel" in sys.modules)
print(sys.path[0], file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.processes
@pytest.mark.parametrize("how", ["-c", "-m", "script"])
def test_a_forked_program_shows_and_returns_what_a_started_one_does(how, tmp_path):
    (tmp_path / "shown.py").write_text(SHOWN)
    words = {"-c": ["-c", SHOWN], "-m": ["-m", "shown"], "script": [str(tmp_path / "shown.py")]}
    started, forked = (
        run(
            [sys.executable, *words[how], "an", "argument"],
            cwd=tmp_path,
            env={**os.environ, "SAID": "so"},
            capture_output=True,
            text=True,
        )
        for run in (subprocess.run, forking.run)
    )
    assert str(os.getpid()) in started.stdout
    assert vars(forked) == vars(started)


@pytest.mark.processes
def test_a_forked_program_has_tensorflow_and_takes_signals():
    code = "import sys, time; print('tensorflow' in sys.modules, flush=True); time.sleep(600)"
    with forking.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    assert not Path(f"/proc/{process.pid}").exists()


@pytest.mark.processes
def test_workers_of_a_forked_program_are_forked_too_and_end_with_it():
    code = """
import pathlib, caramel
with caramel.Cluster.local(1) as cluster:
    pid = cluster.describe(0).partition("pid ")[2].partition(")")[0]
    print(pid, "forking.serve" in pathlib.Path(f"/proc/{pid}/cmdline").read_text())
"""
    command = [sys.executable, "-c", code]
    ran = forking.run(command, forks=True, capture_output=True, text=True, timeout=100)
    pid, forked = ran.stdout.split()
    assert (ran.returncode, forked) == (0, "True")
    assert not Path(f"/proc/{pid}").exists()
