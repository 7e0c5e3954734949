"""`caramel doctor` says what a machine has, and what prevents Caramel from working there."""

from __future__ import annotations

import importlib.metadata

from caramel.cli import doctor
from tests.support.commands import called


def test_a_machine_on_which_tests_run_is_well(monkeypatch, capsys, tmp_path):
    done = called(monkeypatch, capsys, tmp_path, "doctor")
    assert done.returncode == 0, done.stderr
    for what in ("Python", "TensorFlow", "processor", "memory", "oneDNN", "TCP", "devices"):
        assert what in done.stdout
    assert "✗" not in done.stdout


def test_another_tensorflow_prevents_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.20.0")
    done = called(monkeypatch, capsys, tmp_path, "doctor")
    assert done.returncode == 1
    assert "2.20.0" in done.stdout
    assert "pip install 'tensorflow==2.21.*'" in " ".join(done.stdout.split())
    assert "not looked at" in done.stdout  # nothing else of that TensorFlow


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CARAMEL_CACHE", str(tmp_path / "there"))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    found = doctor._cache()
    assert found.advice is not None
    assert "CARAMEL_CACHE" in found.advice
