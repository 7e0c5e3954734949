"""An explanation of a step that is spread over several devices, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from caramel.core.explanation import Explanation
from caramel.core.placed_step import DeviceUse, PlacedDevice, PlacedStep, Stretch
from caramel.report.units import bytes_text, milliseconds, ratio_text, seconds_text

CHAIN_SHOWN = 30
_JOB = "/job:worker/"
_MANY = 9  # columns: they stand closer
_LEAST_SHOWN = 0.005  # of a step: shorter parts of its chain are told together

Row = tuple[str, ...]


def show_devices(explanation: Explanation, placed: PlacedStep, console: Console) -> None:
    """Print what is on each device, the chain that bounds the step, and what crosses."""
    _show(console, "Devices; predicted", device_columns(placed), device_rows(placed))
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
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for column in columns:
        is_number = column.endswith("|")
        table.add_column(
            column.rstrip("|"),
            justify="right" if is_number else "left",
            no_wrap=is_number or column == "device",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def placed_summary(explanation: Explanation, placed: PlacedStep) -> tuple[str, ...]:
    """The step as a whole, in a few lines; the predicted step is in the second."""
    alone, step_s = placed.alone, explanation.step_s
    return (
        f"{explanation.job} on {len(placed.devices)} devices: {explanation.parameters:,} "
        f"variables, {bytes_text(explanation.parameter_bytes)}; {crossing_text(placed)}; "
        f"placed by: {explanation.planner}",
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


def device_columns(placed: PlacedStep) -> Row:
    """The columns of `device_rows`; those of numbers end in "|"."""
    both = any(device.measured for device in placed.devices)
    names = ["device", "ops|"]
    for name in ("busy", "sent", "received"):
        names += [f"{name}|", "measured|"] if both else [f"{name}|"]
    names += ["variables|", "tensors|"]
    if any(_tensor_bytes(device.measured) is not None for device in placed.devices):
        names.append("measured|")
    return (*names, "together|", "limit|")


def device_rows(placed: PlacedStep) -> list[Row]:
    """What a step needs of each device."""
    both = any(device.measured for device in placed.devices)
    has_memory = any(_tensor_bytes(device.measured) is not None for device in placed.devices)
    rows = []
    for number, device in enumerate(placed.devices):
        cells = [f"{number} {device.name.removeprefix(_JOB)}", f"{device.ops:,}"]
        uses = [device.predicted, device.measured] if both else [device.predicted]
        cells += ["" if use is None else seconds_text(use.busy_s) for use in uses]
        cells += ["" if use is None else bytes_text(use.sent_bytes) for use in uses]
        cells += ["" if use is None else bytes_text(use.received_bytes) for use in uses]
        cells.append(bytes_text(device.variable_bytes))
        measured = _tensor_bytes(device.measured)
        cells.append(bytes_text(_tensor_bytes(device.predicted) or 0))
        if has_memory:
            cells.append("" if measured is None else bytes_text(measured))
        rows.append((*cells, bytes_text(_together(device)), _limit(device)))
    return rows


def _tensor_bytes(use: DeviceUse | None) -> int | None:
    return None if use is None else use.tensor_bytes


def _together(device: PlacedDevice) -> int:
    """Variables and tensors: as measured, else as predicted."""
    measured = _tensor_bytes(device.measured)
    tensors = _tensor_bytes(device.predicted) or 0 if measured is None else measured
    return device.variable_bytes + tensors


def _limit(device: PlacedDevice) -> str:
    return "none" if device.limit_bytes is None else bytes_text(device.limit_bytes)


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
    return [
        (
            each.tensor,
            f"{each.source} to {each.target}",
            bytes_text(each.bytes),
            *(milliseconds(time_s, step_s) for time_s in (each.begin_s, each.end_s, each.needed_s)),
        )
        for each in placed.crossings
    ]
