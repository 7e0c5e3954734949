"""Timelines as JSON in the Trace Event Format, for ui.perfetto.dev and chrome://tracing.

Each worker and server of each timeline is a process, each of its resources a thread, or several.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from caramel.core.timeline import Timeline
from caramel.report.layout import RESOURCES, Steps, in_sequence, lanes
from caramel.report.words import host_text

Event = dict[str, Any]


def trace_events(timelines: Mapping[str, Steps]) -> Event:
    """Timelines beside each other, each from 0 on, as what `json.dump` takes.

    Args:
        timelines: by title, such as "predicted" and "measured": of one step, or of several, which
            come one after the other, and are marked in a thread of their own.
    """
    events: list[Event] = []
    processes, threads = count(1), count(1)  # each number stands for one thing in the whole file
    for title, given in timelines.items():
        steps = in_sequence(given)
        whole = Timeline(tuple(span for step in steps for span in step.spans))
        for worker in whole.workers:
            process = next(processes)
            events += _named("process", process, 0, f"{title}, {host_text(worker)}", process)
            if len(steps) > 1:
                events += _marks(steps, process, next(threads))
            events += _threads(whole.of_worker(worker), process, threads)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _named(what: str, process: int, thread: int, name: str, place: int) -> Iterator[Event]:
    """What a process or thread is called, and where it stands among the others."""
    where = {"ph": "M", "pid": process, "tid": thread}
    yield {"name": f"{what}_name", **where, "args": {"name": name}}
    yield {"name": f"{what}_sort_index", **where, "args": {"sort_index": place}}


def _marks(steps: Sequence[Timeline], process: int, thread: int) -> Iterator[Event]:
    """A span for each step."""
    yield from _named("thread", process, thread, "steps", thread)
    for number, step in enumerate(steps, 1):
        times = step.begin_s, step.begin_s + step.step_s
        yield _event(f"step {number}", "step", process, thread, times)


def _threads(own: Timeline, process: int, threads: Iterator[int]) -> Iterator[Event]:
    """What a worker does, a thread for each lane of each resource."""
    for resource in RESOURCES:
        # Viewers take what overlaps within a thread for calls inside of calls.
        found = lanes(span for span in own.spans if span.resource == resource)
        for lane, spans in enumerate(found, 1):
            thread = next(threads)
            name = resource if len(found) == 1 else f"{resource} {lane}"
            yield from _named("thread", process, thread, name, thread)
            for span in spans:
                times = span.begin_s, span.end_s
                yield _event(span.name, resource, process, thread, times, span.bytes)


def _event(
    name: str,
    category: str,
    process: int,
    thread: int,
    times_s: tuple[float, float],
    size_bytes: int | None = None,
) -> Event:
    """A span; its begin and end are rounded, so that neighbours do not overlap by rounding."""
    begin_ns, end_ns = (round(time_s * 1e9) for time_s in times_s)
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": begin_ns / 1e3,
        "dur": (end_ns - begin_ns) / 1e3,
        "args": {} if size_bytes is None else {"bytes": size_bytes},
    }
