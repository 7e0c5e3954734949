"""Commands that tests run: `caramel` inside their own process, benchmarks in another one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from caramel.cli.main import main
from tests.support import forking

ROOT = Path(__file__).parents[2]


def called(monkeypatch, capsys, directory, *arguments):
    """What `caramel ARGUMENTS` in a directory returns and prints, like `subprocess.run`.

    Modules that the command imports from the directory are forgotten afterwards.
    """
    known = set(sys.modules)
    with monkeypatch.context() as context:
        context.chdir(directory)
        context.syspath_prepend(str(directory))
        context.setattr(sys, "argv", ["caramel", *map(str, arguments)])
        context.setenv("CARAMEL_CACHE", str(directory / "cache"))
        context.setenv("COLUMNS", "200")
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
    for name in set(sys.modules) - known:
        if (directory / f"{name}.py").exists():
            del sys.modules[name]
    printed = capsys.readouterr()
    return SimpleNamespace(returncode=ended.value.code, stdout=printed.out, stderr=printed.err)


def quick_benchmark(name, results):
    """What the result file of ``python -m benchmarks NAME --quick`` has."""
    finished = forking.run(
        [sys.executable, "-m", "benchmarks", name, "--quick", "--results", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return json.loads((results / f"{name}-quick.json").read_text())
