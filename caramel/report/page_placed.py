"""What a page tells of a step that is spread over several devices, besides what all pages tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from caramel.core.explanation import Explanation
from caramel.core.placed_step import PlacedStep
from caramel.report.markup import Markup, element
from caramel.report.page_parts import plain_table, section, tile
from caramel.report.table_placed import (
    DEVICE_COLUMNS,
    alone_text,
    caveats,
    chain_rows,
    crossing_rows,
    device_rows,
)
from caramel.report.units import percent_text, ratio_text, seconds_text
from caramel.report.words import utilisation_text


def placed_tiles(explanation: Explanation, placed: PlacedStep) -> list[Markup]:
    """The key figures."""
    bound_s = max(placed.path_bound_s, placed.work_bound_s)
    bound = explanation.step_s / bound_s if bound_s else float("inf")
    most = max(device.predicted.busy_s for device in placed.devices)
    return [
        tile(
            "Predicted step",
            seconds_text(explanation.step_s),
            f"{ratio_text(bound)} the least that is possible",
        ),
        tile("One device", seconds_text(placed.alone.step_s), alone_text(placed)),
        tile("Longest path", seconds_text(placed.path_bound_s), "on the fastest device"),
        tile("All work", seconds_text(placed.work_bound_s), "if no device ever waits"),
        tile("Busiest device", seconds_text(most), "of the step it computes"),
        tile("Busiest link", seconds_text(explanation.wire_limit_s), "of the step it sends"),
        tile("Busy, U", percent_text(explanation.utilisation), utilisation_text(explanation)),
    ]


def placed_bars(explanation: Explanation, placed: PlacedStep) -> list[tuple[str, str, float]]:
    """What the step is compared with: class of the bar, name and time."""
    return [
        ("plain", "One device alone", placed.alone.step_s),
        ("compute", "Busiest device", explanation.computation_s),
        ("in-step", "Busiest link", explanation.wire_limit_s),
        ("compute", "Longest path", placed.path_bound_s),
        ("compute", "All work on all devices", placed.work_bound_s),
    ]


def placed_sections(explanation: Explanation, placed: PlacedStep) -> Iterator[Markup]:
    """Devices, the chain that bounds the step, and what crosses."""
    # On a phone they do not stand beside each other.
    columns = [
        f"{before.rstrip('|')}, {name}" if name == "measured|" else name
        for before, name in pairwise(("", *DEVICE_COLUMNS))
    ]
    notes = [element("p", note, class_="quiet") for note in caveats(placed)]
    about = "What a step needs of each device"
    if any(device.measured for device in placed.devices):
        about += ", and what was measured, in the median of traced steps"
    yield section(
        "Devices", plain_table("devices", f"{about}.", columns, device_rows(placed)), *notes
    )
    yield section(
        "The chain that bounds the step",
        plain_table(
            "chain",
            "From the beginning of the step to its end: ops of a device, and tensors on their way. "
            "Times in milliseconds.",
            ("What", "From|", "To|", "Takes|", "Of it waiting|", "Ops"),
            chain_rows(explanation, placed),
        ),
    )
    if placed.crossings:
        yield section(
            f"Largest tensors that cross: {len(placed.crossings)} of {placed.crossing_count:,}",
            plain_table(
                "crossings",
                "Times in milliseconds, as predicted.",
                ("Tensor", "Device", "Size|", "Leaves|", "Arrives|", "Needed|"),
                crossing_rows(explanation, placed),
            ),
        )
