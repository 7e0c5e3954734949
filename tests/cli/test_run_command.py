"""`caramel run`: crashes are followed by another start, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.support.commands import called
from tests.support.processes import is_running, started, wait_for

pytestmark = pytest.mark.processes

QUICK = """
import sys
from caramel.cli import run
from caramel.cluster import restarts
restarts.FIRST_WAIT_S = 0.01
for script in sys.argv[2:]:
    print(run.run(["sh", "-c", script], int(sys.argv[1])), flush=True)
"""


def codes(restarts, *scripts):
    """What some scripts print and end with, where nobody waits between two starts."""
    command = [sys.executable, "-c", QUICK, str(restarts), *scripts]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)


def test_a_program_is_started_again_until_it_ends_well(tmp_path):
    log = tmp_path / "log"
    fails = f"echo x >> {log}; [ $(wc -l < {log}) -ge 4 ] || kill -9 $$"
    result = codes(5, fails)
    assert result.stdout == "0\n"
    assert log.read_text().count("x") == 4
    lines = result.stderr.splitlines()
    ended = "caramel: sh ended (killed by signal 9)"
    assert lines == [
        f"{ended}; it is started again in {wait} s (restart {n} of 5)."
        for n, wait in ((1, "0.01"), (2, "0.02"), (3, "0.04"))
    ]


def test_the_program_s_exit_code_is_that_of_the_command():
    ends = ["exit 0", "exit 1", "exit 2", "exit 127", "exit 143", "kill -9 $$", "kill -15 $$"]
    result = codes(1, *ends, "kill -2 $$", "exit 130")
    assert result.stdout.split() == ["0", "1", "2", "127", "143", "137", "143", "130", "130"]
    lines = result.stderr.splitlines()
    ended = "caramel: sh ended (exited with code 1)"
    assert lines[0].startswith(f"{ended}; it is started again in")
    assert lines[1] == f"{ended}, after 1 restarts in a row; it is not started again."
    assert len(lines) == 4  # of those that were started again: "exit 1" and "kill -9"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_nothing_is_started_again(number):
    script = "trap 'echo got it; exit 7' TERM INT; echo ready; while :; do sleep 0.05; done"
    with started(sys.executable, "-m", "caramel", "run", "--", "sh", "-c", script) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (7, "got it\n", "")


def test_a_program_does_not_outlive_the_command():
    with started(sys.executable, "-m", "caramel", "run", "sh", "-c", "echo $$; exec sleep 60") as p:
        pid = int(p.stdout.readline())
        os.kill(p.pid, signal.SIGKILL)
        assert wait_for(lambda: not is_running(pid))


def test_waiting_for_another_start_ends_with_a_signal():
    command = [sys.executable, "-m", "caramel", "run", "sh", "-c", "exit 3"]
    with started(*command) as process:
        assert "it is started again in 1 s" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 3


def test_what_cannot_be_started_is_a_clear_error(monkeypatch, capsys, tmp_path):
    result = called(monkeypatch, capsys, tmp_path, "run", "--", "/no/such/program", "--x")
    assert result.returncode == 2
    assert result.stderr.startswith("caramel: error: cannot start '/no/such/program': No such file")
