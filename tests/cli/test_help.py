"""`caramel --help`, and that of each command, can be read in a terminal of usual width."""

from __future__ import annotations

import pytest
import typer.main
from typer.testing import CliRunner

from caramel.cli.main import app

COMMANDS = typer.main.get_command(app).commands


def help_of(*arguments):
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*arguments, "--help"])
    assert done.exit_code == 0
    return done.output


def test_every_command_is_told_in_one_whole_line():
    lines = help_of().splitlines()
    for name, command in COMMANDS.items():
        (line,) = (line for line in lines if line.split()[:1] == [name])
        assert line.endswith(command.get_short_help_str(limit=80))


@pytest.mark.parametrize("name", COMMANDS)
def test_names_of_options_are_whole(name):
    shown = help_of(name)
    assert "…" not in shown
    options = [option for option in COMMANDS[name].params if not getattr(option, "hidden", False)]
    names = [each for option in options for each in (*option.opts, *option.secondary_opts)]
    assert {each for each in names if each.startswith("--")} <= set(shown.split())
