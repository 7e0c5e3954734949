"""An explanation that people look at: printed, in a notebook, or as a page of its own."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from caramel.core.explanation import Explanation
from caramel.core.util.atomic_files import write_whole
from caramel.report.markup import element
from caramel.report.page import html_page
from caramel.report.table import show_explanation

_PRINTED_COLUMNS = 120
_FRAME_PX = 800  # where scripts do not run, and the page scrolls inside of its frame
# The page has no access to the notebook, so its height has to be told.
_FIT = """
const frame = this;
window.addEventListener("message", (event) => {
  if (event.source !== frame.contentWindow || !event.data?.caramelHeight) return;
  frame.style.height = `${event.data.caramelHeight}px`;
});
frame.contentWindow.postMessage("caramel: height", "*");
"""


def printed(show: Callable[[Console], None]) -> str:
    """What is shown on a console, as plain text."""
    text = io.StringIO()
    show(Console(file=text, width=_PRINTED_COLUMNS, force_terminal=False, force_jupyter=False))
    return text.getvalue().rstrip("\n")


def save_page(explanation: Explanation, path: str | os.PathLike[str]) -> None:
    """Write the page of an explanation to a file.

    Raises:
        FileError: it cannot be written.
    """
    write_whole(Path(path), html_page(explanation))


def framed(explanation: Explanation) -> str:
    """The page in a frame of its own, as high as the page; its styles are not the notebook's."""
    style = f"width: 100%; height: {_FRAME_PX}px; border: 0"
    page = html_page(explanation)
    return element("iframe", sandbox="allow-scripts", style=style, onload=_FIT, srcdoc=page)


@dataclass(frozen=True, slots=True)
class ShownExplanation(Explanation):
    """An explanation that shows itself: `show` and `print` as tables, a notebook as a page."""

    @classmethod
    def of(cls, explanation: Explanation) -> ShownExplanation:
        """The same explanation."""
        # Field by field: `asdict` would take apart what is in them, too.
        fields = dataclasses.fields(Explanation)
        return cls(**{field.name: getattr(explanation, field.name) for field in fields})

    def show(self, console: Console | None = None) -> None:
        """Print the tables.

        Args:
            console: where; by default the standard output, as wide as the terminal.
        """
        show_explanation(self, console or Console())

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that needs nothing else, with pictures of what all workers do.

        Raises:
            FileError: it cannot be written.
        """
        save_page(self, path)

    def __str__(self) -> str:
        return printed(self.show)

    def _repr_html_(self) -> str:
        return framed(self)
