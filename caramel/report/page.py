"""An explanation as one HTML file that needs nothing else: no network, no other file.

It works without JavaScript; with it, the table of groups can be sorted and filtered, and the
timeline stretched and pointed at.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from caramel.core.explanation import Explanation
from caramel.core.orders import Orders
from caramel.core.version import __version__
from caramel.report.markup import Markup, element, raw
from caramel.report.page_groups import controls, groups_table, misses_table
from caramel.report.table import MISSES_SHOWN, limited_text, off_text
from caramel.report.timeline_picture import timeline_picture
from caramel.report.units import bytes_text, percent_text, ratio_text, seconds_text, three_digits
from caramel.report.words import hosts_text, words_of

# The page may load nothing, and what is in it goes nowhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def html_page(explanation: Explanation) -> str:
    """The page as text, to be written to a file in UTF-8."""
    body = element(
        "body",
        _header(explanation),
        element("main", *_sections(explanation)),
        element("footer", f"Made by Caramel {__version__}."),
        element("div", id="tip", role="tooltip", hidden=True),
        raw("script", _file("page.js")),
    )
    return f"<!DOCTYPE html>\n{element('html', _head(explanation), body, lang='en')}\n"


def _file(name: str) -> str:
    return files("caramel.report").joinpath(name).read_text(encoding="utf-8")


def _head(explanation: Explanation) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{explanation.job} on {hosts_text(explanation)}: the step explained"),
        # Else browsers ask for /favicon.ico.
        element("link", rel="icon", href="data:,"),
        raw("style", _file("page.css")),
    )


def _header(explanation: Explanation) -> Markup:
    deferred = sum(group.deferred for group in explanation.groups)
    count = len(explanation.groups)
    how = f"in {count:,} groups, {deferred:,} of them deferred. Planner"
    if explanation.servers:
        where = ", ".join(explanation.servers)
        how = f"on {where}; {count - deferred:,} of {count:,} are sent ahead. Order"
    facts = (
        f"{explanation.parameters:,} parameters, {bytes_text(explanation.parameter_bytes)}, {how}: "
        f"{explanation.planner}."
    )
    title = element("h1", f"{explanation.job} on {hosts_text(explanation)}")
    return element("header", title, element("p", facts, class_="quiet"))


def _sections(explanation: Explanation) -> Iterator[Markup]:
    yield element("section", _figures(explanation), class_="figures", aria_label="Key figures")
    yield _section("Step time", _bars(explanation), class_="half")
    yield _section("What limits the step", *_limits(explanation), class_="half")
    misses = explanation.misses
    beside = "half" if explanation.what_if and misses else None
    if explanation.what_if:
        yield _section("What would help", _what_if(explanation), class_=beside)
    if misses:
        title = f"Largest misses: {min(MISSES_SHOWN, len(misses))} of {len(misses)}"
        yield _section(title, misses_table(explanation), class_=beside)
    yield _section("Timeline", timeline_picture(explanation))
    if explanation.groups:
        title = f"{words_of(explanation).group.capitalize()}s"
        yield _section(title, controls(explanation), groups_table(explanation))
    if explanation.orders is not None:
        yield _section("Orders, as measured", _orders(explanation.orders))


def _section(title: str, *content: Markup | None, class_: str | None = None) -> Markup:
    return element("section", element("h2", title), *content, class_=class_)


# Key figures ------------------------------------------------------------------------------------


def _figures(explanation: Explanation) -> Markup:
    bound = explanation.step_s / explanation.bound_s if explanation.bound_s else float("inf")
    gain = explanation.plain_step_s / explanation.step_s
    tiles = [
        _tile("Predicted step", seconds_text(explanation.step_s), f"{ratio_text(bound)} the bound"),
        _tile(
            "Gain by planning",
            ratio_text(gain),
            f"{seconds_text(explanation.plain_step_s)} without",
        ),
        _tile("Computation, C", seconds_text(explanation.computation_s), "busiest worker"),
        _tile("Wire limit", seconds_text(explanation.wire_limit_s), "least time to send it all"),
        _tile("rho", three_digits(explanation.rho), "communication \u00f7 computation"),
        _tile("alpha", three_digits(explanation.alpha), "overlapped, 1 is all"),
        _tile("U", percent_text(explanation.utilisation), "of the step is computation"),
    ]
    if explanation.efficiency is not None:
        efficiency = three_digits(explanation.efficiency)
        tiles.append(_tile("E", efficiency, "ordering efficiency, 1 is a perfect order"))
    if explanation.measured_step_s is not None:
        measured = seconds_text(explanation.measured_step_s)
        tiles.insert(1, _tile("Measured step", measured, off_text(explanation)))
    return element("dl", *tiles)


def _tile(name: str, value: str, note: str) -> Markup:
    return element(
        "div", element("dt", name), element("dd", value), element("dd", note, class_="quiet")
    )


def _orders(orders: Orders) -> Markup:
    """What traced steps tell of the order of parameters."""
    place = "" if orders.out_of_place is None else percent_text(orders.out_of_place)
    tiles = (
        ("Orders of arrival", str(orders.unique), f"of all workers in {orders.steps} traced steps"),
        ("Out of place", place or "no order", "transfers behind one that was to come later"),
        ("E", three_digits(orders.efficiency), "ordering efficiency, 1 is a perfect order"),
        ("U", seconds_text(orders.upper_s), "a worker's step, one thing at a time"),
        ("L", seconds_text(orders.lower_s), "if the busiest resource never waited"),
        ("S", three_digits(orders.speedup), "by how much orders can differ: (U - L) / L"),
        ("alpha", three_digits(orders.alpha), "overlapped, 1 is all"),
        ("rho", three_digits(orders.rho), "communication \u00f7 computation"),
        ("Stragglers", percent_text(orders.stragglers), "the longest wait for other workers"),
    )
    return element("dl", *(_tile(*tile) for tile in tiles), class_="figures", id="orders")


# The step and its bounds ------------------------------------------------------------------------


def _bars(explanation: Explanation) -> Markup:
    rows = [("predicted", "Predicted step", explanation.step_s)]
    if explanation.measured_step_s is not None:
        rows.append(("predicted measured", "Measured step", explanation.measured_step_s))
    rows += [
        ("plain", "Unplanned step, predicted", explanation.plain_step_s),
        ("compute", "Computation", explanation.computation_s),
        ("in-step", "Wire limit", explanation.wire_limit_s),
    ]
    longest_s = max(seconds for _, _, seconds in rows)
    return element(
        "table",
        element("caption", "The step is never shorter than computation or the wire limit."),
        element("thead", _bar_head("What", "Time")),
        element(
            "tbody",
            *(
                _bar(kind, name, seconds_text(value), value / longest_s)
                for kind, name, value in rows
            ),
        ),
        class_="bars",
        id="step",
    )


def _bar_head(first: str, second: str) -> Markup:
    return element(
        "tr",
        element("th", first, scope="col"),
        element("th", second, scope="col", class_="number"),
        element("td"),
        class_="unseen",
    )


def _bar(kind: str, name: str, text: str, share: float) -> Markup:
    bar = element("div", class_=f"bar {kind}", style=f"width:{100 * share:.1f}%")
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", text, class_="number"),
        element("td", bar, class_="track", aria_hidden="true"),
    )


def _limits(explanation: Explanation) -> Iterator[Markup]:
    limit, why = limited_text(explanation)
    yield element("p", element("strong", limit), " ", why, class_="lead")
    if explanation.limits:
        step_s = explanation.step_s
        rows = (
            _bar("cost", limit.sentence, seconds_text(limit.seconds), limit.seconds / step_s)
            for limit in explanation.limits
        )
        yield element(
            "table",
            element("caption", "What makes the step longer, and by how much of it"),
            element("thead", _bar_head("Cause", "Time")),
            element("tbody", *rows),
            class_="bars",
            id="limits",
        )


def _what_if(explanation: Explanation) -> Markup:
    head = element(
        "tr",
        element("th", "Change", scope="col"),
        element("th", "Predicted step", scope="col", class_="number"),
        element("th", "Training faster", scope="col", class_="number"),
        element("th", "Note", scope="col"),
    )
    rows = (
        element(
            "tr",
            element("th", each.change, scope="row"),
            element("td", seconds_text(each.step_s), class_="number"),
            element("td", element("b", ratio_text(each.speedup)), class_="number"),
            element("td", each.note),
        )
        for each in explanation.what_if
    )
    table = element("table", element("thead", head), element("tbody", *rows), id="what-if")
    return element("div", table, class_="scrolls")
