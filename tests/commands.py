"""The command `caramel`, called inside the tests' own process, which has imported TensorFlow."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from caramel.cli import main


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
