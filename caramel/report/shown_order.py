"""An explanation of an order of transfers that people look at: printed, or as a page."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup

from caramel.core.errors import PlanError
from caramel.core.explanation import Explanation
from caramel.core.orders import Orders
from caramel.core.util.sizes import bytes_text, bytes_texts
from caramel.planning.serving.explain import ExplainedOrder
from caramel.report.columns import WIDE, print_reasons, text_table
from caramel.report.shown import framed, printed, save_page
from caramel.report.units import percent_text

_MOST_ROWS = 60
_NAMES = ("variable", "server", "waits for", "why")  # the last columns of both tables


@dataclass(frozen=True)
class ShownOrder(ExplainedOrder):
    """An explanation of an order: `show` and `print` as a table, a notebook as a page.

    Attributes:
        step: all of the step, for the page; None if nothing is known of times.
    """

    step: Explanation | None = None

    @classmethod
    def of(cls, explained: ExplainedOrder, step: Explanation | None) -> ShownOrder:
        """The same explanation."""
        fields = dataclasses.fields(ExplainedOrder)
        own = {field.name: getattr(explained, field.name) for field in fields}
        return cls(**own, step=step)

    def show(self, console: Console | None = None) -> None:
        """Print the table.

        Args:
            console: where; by default the standard output, as wide as the terminal.
        """
        console = console or Console()
        shown = self.transfers[:_MOST_ROWS]
        rows = [
            (
                str(each.place),
                "ahead" if each.priority is None else str(each.priority),
                size,
                _milliseconds(each.arrives_s),
                _milliseconds(each.needed_s),
                *_names(each),
            )
            for each, size in zip(shown, bytes_texts([e.bytes for e in shown]), strict=True)
        ]
        columns = ("place|", "priority|", "size|", "arrives ms|", "needed ms|", *_NAMES)
        _show(f"What workers receive: {self.source}", columns, rows, console)
        _print_left_out(self.transfers, console)
        if any(each.after for each in self.gradients):
            self._show_gradients(console)
        elif self.gradients:
            console.print("gradients are sent when they are ready")
        for line in self._lines():
            console.print(line)

    def _show_gradients(self, console: Console) -> None:
        title = "What workers send: gradients that make steps shorter in this order"
        shown = self.gradients[:_MOST_ROWS]
        rows = [
            (
                str(each.place),
                size,
                _milliseconds(each.ready_s),
                _milliseconds(each.arrives_s),
                *_names(each),
            )
            for each, size in zip(shown, bytes_texts([e.bytes for e in shown]), strict=True)
        ]
        _show(title, ("place|", "size|", "ready ms|", "arrives ms|", *_NAMES), rows, console)
        _print_left_out(self.gradients, console)

    def _lines(self) -> list[str]:
        lines = [f"{server} holds {bytes_text(size)}" for server, size in self.server_bytes]
        if None not in (self.step_s, self.upper_s, self.lower_s, self.efficiency):
            lines.append(
                f"a worker has received and computed all after {_milliseconds(self.step_s)} ms; at "
                f"best {_milliseconds(self.lower_s)}, one thing at a time "
                f"{_milliseconds(self.upper_s)} (ordering efficiency {self.efficiency:.2f})"
            )
        else:
            lines.append("nothing is known of times yet")
        if self.measured is not None:
            lines.append(measured_text(self.measured))
        return [*lines, *self.notes]

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that needs nothing else, with pictures of what all workers do, and of
        what the servers' links carry.

        Raises:
            PlanError: nothing is known of times.
            FileError: it cannot be written.
        """
        if self.step is None:
            raise PlanError(
                "a page needs times, and nothing is known of them yet: give PSModel(profile=...) a "
                "file that 'caramel profile' wrote, or explain after the first steps of training "
                "with ordering='search' or 'tac'"
            )
        save_page(self.step, path)

    def __str__(self) -> str:
        return printed(self.show)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>" if self.step is None else framed(self.step)


def measured_text(orders: Orders) -> str:
    """What traced steps tell of an order, in a sentence without a full stop."""
    steps = "a step" if orders.steps == 1 else f"{orders.steps} steps"
    place = ""
    if orders.out_of_place is not None:
        place = f", {percent_text(orders.out_of_place)} of transfers out of place"
    if orders.gradients_out_of_place is not None:
        place += f", {percent_text(orders.gradients_out_of_place)} of gradients"
    return (
        f"measured in {steps}: {orders.unique} orders of arrival{place}; U "
        f"{_milliseconds(orders.upper_s)} ms, L {_milliseconds(orders.lower_s)} ms, ordering "
        f"efficiency E {orders.efficiency:.2f}, speedup S {orders.speedup:.2f}; alpha "
        f"{orders.alpha:.2f}, rho {orders.rho:.2f}; straggler share "
        f"{percent_text(orders.stragglers)}"
    )


def _names(each: Any) -> tuple[str, str, str, str]:
    """The cells of `_NAMES`."""
    return each.variable, each.server, ", ".join(each.after), each.reason


def _show(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], console: Console
) -> None:
    """Print a table whose last column says why, below the table where the terminal is narrow."""
    wide = console.width >= WIDE
    console.print(escape_markup(title), style="bold", highlight=False)
    kept = len(columns) if wide else -1
    console.print(text_table(columns[:kept], [row[:kept] for row in rows]))
    if not wide:
        variable = columns.index("variable")
        print_reasons(((row[variable], row[-1]) for row in rows), console)


def _print_left_out(of: Sequence[Any], console: Console) -> None:
    if len(of) > _MOST_ROWS:
        console.print(f"and {len(of) - _MOST_ROWS} more")


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"
