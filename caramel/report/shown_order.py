"""An explanation of an order of transfers that shows itself as a table."""

from __future__ import annotations

import dataclasses
import io

from rich.console import Console
from rich.table import Table

from caramel.core.orders import Orders
from caramel.planning.serving.explain import ExplainedOrder
from caramel.report.units import percent_text

_PRINTED_COLUMNS = 120
_MOST_ROWS = 60


class ShownOrder(ExplainedOrder):
    """An explanation of an order: `show` and `print` show it."""

    @classmethod
    def of(cls, explained: ExplainedOrder) -> ShownOrder:
        """The same explanation."""
        fields = dataclasses.fields(ExplainedOrder)
        return cls(**{field.name: getattr(explained, field.name) for field in fields})

    def show(self, console: Console | None = None) -> None:
        """Print the table.

        Args:
            console: where; by default the standard output, as wide as the terminal.
        """
        console = console or Console()
        table = Table(title=f"What workers receive: {self.source}")
        for column in ("place", "MB", "arrives ms", "needed ms"):
            table.add_column(column, justify="right")
        for column in ("variable", "server", "waits for", "why"):
            table.add_column(column)
        for each in self.transfers[:_MOST_ROWS]:
            table.add_row(
                str(each.place),
                f"{each.bytes / 1e6:.2f}",
                "ahead" if each.ahead else _milliseconds(each.arrives_s),
                _milliseconds(each.needed_s),
                each.variable,
                each.server,
                ", ".join(each.after),
                each.reason,
            )
        console.print(table)
        if len(self.transfers) > _MOST_ROWS:
            console.print(f"and {len(self.transfers) - _MOST_ROWS} more")
        for line in self._lines():
            console.print(line)

    def _lines(self) -> list[str]:
        lines = [f"{server}: {size / 1e6:.1f} MB" for server, size in self.server_bytes]
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

    def __str__(self) -> str:
        text = io.StringIO()
        self.show(Console(file=text, width=_PRINTED_COLUMNS, force_terminal=False))
        return text.getvalue().rstrip("\n")


def measured_text(orders: Orders) -> str:
    """What traced steps tell of an order, in a sentence without a full stop."""
    steps = "a step" if orders.steps == 1 else f"{orders.steps} steps"
    place = ""
    if orders.out_of_place is not None:
        place = f", {percent_text(orders.out_of_place)} of transfers out of place"
    return (
        f"measured in {steps}: {orders.unique} orders of arrival{place}; U "
        f"{_milliseconds(orders.upper_s)} ms, L {_milliseconds(orders.lower_s)} ms, ordering "
        f"efficiency E {orders.efficiency:.2f}, speedup S {orders.speedup:.2f}; alpha "
        f"{orders.alpha:.2f}, rho {orders.rho:.2f}; straggler share "
        f"{percent_text(orders.stragglers)}"
    )


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.1f}"
