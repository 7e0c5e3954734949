"""What the terminal shows of an explanation, and times and sizes as text."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.console import Console

from caramel.core.util.digits import three_digits
from caramel.core.util.sizes import bytes_text, bytes_texts
from caramel.report.table import show_explanation
from caramel.report.units import (
    milliseconds,
    percent_text,
    ratio_text,
    seconds_text,
    seconds_texts,
)
from tests.support.explanations import SMALL, resnet, trained


def shown(explanation, width=140):
    """The lines that are printed, without spaces at their ends."""
    out = io.StringIO()
    show_explanation(explanation, Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_before_training_the_plan_is_shown():
    assert shown(SMALL) == [
        "tiny on 2 workers: 3 parameters, 3.15 MB, in 2 groups; planner: search",
        "Predicted step 0.500 s; without planning 0.600 s (1.20 \u00d7)",
        "Computation 0.400 s, wire limit 0.250 s",
        "rho 0.625: the wire limit \u00f7 computation; below 1 a plan can hide all transfers",
        "alpha 0.600: 60 % of the transfers go on beside computation",
        "U 80 %: of the step a worker computes; the rest is waiting, and what transfers cost",
        "One worker alone takes 0.400 s for its part; 2 are 1.60 \u00d7 as fast as one",
        "Limited by computation. Computation takes 0.400 s of 0.500 s.",
        "",
        "Groups in order of transfer; times in ms from the beginning of their step",
        "group     size  ready  needed  pattern  depth  place       predicted  waits for  why",
        "late   1.05 MB  200.0   100.0  ring         1  deferred    0.0\u2013100.0             "
        "fills",
        "early  2.10 MB  350.0    10.0  shuffle      2  in-step   350.0\u2013500.0  late       "
        "ready last, needed first",
        "",
        "What makes the step longer",
        "the last gradient is ready at the end of the backward pass: 0.100 s",
        "",
        "What would help",
        "change                  step  faster  note",
        "twice the bandwidth  0.450 s  1.11 \u00d7  one group less is deferred",
    ]


def test_after_training_the_largest_misses_come_first():
    lines = shown(trained(SMALL, {"late": -0.004, "early": 0.02}))
    assert lines[2] == "Measured step 0.515 s (3.0 % longer than predicted)"
    assert next(line for line in lines if line.startswith("early")).split()[8:10] == [
        "350.0\u2013500.0",
        "370.0\u2013520.0",
    ]
    assert lines[-4:] == [
        "Predicted worst; times in ms",
        "group   late  predicted end  measured end     size",
        "early  +20.0          500.0         520.0  2.10 MB",
        "late    \u22124.0          100.0          96.0  1.05 MB",
    ]


def test_of_many_misses_the_first_ten_are_shown():
    lines = shown(trained(resnet(2)))
    title = lines.index("Predicted worst (10 of 54 groups); times in ms")
    assert len(lines[title + 2 :]) == 10


def test_a_narrow_terminal_shows_each_reason_once_below_the_table():
    lines = shown(resnet(2), width=100)
    assert all(len(line) <= 100 for line in lines)
    row = next(line for line in lines if line.startswith("group_11 "))
    assert row == (
        "group_11 1.049 MB 306.7  171.7 halving_doubling     1 in-step  620.5\u2013629.2"
    )
    assert (
        "group_0, group_1, group_2, group_3 and 2 more: ready first and read last: fills the wire "
        "during the" in lines
    )
    assert "With 130 columns, the table also shows what each group waits for." in lines


def test_brackets_in_names_are_shown_as_they_are():
    group = replace(SMALL.groups[0], name="[bold]g[/bold]", reason="as [red]said[/red]")
    lines = shown(replace(SMALL, job="[red]job", groups=(group,), why="a [b]"))
    assert lines[0].startswith("[red]job on 2 workers")
    assert "Limited by computation. A [b]." in lines
    assert any(line.startswith("[bold]g[/bold] ") for line in lines)
    assert any(line.endswith("as [red]said[/red]") for line in lines)


def test_the_batch_and_the_day_are_told_and_columns_without_entries_are_not():
    groups = tuple(replace(group, waits_for=(), reason="") for group in SMALL.groups)
    what_if = (replace(SMALL.what_if[0], note=""),)
    known = replace(SMALL, groups=groups, what_if=what_if, examples=48, made="2026-11-28 17:05")
    lines = shown(known)
    assert lines[0].endswith(
        "planner: search; 48 examples of each worker in a step; 2026-11-28 17:05"
    )
    assert "group     size  ready  needed  pattern  depth  place       predicted" in lines
    assert "change                  step  faster" in lines


def test_a_sparse_group_whose_size_is_unknown_has_rows():
    group = replace(SMALL.groups[0], pattern="all_gather", size_bytes=0)
    lines = shown(replace(SMALL, groups=(group,)))
    assert next(line for line in lines if line.startswith("late ")).split()[1] == "rows"


def test_one_worker_without_groups_has_no_tables():
    alone = replace(SMALL, workers=1, groups=(), limits=(), what_if=(), limited_by="wire")
    lines = shown(alone)
    assert lines[0] == "tiny on 1 worker: 3 parameters, 3.15 MB, in 0 groups; planner: search"
    assert lines[-1].startswith("Limited by the wire. ")
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.00081, "0.810 ms"),
        (0.0523, "52.3 ms"),
        (0.1, "0.100 s"),
        (0.9121, "0.912 s"),
        (1.2351, "1.24 s"),
        (1234.0, "1,230 s"),
        (-0.25, "\u22120.250 s"),
        (math.inf, "\u221e s"),
    ],
)
def test_times_have_three_digits_and_a_unit(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_400, "999 kB"),
        (999_600, "1.00 MB"),
        (102_000_000, "102 MB"),
        (5 * 10**15, "5,000 TB"),
    ],
)
def test_sizes_have_three_digits_and_a_unit(size_bytes, text):
    assert bytes_text(size_bytes) == text


def test_other_numbers_are_short_too():
    assert three_digits(9.996) == "10.0"
    assert ratio_text(1.304) == "1.30 \u00d7"
    assert percent_text(0.714) == "71 %"
    assert milliseconds(0.01234, step_s=0.5) == "12.3"
    assert milliseconds(0.01234, step_s=0.05) == "12.34"
    assert milliseconds(-0.01234, step_s=0.5, signed=True) == "\u221212.3"


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        ([0.313, 0.177, 0.0541], ["0.313 s", "0.177 s", "0.054 s"]),
        ([1.84, 0.107], ["1.840 s", "0.107 s"]),
        ([0.0521, 0.00435, 0.0], ["52.10 ms", "4.35 ms", "0.00 ms"]),
        ([12.0, 0.0001], ["12.00 s", "<0.01 s"]),
        ([0.0], ["0 s"]),
        ([math.inf, 1.0], ["\u221e s", "1.00 s"]),
        ([], []),
    ],
)
def test_times_of_a_column_have_one_unit(seconds, texts):
    assert seconds_texts(seconds) == texts


def test_sizes_of_a_column_have_one_unit():
    assert bytes_texts([9_000_000, 250_000, 12]) == ["9.000 MB", "0.250 MB", "<0.001 MB"]
    assert bytes_texts([12, 999]) == ["12 B", "999 B"]
