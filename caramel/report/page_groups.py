"""The page's table of groups: size, window, pattern, depth, place and reason of each, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from caramel.core.explanation import Explanation, GroupExplanation
from caramel.report.markup import Markup, element, joined
from caramel.report.page_parts import plain_table
from caramel.report.table import MISSES_SHOWN, during, miss_rows, size_texts
from caramel.report.timeline_picture import percent
from caramel.report.units import milliseconds, seconds_text
from caramel.report.words import FROM_SERVERS, place_text, words_of

_PICTURE_HEIGHT = 22
_PICTURE = "Window, two steps"


@dataclass(frozen=True)
class _Column:
    """A column of the table.

    Attributes:
        name: what stands above it, and in a card before its values.
        title: what that means.
        texts: its values; without any of them the column is left out.
        numbers: by what it is sorted, if that is no text.
        shown: the cells' content, where it is more than their text.
        kind: the cells' class.
    """

    name: str
    title: str
    texts: Sequence[str]
    numbers: Sequence[float | None] | None = None
    shown: Sequence[Markup] | None = None
    kind: str | None = None

    def header(self) -> Markup:
        """The head of the column."""
        kind = None if self.numbers is None else "number"
        return element(
            "th",
            self.name,
            scope="col",
            title=self.title,
            class_=kind,
            data_sort=self.name != _PICTURE,
        )

    def cell(self, row: int) -> Markup:
        """A cell; small screens show the name of its column, and sorting goes by its number."""
        number = None if self.numbers is None else self.numbers[row]
        return element(
            "td",
            self.texts[row] if self.shown is None else self.shown[row],
            class_=self.kind or (None if self.numbers is None else "number"),
            data_v=None if number is None else f"{number:.9g}",
            data_label=self.name,
        )


def groups_table(explanation: Explanation) -> Markup:
    """The table, sortable by a click on its headers where JavaScript runs."""
    words = words_of(explanation)
    columns = [column for column in _columns(explanation) if any(column.texts)]
    what = f"{words.group.capitalize()}s"
    first = element(
        "th", what[:-1], scope="col", title="order of transfer, name and parameters", data_sort=True
    )
    rows = (
        element(
            "tr",
            element("th", *_name(group), scope="row", data_v=number),
            *(column.cell(number) for column in columns),
            id=f"g{number}",
            data_place=group.place,
        )
        for number, group in enumerate(explanation.groups)
    )
    caption = (
        f"{what} in order of transfer. Times in milliseconds from the beginning of their step."
    )
    table = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", first, *(column.header() for column in columns))),
        element("tbody", *rows),
        id="groups",
    )
    return element(
        "div",
        table,
        class_="scrolls",
        tabindex=0,
        role="region",
        aria_label=f"Table of {words.group}s, scrolls sideways",
    )


def controls(explanation: Explanation) -> Markup:
    """What filters the table; shown by the page's script."""
    count, words = len(explanation.groups), words_of(explanation)
    places = (("", "all"), *words.places.items())
    return element(
        "form",
        element(
            "label",
            "Find ",
            element(
                "input", type="search", id="find", placeholder=f"{words.group}, parameter, reason"
            ),
        ),
        element(
            "label",
            "Place ",
            element("select", *(element("option", t, value=v) for v, t in places), id="place"),
        ),
        element(
            "output",
            f"{count} of {count} {words.group}s",
            id="count",
            for_="find place",
            data_what=f"{words.group}s",
        ),
        class_="controls",
        hidden=True,
    )


def _columns(explanation: Explanation) -> Iterator[_Column]:
    groups, step_s = explanation.groups, explanation.step_s
    is_served = words_of(explanation) is FROM_SERVERS
    kind = "receives" if is_served else "puts into the aggregation"
    sizes = [group.size_bytes for group in groups]
    yield _Column("Size", f"what one worker {kind}", size_texts(groups), sizes)
    yield _place(explanation)
    if is_served:
        yield _Column("Server", "who sends it", [group.server for group in groups])
        priorities = [group.priority for group in groups]
        firsts = ["" if priority is None else str(priority) for priority in priorities]
        title = "its number among what this server sends in order"
        yield _Column("Priority", title, firsts, priorities)
        ready = "when it is updated, in the step before"
        needed, predicted = "when the next step first reads it", "it is on its way"
    else:
        yield _Column("Pattern", "how it is aggregated", [group.pattern for group in groups])
        depths = [group.depth for group in groups]
        yield _Column("Depth", "into how many parts it is split", list(map(str, depths)), depths)
        ready = "when its last gradient is complete"
        needed = "when the next step first reads one of its parameters"
        predicted = "it is aggregated"

    def at(name: str, title: str, times_s: Sequence[float | None], **how: bool) -> _Column:
        texts = ["" if time is None else milliseconds(time, step_s, **how) for time in times_s]
        return _Column(name, title, texts, times_s)

    def between(
        name: str, title: str, spans: Sequence[tuple[float | None, float | None]]
    ) -> _Column:
        texts = [during(begin_s, end_s, step_s) for begin_s, end_s in spans]
        return _Column(name, title, texts, [end_s for _, end_s in spans])

    yield at("Ready", ready, [group.ready_s for group in groups])
    yield at("Needed", needed, [group.needed_s for group in groups])
    spans = [(group.predicted_begin_s, group.predicted_end_s) for group in groups]
    yield between("Predicted", f"from when to when {predicted}", spans)
    was = [(group.measured_begin_s, group.measured_end_s) for group in groups]
    yield between("Measured", "from when to when that was", was)
    late = "how much later it arrived than predicted"
    yield at("Late", late, [group.late_s for group in groups], signed=True)
    pictures = [_picture(group, step_s) for group in groups]
    pale = "pale: the window from ready to needed"
    yield _Column(_PICTURE, pale, pictures, shown=pictures, kind="picture")
    yield _reason(groups, words_of(explanation).group)


def _place(explanation: Explanation) -> _Column:
    title = "aggregated in its own step or deferred to the next"
    if explanation.servers:
        title = "in the order, and whether it is sent ahead"
    texts = [place_text(explanation, *each) for each in enumerate(explanation.groups)]
    shown = [
        joined(element("span", class_=f"key {group.place}"), text)
        for group, text in zip(explanation.groups, texts, strict=True)
    ]
    return _Column("Place", title, texts, shown=shown, kind="place")


def _reason(groups: Sequence[GroupExplanation], what: str) -> _Column:
    title = f"why it is as it is, and for which {what}s it waits"
    waits = [f"Waits for {', '.join(g.waits_for)}" if g.waits_for else "" for g in groups]
    texts = [group.reason + wait for group, wait in zip(groups, waits, strict=True)]
    shown = [
        joined(group.reason, element("small", wait) if wait else None)
        for group, wait in zip(groups, waits, strict=True)
    ]
    return _Column("Reason", title, texts, shown=shown, kind="reason")


def _name(group: GroupExplanation) -> Iterator[Markup]:
    yield element("span", group.name, class_="name")
    if len(group.members) == 1:
        yield element("small", group.members[0])
    elif group.members:
        yield element(
            "details",
            element("summary", f"{len(group.members)} parameters"),
            element("ul", *(element("li", member) for member in group.members)),
        )


def _picture(group: GroupExplanation, step_s: float) -> Markup:
    """The group's window over two steps, and in it where the group is transferred.

    They are the step in which it gets ready and the next one.
    """
    # Times count from the beginning of the step in which the group is transferred.
    shift_s = step_s if group.deferred else 0.0
    needed_s = step_s + group.needed_s
    times = [group.predicted_end_s + shift_s, (group.measured_end_s or 0.0) + shift_s]
    axis_s = max(2 * step_s, needed_s, *times)

    def bar(kind: str, begin_s: float, end_s: float, y: int, height: int) -> Markup:
        # So wide that it can be seen.
        width_s = max(end_s - begin_s, axis_s / 120)
        x, width = percent(begin_s, axis_s), percent(width_s, axis_s)
        return element("rect", x=x, width=width, y=y, height=height, class_=kind)

    measured = None
    height = _PICTURE_HEIGHT - 8
    if group.measured_begin_s is not None and group.measured_end_s is not None:
        height //= 2
        begin_s, end_s = group.measured_begin_s + shift_s, group.measured_end_s + shift_s
        measured = bar(f"{group.place} measured", begin_s, end_s, 4 + height, height)
    begin_s, end_s = group.predicted_begin_s + shift_s, group.predicted_end_s + shift_s
    border = percent(step_s, axis_s)
    step = "the next step" if group.deferred else "the step"
    done = "sent" if group.server else "aggregated"
    words = (
        f"window from {seconds_text(group.ready_s)} to {seconds_text(group.needed_s)} of the next "
        f"step; {done} in {step} from {seconds_text(group.predicted_begin_s)} to "
        f"{seconds_text(group.predicted_end_s)}"
    )
    return element(
        "svg",
        element("title", words),
        bar("window", group.ready_s, needed_s, 1, _PICTURE_HEIGHT - 2),
        element("line", x1=border, x2=border, y1=0, y2=_PICTURE_HEIGHT, class_="step-end"),
        bar(group.place, begin_s, end_s, 4, height),
        measured,
        height=_PICTURE_HEIGHT,
        role="img",
        aria_label=words,
    )


def misses_table(explanation: Explanation) -> Markup:
    """The groups whose end was predicted worst, the worst first."""
    misses = explanation.misses[:MISSES_SHOWN]
    what = words_of(explanation).group
    columns = (what.capitalize(), "Late|", "Predicted end|", "Measured end|", "Size|")
    numbers = {group.name: number for number, group in enumerate(explanation.groups)}
    rows = [
        (element("a", name, href=f"#g{numbers[name]}"), *values)
        for name, *values in miss_rows(misses, explanation.step_s)
    ]
    done = "transfer goes" if explanation.servers else "group is aggregated"
    caption = f"Times in milliseconds from the beginning of the step in which a {done}."
    return plain_table("misses", caption, columns, rows)
