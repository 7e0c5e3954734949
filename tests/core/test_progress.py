"""Work that takes long is told to whoever wants to see it, and to nobody else."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager

import pytest
from rich.console import Console

import caramel
from caramel.core.util import progress
from caramel.core.util.progress import show_on, tell, working
from caramel.report.progress import Lines, Live
from tests.support.displays import Recorded


@pytest.fixture
def recorded():
    display = Recorded()
    show_on(display)
    yield display
    show_on(None)


def test_nothing_is_shown_by_default(capsys):
    with working("placing the graph") as move:
        move(1, 2)
    tell("done")
    assert capsys.readouterr() == ("", "")


def test_what_is_told_is_shown_also_if_the_work_fails(recorded):
    def fail():
        with working("placing the graph") as move:
            move(1, 2)
            tell("half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert recorded.told == [
        ("begin", "placing the graph"),
        ("placing the graph", 1, 2),
        "half",
        ("end", "placing the graph"),
    ]


def test_waiting_for_workers_names_those_that_are_missing(recorded, free_address):
    cluster = caramel.Cluster.of([free_address])
    with pytest.raises(caramel.CaramelError):
        cluster.wait_until_reachable(0.3)
    (begun,) = [what for what in recorded.begun if what != "loading Caramel"]
    assert begun.startswith("waiting for worker 0")
    assert free_address in begun


def test_whoever_waits_long_for_workers_reads_in_the_log_for_whom_and_why(
    monkeypatch, caplog, free_address
):
    monkeypatch.setattr("caramel.cluster.cluster._LONG_S", 0.1)
    with pytest.raises(caramel.CaramelError):
        caramel.Cluster.of([free_address]).wait_until_reachable(1.0)
    (line,) = caplog.messages
    assert line.startswith("waiting up to 1 s for worker 0")
    assert line.endswith(f"at {free_address}): nobody listens there")


def test_what_is_loaded_when_it_is_first_used_is_told(recorded, monkeypatch, tmp_path):
    (tmp_path / "loaded_late.py").write_text("Plan = 1")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(caramel._HOME, "Plan", "loaded_late")
    assert [caramel.Plan, caramel.Plan] == [1, 1]
    assert recorded.told == [("begin", "loading Caramel"), ("end", "loading Caramel")]
    monkeypatch.delitem(sys.modules, "loaded_late")


@pytest.mark.parametrize(("is_terminal", "display"), [(True, Lines), (False, type(None))])
def test_on_a_terminal_a_worker_says_that_it_loads_tensorflow(
    monkeypatch, is_terminal, display, free_address
):
    from caramel.cli import worker as command

    @contextmanager
    def quiet_start():
        assert isinstance(progress._display, display)
        raise caramel.CaramelError("far enough")
        yield

    monkeypatch.setattr(progress, "_display", None)
    monkeypatch.setattr(command, "quiet_start", quiet_start)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with pytest.raises(caramel.CaramelError, match="far enough"):
        command.worker(cluster=free_address, task=0)


@pytest.fixture
def free_address():
    """An address at which nobody listens."""
    from caramel.cluster.processes import free_ports

    return f"127.0.0.1:{free_ports(1)[0]}"


def test_lines_tell_only_of_what_takes_longer_than_a_moment():
    file = io.StringIO()
    lines = Lines(file, after_s=1000)
    short, long = lines.begin("reaching workers"), lines.begin("placing the graph")
    lines._last_long(long)  # the moment is over
    lines.end(short)
    lines.end(long)
    lines._last_long(long)  # the timer was late
    first, second = file.getvalue().splitlines()
    assert first == "caramel: placing the graph…"
    assert second.startswith("caramel: placing the graph: ")
    assert second.endswith(" s")


def test_a_live_display_goes_when_the_work_has_ended():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    live = Live(console)
    work = live.begin("placing the graph")
    other = live.begin("[saving]")
    live.move(work, 1, 2)
    live.end(work)
    live.end(other)
    live.tell("kept [a]")
    assert live._progress is None
    shown = console.file.getvalue()
    assert "placing the graph" in shown
    assert "kept [a]" in shown


def test_show_progress_takes_only_what_it_knows():
    with pytest.raises(caramel.CaramelError, match="'loud'"):
        caramel.show_progress("loud")
    caramel.show_progress("lines")
    assert isinstance(progress._display, Lines)
    caramel.show_progress(None)
    assert progress._display is None
