"""A user's script has no complaints of type checkers that come from Caramel's side."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = "tests/support/user_script.py"

# As a user has it: TensorFlow has no types, and of Caramel only what the script sees is told.
CONFIG = """
[mypy]
strict = True
follow_imports = silent
[mypy-tensorflow.*,keras.*]
ignore_missing_imports = True
follow_imports = skip
"""


@pytest.mark.slow
def test_mypy_finds_nothing_in_a_users_script_but_what_is_wrong(tmp_path):
    pytest.importorskip("mypy")
    config, wrong = tmp_path / "mypy.ini", tmp_path / "wrong.py"
    config.write_text(CONFIG)
    wrong.write_text("import caramel\n\ncaramel.Clster.local(2)\ncaramel.Cluster.local('two')\n")
    # What was found before makes it fast.
    cache = ROOT / ".mypy_cache" / "strict"
    options = ("--config-file", str(config), "--cache-dir", str(cache), "--no-error-summary")
    command = [sys.executable, "-m", "mypy", *options, SCRIPT, str(wrong)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    first, second = found.stdout.splitlines()
    assert 'wrong.py:3: error: Module has no attribute "Clster"' in first
    assert 'wrong.py:4: error: Argument 1 to "local" of "Cluster" has incompatible type' in second
