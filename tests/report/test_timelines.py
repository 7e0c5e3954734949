"""Timelines for viewers and as pictures."""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import caramel
from caramel.core.errors import CaramelError, FileError
from caramel.core.timeline import Span, Timeline
from caramel.report import drawing
from caramel.report.drawing import DEFERRED_COLOURS, draw_timelines, timeline_svg
from caramel.report.layout import in_sequence, lanes, rows
from caramel.report.perfetto import trace_events

STEP = Timeline(
    (
        Span("compute", "worker_0/forward", 10.0, 10.002),
        Span("send", "a", 10.001, 10.003, bytes=300),
        Span("send", "b", 10.0015, 10.0025, bytes=100),
        Span("send", "c", 10.0025, 10.004),
        Span("receive", "a", 10.001, 10.003, worker=1, bytes=300),
    )
)


# Lanes ------------------------------------------------------------------------------------------


def names(found):
    return [[each.name for each in lane] for lane in found]


def test_what_overlaps_gets_a_lane_of_its_own_and_the_first_free_one_is_taken():
    assert names(lanes(STEP.spans[1:4])) == [["a"], ["b", "c"]]
    later = Span("send", "d", 10.004, 10.005)
    assert names(lanes((*STEP.spans[1:4], later))) == [["a", "d"], ["b", "c"]]
    assert lanes(()) == ()


times = st.integers(0, 20)
spans = st.lists(
    st.builds(lambda begin, length: Span("send", "x", begin, begin + length), times, times)
)


@given(spans)
def test_no_lane_has_spans_that_overlap_and_none_is_lost(given_spans):
    found = lanes(given_spans)
    for lane in found:
        for first, second in itertools.pairwise(lane):
            assert first.end_s <= second.begin_s
    assert sum(len(lane) for lane in found) == len(given_spans)
    most = max((sum(s.begin_s <= t < s.end_s for s in given_spans) for t in range(41)), default=0)
    assert len([lane for lane in found if any(s.begin_s < s.end_s for s in lane)]) == most


# Steps ------------------------------------------------------------------------------------------


def one(begin_s, end_s):
    return Timeline((Span("compute", "x", begin_s, end_s),))


@pytest.mark.parametrize(
    ("steps", "placed"),
    [
        (one(7.0, 8.0), [(0.0, 1.0)]),
        ([one(7.0, 8.0), one(9.0, 10.5)], [(0.0, 1.0), (1.0, 2.5)]),
        ([one(0.0, 2.0), one(0.0, 2.0), one(0.0, 1.0)], [(0.0, 2.0), (2.0, 4.0), (4.0, 5.0)]),
        ([], []),
        ([Timeline(), one(1.0, 2.0)], [(0.0, 1.0)]),
    ],
)
def test_steps_come_one_after_the_other(steps, placed):
    found = [span for step in in_sequence(steps) for span in step.spans]
    assert [(span.begin_s, span.end_s) for span in found] == placed


# Viewers ----------------------------------------------------------------------------------------


def named(what, pid, tid, name, index):
    where = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {"name": f"{what}_name", **where, "args": {"name": name}},
        {"name": f"{what}_sort_index", **where, "args": {"sort_index": index}},
    ]


def event(name, category, pid, tid, ts, dur, **args):
    where = {"ph": "X", "pid": pid, "tid": tid}
    return {"name": name, "cat": category, **where, "ts": ts, "dur": dur, "args": args}


def test_every_worker_is_a_process_and_every_lane_a_thread():
    assert trace_events({"measured": STEP}) == {
        "displayTimeUnit": "ms",
        "traceEvents": [
            *named("process", 1, 0, "measured, worker 0", 1),
            *named("thread", 1, 1, "compute", 1),
            event("worker_0/forward", "compute", 1, 1, 0.0, 2000.0),
            *named("thread", 1, 2, "send 1", 2),
            event("a", "send", 1, 2, 1000.0, 2000.0, bytes=300),
            *named("thread", 1, 3, "send 2", 3),
            event("b", "send", 1, 3, 1500.0, 1000.0, bytes=100),
            event("c", "send", 1, 3, 2500.0, 1500.0),
            *named("process", 2, 0, "measured, worker 1", 2),
            *named("thread", 2, 4, "receive", 4),
            event("a", "receive", 2, 4, 1000.0, 2000.0, bytes=300),
        ],
    }


def test_a_server_is_a_process_by_its_own_name():
    own = Timeline(tuple(Span("send", "x", 0.0, 1.0, place) for place in (-2, -1, 0)))
    events = trace_events({"measured": own})["traceEvents"]
    names = {each["args"]["name"] for each in events if each["name"] == "process_name"}
    assert names == {f"measured, {who}" for who in ("worker 0", "server 0", "server 1")}


def test_several_steps_are_marked_and_titles_stand_beside_each_other():
    found = trace_events({"predicted": one(0.0, 1e-3), "measured": [one(5.0, 5.001)] * 2})
    assert json.loads(json.dumps(found))["traceEvents"] == [
        *named("process", 1, 0, "predicted, worker 0", 1),
        *named("thread", 1, 1, "compute", 1),
        event("x", "compute", 1, 1, 0.0, 1000.0),
        *named("process", 2, 0, "measured, worker 0", 2),
        *named("thread", 2, 2, "steps", 2),
        event("step 1", "step", 2, 2, 0.0, 1000.0),
        event("step 2", "step", 2, 2, 1000.0, 1000.0),
        *named("thread", 2, 3, "compute", 3),
        event("x", "compute", 2, 3, 0.0, 1000.0),
        event("x", "compute", 2, 3, 1000.0, 1000.0),
    ]


@given(st.lists(st.tuples(st.floats(0.0, 1e-5), st.floats(0.0, 1e-5)), max_size=30))
def test_rounding_lets_nothing_overlap(pairs):
    """To the nanoseconds that viewers know."""
    own = Timeline(tuple(Span("send", "x", 2e9 + b, 2e9 + b + length) for b, length in pairs))
    ends = {}
    for each in trace_events({"x": own})["traceEvents"]:
        if each["ph"] == "X":
            begin_ns = round(each["ts"] * 1000)
            assert begin_ns >= ends.get(each["tid"], 0)
            ends[each["tid"]] = begin_ns + round(each["dur"] * 1000)


# Pictures ---------------------------------------------------------------------------------------


def texts(svg, kind):
    root = ElementTree.fromstring(svg)
    return [each.text for each in root.iter(f"{{http://www.w3.org/2000/svg}}{kind}")]


def test_a_row_has_bars_for_each_lane():
    compute, send, receive, *others = rows(STEP, most_lanes=2)
    assert [(row.worker, row.resource) for row in (compute, send, receive)] == [
        (0, "compute"),
        (0, "send"),
        (0, "receive"),
    ]
    assert [row.worker for row in others] == [1, 1, 1]
    assert [[bar.longest.name for bar in lane] for lane in send.lanes] == [["a"], ["b", "c"]]
    assert receive.lanes == ()


def test_thin_neighbours_are_joined_and_lanes_are_limited():
    (row,) = rows(Timeline(STEP.spans[1:4]), most_lanes=1)
    ((bar,),) = row.lanes
    assert (bar.longest.name, bar.count, bar.bytes) == ("a", 3, 400)
    thin = tuple(Span("send", str(n), n * 0.1, n * 0.1 + 0.01 + n * 0.001) for n in range(5))
    far = Span("send", "far", 0.9, 0.91)
    (row,) = rows(Timeline((*thin, far)), most_lanes=3)
    ((first, second),) = row.joined(0.1).lanes
    assert (first.count, first.longest.name, second.longest.name) == (5, "4", "far")
    assert (first.begin_s, first.end_s) == (0.0, pytest.approx(0.414))


def test_the_svg_says_of_every_bar_what_it_is():
    svg = timeline_svg(STEP)
    assert texts(svg, "title") == [
        "worker_0/forward: 0.00 to 2.00 ms (2.00 ms)",
        "a: 1.00 to 3.00 ms (2.00 ms), 300 bytes",
        "b: 1.50 to 2.50 ms (1.00 ms), 100 bytes",
        "c: 2.50 to 4.00 ms (1.50 ms)",
        "a: 1.00 to 3.00 ms (2.00 ms), 300 bytes",
    ]
    labels = texts(svg, "text")
    assert labels[:10] == ["0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5", "4", "ms"]
    assert labels[10:] == [
        *("worker 0", "compute", "send", "receive"),
        *("worker 1", "compute", "send", "receive"),
    ]


def test_pictures_can_have_one_scale():
    assert texts(timeline_svg(STEP, until_s=0.040), "text")[:5] == ["0", "5", "10", "15", "20"]


def test_what_is_deferred_is_darker():
    assert DEFERRED_COLOURS["send"] not in timeline_svg(STEP)
    svg = timeline_svg(STEP, deferred={"a"})
    assert svg.count(DEFERRED_COLOURS["send"]) == 1
    step = Timeline((Span("reduce", "caramel/group_3/worker_0/sum", 0.0, 1.0),))
    assert DEFERRED_COLOURS["reduce"] in timeline_svg(step, deferred={"group_3"})


@pytest.mark.parametrize("timeline", [Timeline(), one(3.0, 3.0)])
def test_a_step_without_time_has_a_picture(timeline):
    assert "ms" in texts(timeline_svg(timeline), "text")


def test_names_are_escaped():
    svg = timeline_svg(Timeline((Span("compute", 'a<b>&"c"', 0.0, 1.0),)))
    assert texts(svg, "title") == ['a<b>&"c": 0.00 to 1000.00 ms (1000.00 ms)']


def many(number, workers, longest_s):
    numbers = random.Random(0)
    found = []
    for n in range(number):
        begin_s = numbers.random()
        resource = ("compute", "reduce", "send", "receive")[n % 4]
        end_s = begin_s + numbers.random() * longest_s
        name = f"worker_0/a/rather/long/name/of/an/op/in/some/block/number_{n}/Conv2DBackprop"
        found.append(Span(resource, name, begin_s, end_s, n // 4 % workers, n))
    return Timeline(tuple(found))


@pytest.mark.slow
@pytest.mark.parametrize("longest_s", [1e-6, 1e-3, 1.0])
def test_a_picture_of_fifty_thousand_spans_is_small(longest_s):
    svg = timeline_svg(many(50_000, 8, longest_s))
    assert len(svg.encode()) < 300_000
    titles = texts(svg, "title")
    assert sum(int(t.split()[0]) if " spans, " in t else 1 for t in titles) == 50_000


# Files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_figure_is_drawn(ending, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"figure.{ending}"
    draw_timelines({"predicted": STEP, "measured": [STEP, STEP]}, path, deferred={"a"})
    if ending == "png":
        assert path.read_bytes().startswith(b"\x89PNG")
    else:
        assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_an_empty_figure_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    draw_timelines({"measured": Timeline()}, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").exists()


def test_a_figure_of_another_kind_is_refused(tmp_path):
    with pytest.raises(CaramelError, match=r"cannot draw .*figure\.jpg: .* ends in \.svg, \.png"):
        draw_timelines({"measured": STEP}, tmp_path / "figure.jpg")


def test_a_missing_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CaramelError, match=r"needs matplotlib.*pip install '\.\[plot\]'"):
        draw_timelines({"measured": STEP}, tmp_path / "figure.svg")
    assert drawing.timeline_svg(STEP)


def test_reports_need_neither_tensorflow_nor_matplotlib():
    code = """
import sys
import caramel.report.drawing, caramel.report.perfetto
assert not {"tensorflow", "matplotlib", "numpy"} & set(sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


# Files ------------------------------------------------------------------------------------------


def test_steps_are_saved_for_a_viewer_beside_what_was_predicted(tmp_path):
    step = Timeline((Span("compute", "a", 0.0, 1.0), Span("send", "g", 1.0, 2.0, 1)))
    caramel.save_timelines(tmp_path / "trace.json", (step, step))
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written == trace_events({"measured": (step, step)})
    caramel.save_timelines(str(tmp_path / "trace.json"), step, predicted=step)
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written == trace_events({"predicted": step, "measured": step})


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
def test_steps_are_saved_as_a_picture(tmp_path):
    step = Timeline((Span("compute", "a", 0.0, 1.0), Span("send", "g", 1.0, 2.0, 1)))
    caramel.save_timelines(tmp_path / "trace.svg", step, predicted=step, deferred=["g"])
    root = ElementTree.parse(tmp_path / "trace.svg").getroot()
    assert root.tag.endswith("svg")
    assert DEFERRED_COLOURS["send"] in (tmp_path / "trace.svg").read_text()


@pytest.mark.parametrize("name", ["trace.json", "trace.png"])
def test_a_file_that_cannot_be_written_is_named(name, tmp_path):
    path = tmp_path / "missing" / name
    with pytest.raises(FileError, match=f"cannot write {path}: No such file or directory"):
        caramel.save_timelines(path, Timeline((Span("compute", "a", 0.0, 1.0),)))
