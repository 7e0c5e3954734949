"""An explanation of a step that is spread over several devices, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.markup import escape

from caramel.core.explanation import Explanation
from caramel.core.placed_step import DeviceUse, PlacedDevice, PlacedStep, Stretch
from caramel.core.util.sizes import bytes_text, bytes_texts
from caramel.report.columns import text_table
from caramel.report.units import (
    milliseconds,
    ratio_text,
    seconds_text,
    seconds_texts,
)
from caramel.report.words import about_text

CHAIN_SHOWN = 30
_JOB = "/job:worker/"
_MANY = 9  # columns: they stand closer
_LEAST_SHOWN = 0.005  # of a step: shorter parts of its chain are told together

Row = tuple[str, ...]
Value = TypeVar("Value", int, float)


def show_devices(explanation: Explanation, placed: PlacedStep, console: Console) -> None:
    """Print what is on each device, the chain that bounds the step, and what crosses."""
    _show(console, "Devices; predicted", DEVICE_COLUMNS, device_rows(placed))
    for note in caveats(placed):
        console.print(escape(note), highlight=False)
    columns = ("what", "from|", "to|", "takes|", "waiting|", "ops")
    title = "The chain that bounds the step; times in ms"
    _show(console, title, columns, chain_rows(explanation, placed))
    if placed.crossings:
        shown, count = len(placed.crossings), placed.crossing_count
        title = f"Largest tensors that cross ({shown} of {count:,}); times in ms"
        columns = ("tensor", "device", "size|", "leaves|", "arrives|", "needed|")
        _show(console, title, columns, crossing_rows(explanation, placed))


def _show(console: Console, title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    console.print()
    console.print(escape(title), style="bold", highlight=False)
    gap = 1 if len(columns) > _MANY else 2
    console.print(text_table(columns, rows, gap=gap, whole=("device",)))


def placed_summary(explanation: Explanation, placed: PlacedStep) -> tuple[str, ...]:
    """The step as a whole, in a few lines; the predicted step is in the second."""
    alone, step_s = placed.alone, explanation.step_s
    return (
        f"{explanation.job} on {len(placed.devices)} devices: {explanation.parameters:,} "
        f"variables, {bytes_text(explanation.parameter_bytes)}; {crossing_text(placed)}; "
        f"placed by: {explanation.planner}{about_text(explanation)}",
        f"Predicted step {seconds_text(step_s)}; on one device {seconds_text(alone.step_s)} "
        f"({ratio_text(alone.step_s / step_s)} as long), which {alone_text(placed)}",
        f"No placement is faster than {seconds_text(placed.path_bound_s)}, the longest path, or "
        f"{seconds_text(placed.work_bound_s)}, all work on all devices",
    )


def alone_text(placed: PlacedStep) -> str:
    """Whether one device has enough memory for all: "needs 1.20 GiB: does not fit"."""
    return f"needs {bytes_text(placed.alone.bytes)}: {'fits' if placed.alone.fits else 'too much'}"


def crossing_text(placed: PlacedStep) -> str:
    """How many tensors cross: "22 tensors cross"."""
    count = placed.crossing_count
    return "1 tensor crosses" if count == 1 else f"{count:,} tensors cross"


def caveats(placed: PlacedStep) -> Iterator[str]:
    """What to bear in mind."""
    if not placed.knows_times:
        yield (
            "No times were measured: an op is taken to cost the bytes that it puts out, so "
            "predicted times are guesses. Bytes and memory are right for batches of batch_size "
            "examples (PlacedModel(batch_size=...))."
        )
    if placed.unknown_sizes:
        yield (
            f"{placed.unknown_sizes:,} tensors have a size that nobody knows before a step, and "
            "are taken to be empty: predicted memory may be too small. A profile knows sizes."
        )


# Rows -------------------------------------------------------------------------------------------


DEVICE_COLUMNS: Row = (
    *("device", "ops|", "busy|", "measured|", "sent|", "measured|", "received|", "measured|"),
    *("variables|", "tensors|", "measured|", "together|", "limit|"),
)
"""Of `device_rows`; names of numbers end in "|". What was not measured has no entries."""


def device_rows(placed: PlacedStep) -> list[Row]:
    """What a step needs of each device, and beside it what was measured."""
    devices = placed.devices
    names = [f"{number} {device.name.removeprefix(_JOB)}" for number, device in enumerate(devices)]
    uses: list[list[DeviceUse | None]] = [
        [device.predicted for device in devices],
        [device.measured for device in devices],
    ]
    tensors = [[_tensor_bytes(use) for use in own] for own in uses]
    limits = [device.limit_bytes for device in devices]
    *memory, limit = _alike(
        [
            [device.variable_bytes for device in devices],
            [size or 0 for size in tensors[0]],
            tensors[1],
            [_together(device) for device in devices],
            limits,
        ],
        bytes_texts,
    )
    if any(limits):
        limit = [text or "none" for text in limit]
    columns = [
        names,
        [f"{device.ops:,}" for device in devices],
        *_alike([[use.busy_s if use else None for use in own] for own in uses], seconds_texts),
        *_alike([[use.sent_bytes if use else None for use in own] for own in uses], bytes_texts),
        *_alike(
            [[use.received_bytes if use else None for use in own] for own in uses], bytes_texts
        ),
        *memory,
        limit,
    ]
    return list(zip(*columns, strict=True))


def _alike(
    columns: Sequence[Sequence[Value | None]], texts: Callable[[Sequence[Value]], list[str]]
) -> list[list[str]]:
    """Columns that are compared with each other, in one unit; what is not known is empty."""
    known = iter(texts([value for own in columns for value in own if value is not None]))
    return [["" if value is None else next(known) for value in own] for own in columns]


def _tensor_bytes(use: DeviceUse | None) -> int | None:
    return None if use is None else use.tensor_bytes


def _together(device: PlacedDevice) -> int:
    """Variables and tensors: as measured, else as predicted."""
    measured = _tensor_bytes(device.measured)
    tensors = _tensor_bytes(device.predicted) or 0 if measured is None else measured
    return device.variable_bytes + tensors


def chain_rows(explanation: Explanation, placed: PlacedStep) -> list[Row]:
    """The chain that bounds the step, its longest parts and what is between them."""
    step_s = explanation.step_s
    chain = placed.chain
    longest = sorted(range(len(chain)), key=lambda n: -chain[n].length_s)[:CHAIN_SHOWN]
    shown = {n for n in longest if chain[n].length_s >= _LEAST_SHOWN * step_s}
    rows: list[Row] = []
    short: list[Stretch] = []
    for number, each in enumerate(chain):
        if number not in shown:
            short.append(each)
            continue
        rows += _short_rows(short, step_s)
        short = []
        rows.append(_chain_row(each, step_s))
    return [*rows, *_short_rows(short, step_s)]


def _chain_row(each: Stretch, step_s: float) -> Row:
    first, last = each.names[0], each.names[-1]
    if each.kind == "transfer":
        size = f"{bytes_text(each.bytes)} " if each.bytes else ""
        what, ops = f"{size}to device {each.device}", first
    else:
        what = f"device {each.device} computes"
        more = f" ({len(each.names):,} ops)" if len(each.names) > 2 else ""
        ops = first if first == last else f"{first} \u2026 {last}{more}"
    return (what, *_times(each.begin_s, each.end_s, each.waiting_s, step_s), ops)


def _short_rows(short: Sequence[Stretch], step_s: float) -> Iterator[Row]:
    """What is between longer parts, if it takes long enough."""
    if short and short[-1].end_s - short[0].begin_s >= _LEAST_SHOWN * step_s:
        waiting_s = sum(each.waiting_s for each in short)
        times = _times(short[0].begin_s, short[-1].end_s, waiting_s, step_s)
        yield (f"{len(short):,} shorter parts", *times, "")


def _times(begin_s: float, end_s: float, waiting_s: float, step_s: float) -> Row:
    times = (begin_s, end_s, end_s - begin_s)
    waiting = milliseconds(waiting_s, step_s) if waiting_s else ""
    return (*(milliseconds(time_s, step_s) for time_s in times), waiting)


def crossing_rows(explanation: Explanation, placed: PlacedStep) -> list[Row]:
    """The largest tensors that cross."""
    step_s = explanation.step_s
    sizes = bytes_texts([each.bytes for each in placed.crossings])
    return [
        (
            each.tensor,
            f"{each.source} to {each.target}",
            size,
            *(milliseconds(time_s, step_s) for time_s in (each.begin_s, each.end_s, each.needed_s)),
        )
        for each, size in zip(placed.crossings, sizes, strict=True)
    ]
