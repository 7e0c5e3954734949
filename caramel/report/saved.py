"""Timelines as files that people look at: a picture, or JSON for a viewer."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from caramel.core.errors import FileError
from caramel.core.timeline import Timeline
from caramel.core.util.arguments import checked
from caramel.core.util.atomic_files import write_whole
from caramel.report.drawing import draw_timelines
from caramel.report.layout import Steps
from caramel.report.perfetto import trace_events

NOT_DRAWN = ("", ".json")
"""Endings of names of files that are no pictures."""


@checked(FileError)
def save_timelines(
    path: str | os.PathLike[str],
    measured: Steps,
    predicted: Timeline | None = None,
    *,
    deferred: Collection[str] = (),
) -> None:
    """Write what every worker did when, as `Session.trace` returns it.

    Args:
        path: a picture if it ends in .svg, .png or .pdf; JSON for ui.perfetto.dev and
            chrome://tracing if it ends in .json, or in nothing.
        measured: one step, or several: in a viewer they come one after the other, in a picture the
            first ones stand below each other, on one scale.
        predicted: is shown above it, such as `ARModel.explain().predicted`.
        deferred: names of the groups that are aggregated in the next step; a picture has them
            darker.

    Raises:
        CaramelError: matplotlib, which draws, is not installed; the path ends in something else; or
            the file cannot be written.
    """
    file = Path(path)
    titled: dict[str, Steps] = {} if predicted is None else {"predicted": predicted}
    titled["measured"] = measured
    if file.suffix.lower() in NOT_DRAWN:
        write_whole(file, json.dumps(trace_events(titled)) + "\n")
        return
    draw_timelines(titled, file, deferred=deferred)
