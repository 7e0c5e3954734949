"""What is shown of a step that is spread over devices: tables, and the page in its own words."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from caramel.core.memory import Held, MemoryCurve
from caramel.core.timeline import Span, Timeline
from caramel.report.page import html_page
from caramel.report.shown import ShownExplanation
from caramel.report.table import show_explanation
from tests.planning.placement.test_explain import explained_chain
from tests.report.test_page import Outline
from tests.report.test_served_page import texts

TRACED = Timeline(
    (
        Span("compute", "v0", 1.0, 3.5, 0),
        Span("compute", "v1", 3.5, 6.0, 0),
        Span("send", "v1", 6.0, 8.0, 0, 2),
        Span("receive", "v1", 6.0, 8.0, 1, 2),
        Span("compute", "v2", 8.0, 13.0, 1),
    ),
    memory=(MemoryCurve.of(0, [Held(1.0, 6.0, 5)]), MemoryCurve.of(1, [Held(6.0, 13.0, 3)])),
)


def lines(explanation, width=140):
    out = io.StringIO()
    show_explanation(explanation, Console(file=out, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_before_training_devices_the_chain_and_crossings_are_printed():
    shown = lines(explained_chain(job="train", planner="critical_path"))
    assert shown[:3] == [
        "train on 2 devices: 3 variables, 12 B; 1 tensor crosses; placed by: critical_path",
        "Predicted step 10.0 s; on one device 6.00 s (0.600 \u00d7 as long), which needs 16 B: "
        "too much",
        "No placement is faster than 6.00 s, the longest path, or 4.00 s, all work on all devices",
    ]
    found = [" ".join(line.split()) for line in shown]
    for row in (
        "device ops busy sent received variables tensors together limit",
        "0 d0 2 4.00 s 2 B 0 B 8 B 4 B 12 B 12 B",
        "1 d1 1 4.00 s 0 B 2 B 4 B 2 B 6 B 12 B",
        "device 0 computes 0.0 4,000.0 4,000.0 v0 \u2026 v1",
        "2 B to device 1 4,000.0 6,000.0 2,000.0 v1",
        "device 1 computes 6,000.0 10,000.0 4,000.0 v2",
        "v1:0 0 to 1 2 B 4,000.0 6,000.0 6,000.0",
    ):
        assert row in found, row


def test_what_was_measured_stands_beside():
    found = [" ".join(line.split()) for line in lines(explained_chain(measured=[TRACED]))]
    assert "0 d0 2 4.00 s 5.00 s 2 B 2 B 0 B 0 B 8 B 4 B 5 B 13 B 12 B" in found
    assert "1 d1 1 4.00 s 5.00 s 0 B 0 B 2 B 2 B 4 B 2 B 3 B 7 B 12 B" in found


def test_guessed_times_and_unknown_sizes_are_told():
    known = explained_chain()
    placed = replace(known.placed, knows_times=False, unknown_sizes=7)
    shown = " ".join(" ".join(lines(replace(known, placed=placed))).split())
    assert "No times were measured" in shown
    assert "7 tensors have a size that nobody knows" in shown


def test_the_page_shows_devices_over_time_with_their_memory_and_the_chain():
    page = html_page(explained_chain(job="train", planner="dfs", measured=[TRACED]))
    outline = Outline(page)
    text = texts(page)
    for part in (
        "train on 2 devices",
        "3 variables, 12 B, 1 tensor crosses. Placed by: dfs.",
        "One device 6.00 s needs 16 B: too much",
        "Longest path",
        "computation that bounds the step",
        "memory: variables, and tensors above them",
        "Device 0",
        "Device 1",
        "The chain that bounds the step",
        "Largest tensors that cross: 1 of 1",
        "twice the bandwidth",
    ):
        assert part in text, part
    assert "orker" not in text
    paths = [path["class"] for path in outline.all("path")]
    assert paths == ["held", "held-measured"] * 2
    assert len([line for line in outline.all("line") if line.get("class") == "memory-limit"]) == 2
    assert sum(rect.get("class") == "chain" for rect in outline.all("rect")) == 3


def test_it_prints_itself():
    shown = str(ShownExplanation.of(explained_chain(job="train")))
    assert shown.startswith("train on 2 devices")
