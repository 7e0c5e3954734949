"""The demo: what it says where it cannot run, and what it does not wait for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import demo
from benchmarks.testbed.system import BedError


def test_it_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setattr(demo, "missing", lambda: ["root", "tc"])
    assert demo.run() == 2
    assert "The demo needs root, tc: it makes two hosts" in capsys.readouterr().err


def test_a_bed_that_cannot_be_made_is_one_line(monkeypatch, capsys):
    def fail(seconds):
        raise BedError("no more networks")

    monkeypatch.setattr(demo, "run", fail)
    monkeypatch.setattr(sys, "argv", ["demo"])
    with pytest.raises(SystemExit) as ended:
        demo.typer.run(demo.main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "demo: error: no more networks\n"


def test_it_does_not_wait_for_tensorflow_where_it_does_not_need_it():
    code = "import benchmarks.demo, sys; print('tensorflow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
