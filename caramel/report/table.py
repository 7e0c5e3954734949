"""An explanation as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from caramel.core.decision import ALL_GATHER
from caramel.core.explanation import Explanation, GroupExplanation
from caramel.core.util.digits import three_digits
from caramel.core.util.sizes import bytes_text, bytes_texts, counted
from caramel.report.columns import WIDE, print_reasons, text_table
from caramel.report.table_placed import placed_summary, show_devices
from caramel.report.units import (
    TO,
    milliseconds,
    percent_text,
    ratio_text,
    seconds_text,
    seconds_texts,
)
from caramel.report.words import about_text, alpha_text, rho_text, utilisation_text

MISSES_SHOWN = 10


def show_explanation(explanation: Explanation, console: Console) -> None:
    """Print what the step costs and why, each group, what limits the step and what would help.

    After training, the groups whose end was predicted worst come last, the worst first.
    """
    for line in summary(explanation):
        console.print(escape(line), highlight=False)
    if explanation.groups:
        _show_groups(explanation, console)
    if explanation.placed is not None:
        show_devices(explanation, explanation.placed, console)
    if explanation.limits:
        _title("What makes the step longer", console)
        times = seconds_texts([limit.seconds for limit in explanation.limits])
        for limit, time in zip(explanation.limits, times, strict=True):
            line = f"{limit.sentence}: {time}"
            console.print(escape(line), highlight=False)
    if explanation.what_if:
        _title("What would help", console)
        console.print(_what_if(explanation))
    misses = explanation.misses
    if misses:
        shown = misses[:MISSES_SHOWN]
        of_all = f" ({len(shown)} of {len(misses)} groups)" if shown != misses else ""
        _title(f"Predicted worst{of_all}; times in ms", console)
        console.print(_misses(shown, explanation.step_s))


def _title(text: str, console: Console) -> None:
    console.print()
    console.print(escape(text), style="bold", highlight=False)


def summary(explanation: Explanation) -> tuple[str, ...]:
    """The step as a whole, in a few lines."""
    placed = explanation.placed
    lines = [
        *(_summary(explanation) if placed is None else placed_summary(explanation, placed)),
        " ".join(limited_text(explanation)),
    ]
    measured_s = explanation.measured_step_s
    if measured_s is not None:
        # Behind the predicted one.
        lines.insert(2, f"Measured step {seconds_text(measured_s)} ({off_text(explanation)})")
    return tuple(lines)


def _summary(explanation: Explanation) -> tuple[str, ...]:
    step_s, plain_s = explanation.step_s, explanation.plain_step_s
    return (
        f"{explanation.job} on {counted(explanation.workers, 'worker')}: "
        f"{parameters_text(explanation)}, "
        f"{bytes_text(explanation.parameter_bytes)}, in "
        f"{counted(len(explanation.groups), 'group')}; planner: {explanation.planner}"
        f"{about_text(explanation)}",
        f"Predicted step {seconds_text(step_s)}; without planning {seconds_text(plain_s)} "
        f"({ratio_text(plain_s / step_s)})",
        f"Computation {seconds_text(explanation.computation_s)}, wire limit "
        f"{seconds_text(explanation.wire_limit_s)}",
        f"rho {three_digits(explanation.rho)}: {rho_text(explanation)}",
        *_alpha(explanation),
        f"U {percent_text(explanation.utilisation)}: {utilisation_text(explanation)}",
        *_speedup(explanation),
    )


def _alpha(explanation: Explanation) -> Iterator[str]:
    if explanation.shown_alpha is not None:
        yield f"alpha {three_digits(explanation.shown_alpha)}: {alpha_text(explanation)}"


def _speedup(explanation: Explanation) -> Iterator[str]:
    """What all workers bring, beside one of them."""
    if explanation.speedup is not None and explanation.workers > 1:
        yield (
            f"One worker alone takes {seconds_text(explanation.computation_s)} for its part; "
            f"{explanation.workers} are {ratio_text(explanation.speedup)} as fast as one"
        )


def parameters_text(explanation: Explanation) -> str:
    """How many numbers in how many parameters: "77,562 values in 4 parameters"."""
    what = "variable" if explanation.placed is not None else "parameter"
    count = counted(explanation.parameters, what)
    return count if explanation.values is None else f"{explanation.values:,} values in {count}"


def limited_text(explanation: Explanation) -> tuple[str, str]:
    """What the step is limited by, and why, as two sentences."""
    named = explanation.limited_by
    name = f"the {named}" if named in ("wire", "processor") else named
    why = explanation.why.rstrip(".")
    return f"Limited by {name}.", f"{why[:1].upper()}{why[1:]}." if why else ""


def off_text(explanation: Explanation) -> str:
    """How far the predicted step was off: "3.1 % longer than predicted"."""
    if explanation.measured_step_s is None:
        return "not measured"
    share = explanation.measured_step_s / explanation.step_s - 1
    # What would be shown as 0.0 %.
    if abs(share) < 0.0005:
        return "as predicted"
    return f"{abs(share) * 100:.1f} % {'longer' if share > 0 else 'shorter'} than predicted"


def _show_groups(explanation: Explanation, console: Console) -> None:
    """The table of groups; on narrow terminals the reasons follow it, each once."""
    wide = console.width >= WIDE
    step_s = explanation.step_s
    _title("Groups in order of transfer; times in ms from the beginning of their step", console)
    columns = ["group", "size|", "ready|", "needed|", "pattern", "depth|", "place", "predicted|"]
    rows = [
        [*_cells(group, size, step_s), ", ".join(group.waits_for), group.reason]
        for group, size in zip(explanation.groups, size_texts(explanation.groups), strict=True)
    ]
    columns += ["measured|", "waits for", "why"]
    if not wide:
        columns, rows = columns[:-2], [row[:-2] for row in rows]
    console.print(text_table(columns, rows, gap=2 if wide else 1, whole=("place",)))
    if wide:
        return
    print_reasons(((group.name, group.reason) for group in explanation.groups), console)
    if any(group.waits_for for group in explanation.groups):
        console.print(f"With {WIDE} columns, the table also shows what each group waits for.")


def _cells(group: GroupExplanation, size: str, step_s: float) -> list[str]:
    return [
        group.name,
        size,
        milliseconds(group.ready_s, step_s),
        milliseconds(group.needed_s, step_s),
        group.pattern,
        str(group.depth),
        group.place,
        during(group.predicted_begin_s, group.predicted_end_s, step_s),
        during(group.measured_begin_s, group.measured_end_s, step_s),
    ]


def size_texts(groups: Sequence[GroupExplanation]) -> list[str]:
    """The sizes of groups as one column; those of sparse ones are not known before their rows."""
    sizes = bytes_texts([group.size_bytes for group in groups])
    sparse = [group.pattern == ALL_GATHER and group.size_bytes == 0 for group in groups]
    return ["rows" if rows else size for rows, size in zip(sparse, sizes, strict=True)]


def during(begin_s: float | None, end_s: float | None, step_s: float) -> str:
    """From when to when, in milliseconds; nothing if that is unknown."""
    if begin_s is None or end_s is None:
        return ""
    return f"{milliseconds(begin_s, step_s)}{TO}{milliseconds(end_s, step_s)}"


def _what_if(explanation: Explanation) -> Table:
    steps = seconds_texts([each.step_s for each in explanation.what_if])
    rows = [
        (each.change, step, ratio_text(each.speedup), each.note)
        for each, step in zip(explanation.what_if, steps, strict=True)
    ]
    return text_table(("change", "step|", "faster|", "note"), rows)


def _misses(misses: Sequence[GroupExplanation], step_s: float) -> Table:
    columns = ("group", "late|", "predicted end|", "measured end|", "size|")
    return text_table(columns, miss_rows(misses, step_s))


def miss_rows(misses: Sequence[GroupExplanation], step_s: float) -> list[tuple[str, ...]]:
    """Name, how late, predicted and measured end, and size, of groups that were measured."""
    return [
        (
            group.name,
            milliseconds(group.late_s or 0.0, step_s, signed=True),
            milliseconds(group.predicted_end_s, step_s),
            milliseconds(group.measured_end_s or 0.0, step_s),
            size,
        )
        for group, size in zip(misses, size_texts(misses), strict=True)
    ]
