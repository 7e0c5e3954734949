"""The page's table of groups: size, window, pattern, depth, place and reason of each, and when."""

from __future__ import annotations

from collections.abc import Iterator

from caramel.core.explanation import Explanation, GroupExplanation
from caramel.report.markup import Markup, element, joined
from caramel.report.table import MISSES_SHOWN, during, miss_row, size_text
from caramel.report.timeline_picture import percent
from caramel.report.units import milliseconds, seconds_text
from caramel.report.words import FROM_SERVERS, Words, place_text, words_of

_PICTURE_HEIGHT = 22


def groups_table(explanation: Explanation) -> Markup:
    """The table, sortable by a click on its headers where JavaScript runs."""
    measured = bool(explanation.misses)
    rows = [
        _row(number, group, explanation, measured)
        for number, group in enumerate(explanation.groups)
    ]
    words = words_of(explanation)
    head = element("thead", element("tr", *_headers(words, measured)))
    what = f"{words.group.capitalize()}s"
    caption = f"{what} in order of transfer. Times in milliseconds from the begin of their step."
    table = element(
        "table", element("caption", caption), head, element("tbody", *rows), id="groups"
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


def _headers(words: Words, measured: bool) -> Iterator[Markup]:
    def header(text: str, title: str, *, number: bool = True) -> Markup:
        kind = "number" if number else None
        return element("th", text, scope="col", title=title, class_=kind, data_sort=True)

    yield header(words.group.capitalize(), "order of transfer, name and parameters", number=False)
    if words is FROM_SERVERS:
        yield header("Size", "what one worker receives")
        yield header("Place", "in the order, and whether it is sent ahead", number=False)
        yield header("Server", "who sends it", number=False)
        yield header("Priority", "its number among what this server sends in order")
        yield header("Ready", "when it is updated, in the step before")
        yield header("Needed", "when the next step first reads it")
        yield header("Predicted", "from when to when it is on its way")
    else:
        yield header("Size", "what one worker puts into the aggregation")
        yield header("Place", "aggregated in its own step or deferred to the next", number=False)
        yield header("Pattern", "how it is aggregated", number=False)
        yield header("Depth", "into how many parts it is split")
        yield header("Ready", "when its last gradient is complete")
        yield header("Needed", "when the next step first reads one of its parameters")
        yield header("Predicted", "from when to when it is aggregated")
    if measured:
        yield header("Measured", "from when to when that was")
        yield header("Late", "how much later it arrived than predicted")
    yield element(
        "th", "Window, two steps", scope="col", title="pale: the window from ready to needed"
    )
    reason = f"why it is as it is, and for which {words.group}s it waits"
    yield header("Reason", reason, number=False)


def _row(number: int, group: GroupExplanation, explanation: Explanation, measured: bool) -> Markup:
    step_s, place = explanation.step_s, place_text(explanation, number, group)
    cells = [
        element("th", *_name(group), scope="row", data_v=number),
        _number("Size", size_text(group), group.size_bytes),
        _cell("Place", element("span", class_=f"key {group.place}"), place, class_="place"),
        *_how(group),
        _number("Ready", milliseconds(group.ready_s, step_s), group.ready_s),
        _number("Needed", milliseconds(group.needed_s, step_s), group.needed_s),
        _number(
            "Predicted",
            during(group.predicted_begin_s, group.predicted_end_s, step_s),
            group.predicted_end_s,
        ),
    ]
    if measured:
        late_s = group.late_s
        late = "" if late_s is None else milliseconds(late_s, step_s, signed=True)
        when = during(group.measured_begin_s, group.measured_end_s, step_s)
        cells += [_number("Measured", when, group.measured_end_s), _number("Late", late, late_s)]
    waits = f"Waits for {', '.join(group.waits_for)}" if group.waits_for else None
    cells += [
        _cell("Window, two steps", _picture(group, step_s), class_="picture"),
        _cell("Reason", group.reason, waits and element("small", waits), class_="reason"),
    ]
    return element("tr", *cells, id=f"g{number}", data_place=group.place)


def _how(group: GroupExplanation) -> Iterator[Markup]:
    """Who sends it, and when; or how it is aggregated."""
    if group.server:
        yield _cell("Server", group.server)
        first = "" if group.priority is None else str(group.priority)
        yield _number("Priority", first, group.priority)
        return
    yield _cell("Pattern", group.pattern)
    yield _number("Depth", str(group.depth), group.depth)


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


def _cell(label: str, *content: str | None, class_: str = "", value: float | None = None) -> Markup:
    """A cell; small screens show its label, and sorting goes by its value."""
    data_v = None if value is None else f"{value:.9g}"
    return element("td", *content, class_=class_ or None, data_v=data_v, data_label=label)


def _number(label: str, text: str, value: float | None) -> Markup:
    return _cell(label, text, class_="number", value=value)


def _picture(group: GroupExplanation, step_s: float) -> Markup:
    """The group's window over two steps, and in it where the group is transferred.

    They are the step in which it gets ready and the next one.
    """
    # Times count from the begin of the step in which the group is transferred.
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
    misses, step_s = explanation.misses, explanation.step_s
    what = words_of(explanation).group
    columns = (what.capitalize(), "Late", "Predicted end", "Measured end", "Size")
    head = [
        element("th", text, scope="col", class_="number" if number else None)
        for number, text in enumerate(columns)
    ]
    numbers = {group.name: number for number, group in enumerate(explanation.groups)}
    rows = []
    for group in misses[:MISSES_SHOWN]:
        name, *values = miss_row(group, step_s)
        link = element("a", name, href=f"#g{numbers[name]}")
        cells = [element("td", value, class_="number") for value in values]
        rows.append(element("tr", element("th", link, scope="row"), *cells))
    done = "transfer goes" if explanation.servers else "group is aggregated"
    caption = f"Times in milliseconds from the begin of the step in which a {done}."
    return joined(
        element(
            "div",
            element(
                "table",
                element("caption", caption),
                element("thead", element("tr", *head)),
                element("tbody", *rows),
                id="misses",
            ),
            class_="scrolls",
        )
    )
