"""Work that takes long is told to whoever wants to see it, and to nobody else."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import caramel
from caramel.core.util import progress
from caramel.core.util.progress import show_on, tell, working
from caramel.report.progress import Lines, Live


class Recorded:
    """A display that remembers what it was told."""

    def __init__(self):
        self.told = []

    def begin(self, what):
        self.told.append(("begin", what))
        return what

    def move(self, work, done, total):
        self.told.append((work, done, total))

    def end(self, work):
        self.told.append(("end", work))

    def tell(self, text):
        self.told.append(text)


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
    begun = [what for kind, what, *_ in recorded.told if kind == "begin"]
    assert len(begun) == 1
    assert begun[0].startswith("waiting for worker 0")
    assert free_address in begun[0]


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
