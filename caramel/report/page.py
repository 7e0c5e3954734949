"""An explanation as one HTML file that needs nothing else: no network, no other file.

It works without JavaScript; with it, the table of groups can be sorted and filtered, and the
timeline stretched and pointed at.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from caramel.core.explanation import Explanation
from caramel.core.orders import Orders
from caramel.core.util.digits import three_digits
from caramel.core.util.sizes import bytes_text
from caramel.core.version import __version__
from caramel.report.markup import Markup, element, raw
from caramel.report.page_groups import controls, groups_table, misses_table
from caramel.report.page_parts import bars, plain_table, section, tile
from caramel.report.page_placed import placed_bars, placed_sections, placed_tiles
from caramel.report.table import MISSES_SHOWN, limited_text, off_text, parameters_text
from caramel.report.table_placed import crossing_text
from caramel.report.timeline_picture import timeline_picture
from caramel.report.units import (
    percent_text,
    ratio_text,
    seconds_text,
    seconds_texts,
)
from caramel.report.words import (
    alpha_text,
    batch_text,
    efficiency_text,
    hosts_text,
    rho_text,
    utilisation_text,
    words_of,
)

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
    facts = (
        f"{parameters_text(explanation)}, {bytes_text(explanation.parameter_bytes)}, "
        f"{_how(explanation)}: {explanation.planner}."
    )
    batch = batch_text(explanation)
    about = [each for each in (batch, explanation.made and f"made {explanation.made}") if each]
    title = element("h1", f"{explanation.job} on {hosts_text(explanation)}")
    lines = [facts, f"{_capital(', '.join(about))}." if about else ""]
    told = [element("p", line, class_="quiet") for line in lines if line]
    if explanation.placed is None:
        told.append(element("p", element("a", _WORDS, href="#words")))
    return element("header", title, *told)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _how(explanation: Explanation) -> str:
    """How what is planned is spread, and what is said of who planned it."""
    deferred = sum(group.deferred for group in explanation.groups)
    count = len(explanation.groups)
    if explanation.placed is not None:
        return f"{crossing_text(explanation.placed)}. Placed by"
    if explanation.servers:
        where = ", ".join(explanation.servers)
        return f"on {where}; {count - deferred:,} of {count:,} are sent ahead. Order"
    return f"in {count:,} groups, {deferred:,} of them deferred. Planner"


def _sections(explanation: Explanation) -> Iterator[Markup]:
    yield element("section", _figures(explanation), class_="figures", aria_label="Key figures")
    yield section("Step time", _bars(explanation), class_="half")
    yield section("What limits the step", *_limits(explanation), class_="half")
    misses = explanation.misses
    beside = "half" if explanation.what_if and misses else None
    if explanation.what_if:
        yield section("What would help", _what_if(explanation), class_=beside)
    if misses:
        title = f"Largest misses: {min(MISSES_SHOWN, len(misses))} of {len(misses)}"
        yield section(title, misses_table(explanation), class_=beside)
    if explanation.placed is None:
        yield _words(explanation)
    yield section("Timeline", timeline_picture(explanation))
    if explanation.groups:
        title = f"{words_of(explanation).group.capitalize()}s"
        yield section(title, controls(explanation), groups_table(explanation))
    if explanation.placed is not None:
        yield from placed_sections(explanation, explanation.placed)
    if explanation.orders is not None:
        yield section("Orders, as measured", _orders(explanation.orders))


# Key figures ------------------------------------------------------------------------------------


def _figures(explanation: Explanation) -> Markup:
    placed = explanation.placed
    tiles = _tiles(explanation) if placed is None else placed_tiles(explanation, placed)
    if explanation.measured_step_s is not None:
        measured = seconds_text(explanation.measured_step_s)
        tiles.insert(0, tile("Measured step", measured, off_text(explanation)))
    return element("dl", *tiles)


def _tiles(explanation: Explanation) -> list[Markup]:
    bound = explanation.step_s / explanation.bound_s if explanation.bound_s else float("inf")
    gain = explanation.plain_step_s / explanation.step_s
    tiles = [
        tile(
            "Predicted step",
            seconds_text(explanation.step_s),
            f"{ratio_text(bound)} the longer of computation and wire limit",
        ),
        tile(
            "Gain by planning",
            ratio_text(gain),
            f"{seconds_text(explanation.plain_step_s)} without",
        ),
        tile("Computation, C", seconds_text(explanation.computation_s), "of one worker's part"),
        tile("Wire limit", seconds_text(explanation.wire_limit_s), "least time to send it all"),
        tile("rho", three_digits(explanation.rho), rho_text(explanation)),
    ]
    if explanation.shown_alpha is not None:
        alpha = three_digits(explanation.shown_alpha)
        tiles.append(tile("alpha, overlap", alpha, alpha_text(explanation)))
    busy = percent_text(explanation.utilisation)
    tiles.append(tile("U, busy", busy, utilisation_text(explanation)))
    if explanation.speedup is not None and explanation.workers > 1:
        note = f"the examples a second of one worker; {explanation.workers} at most"
        tiles.insert(1, tile("Speed-up", ratio_text(explanation.speedup), note))
    if explanation.efficiency is not None:
        efficiency = three_digits(explanation.efficiency)
        tiles.append(tile("E, order", efficiency, efficiency_text(explanation.efficiency)))
    return tiles


def _orders(orders: Orders) -> Markup:
    """What traced steps tell of the order of parameters."""
    place = "" if orders.out_of_place is None else percent_text(orders.out_of_place)
    tiles = (
        ("Orders of arrival", str(orders.unique), f"of all workers in {orders.steps} traced steps"),
        ("Out of place", place or "no order", "transfers behind one that was to come later"),
        ("Order, E", three_digits(orders.efficiency), efficiency_text(orders.efficiency)),
        ("At worst, U", seconds_text(orders.upper_s), "a worker's step, one thing at a time"),
        ("At best, L", seconds_text(orders.lower_s), "if the busiest resource never waited"),
        ("Spread, S", three_digits(orders.speedup), "by how much orders can differ: (U - L) / L"),
        ("alpha", three_digits(orders.alpha), "overlapped, 1 is all"),
        ("rho", three_digits(orders.rho), "communication \u00f7 computation"),
        ("Stragglers", percent_text(orders.stragglers), "the longest wait for other workers"),
    )
    return element("dl", *(tile(*each) for each in tiles), class_="figures", id="orders")


_WORDS = "What these words mean"
_RHO = (
    "the least time on the wire, divided by the computation. Below 1 a good plan can hide all "
    "transfers behind computation; above 1 workers wait for the network, whatever the plan"
)
_ALPHA = (
    "how much of the shorter of both, computation and transfers, goes on while the other one does: "
    "1 is all, 0 is one after the other"
)
_GLOSSARY = (
    ("Computation, C", "what a worker computes in a step, without waiting for anybody"),
    ("Wire limit", "how long the busiest link sends what it must, at its full rate"),
    ("rho", _RHO),
    ("alpha", _ALPHA),
    ("U", "the part of the step in which a worker computes"),
    ("Group", "gradients that are sent together"),
    (
        "Deferred",
        "sent in the next step, while its forward pass runs, which does not need them yet",
    ),
)


def _words(explanation: Explanation) -> Markup:
    """What the figures mean, for who asks."""
    # With parameter servers transfers are of variables, and none is deferred.
    known = _GLOSSARY if not explanation.servers else _GLOSSARY[:-2]
    rows = (
        part
        for word, meaning in known
        for part in (element("dt", word), element("dd", f"{meaning}."))
    )
    details = element("details", element("summary", _WORDS), element("dl", *rows, id="words"))
    return element("section", details, class_="words")


# The step and its bounds ------------------------------------------------------------------------


def _bars(explanation: Explanation) -> Markup:
    rows = [("predicted", "Predicted step", explanation.step_s)]
    if explanation.measured_step_s is not None:
        rows.append(("predicted measured", "Measured step", explanation.measured_step_s))
    if explanation.placed is None:
        caption = "The step is never shorter than computation or the wire limit."
        rows += [
            ("plain", "Unplanned step, predicted", explanation.plain_step_s),
            ("compute", "Computation", explanation.computation_s),
            ("in-step", "Wire limit", explanation.wire_limit_s),
        ]
    else:
        caption = "No placement is faster than the longest path, or than all work on all devices."
        rows += placed_bars(explanation, explanation.placed)
    return bars("step", caption, ("What", "Time"), rows)


def _limits(explanation: Explanation) -> Iterator[Markup]:
    limit, why = limited_text(explanation)
    yield element("p", element("strong", limit), " ", why, class_="lead")
    if explanation.limits:
        rows = [("cost", limit.sentence, limit.seconds) for limit in explanation.limits]
        caption = "What makes the step longer, and by how much of it"
        yield bars("limits", caption, ("Cause", "Time"), rows, explanation.step_s)


def _what_if(explanation: Explanation) -> Markup:
    steps = seconds_texts([each.step_s for each in explanation.what_if])
    rows = [
        (each.change, step, element("b", ratio_text(each.speedup)), each.note)
        for each, step in zip(explanation.what_if, steps, strict=True)
    ]
    columns = ("Change", "Predicted step|", "Training faster|", "Note")
    return plain_table("what-if", None, columns, rows)
