"""The timeline picture of a page: what every worker does, predicted above measured, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from caramel.core.explanation import Explanation, GroupExplanation
from caramel.core.names import group_of
from caramel.core.timeline import Resource, Span
from caramel.core.util.digits import MINUS
from caramel.core.util.sizes import bytes_text
from caramel.report.markup import Markup, element, joined
from caramel.report.memory_lane import HEIGHT as MEMORY_HEIGHT
from caramel.report.memory_lane import memory_shapes
from caramel.report.units import milliseconds, seconds_text
from caramel.report.words import who_text, words_of

WORKERS_SHOWN = 4
"""Pictures of more workers are folded up."""

# A timeline may have very many spans: what would be drawn narrower than a line is drawn together,
# coarser the more there is, so that a page stays small.
_FINEST = 1 / 4000  # of the time axis: what is narrower is joined with what follows
_COARSER = 1.5
_MOST_BLOCKS: dict[bool, int] = {True: 12_000, False: 4_000}  # for transfers, for all else
_LINK: frozenset[Resource] = frozenset({"send", "receive"})
_MOST_ROWS = 3  # in which transfers that overlap are drawn
_NAMES_SHOWN = 3

_ROW_HEIGHT, _GAP, _AXIS_HEIGHT = 16, 8, 20


@dataclass(frozen=True, slots=True)
class Block:
    """What is drawn as one: a span, or several that are close together.

    Attributes:
        kind: its class in the style sheet.
        names: of the spans, each once.
        begin_s: from the beginning of the timeline.
        end_s: likewise.
        bytes: of its transfers, as far as they are known.
        group: its number in the explanation, if it is a group's transfer or reduction.
    """

    kind: str
    names: tuple[str, ...]
    begin_s: float
    end_s: float
    bytes: int = 0
    group: int | None = None


# A worker's resource in one of the timelines, and what is drawn there, in rows.
Rows = tuple[tuple[Block, ...], ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """What one resource of one worker does in one timeline."""

    worker: int
    resource: Resource
    measured: bool
    rows: Rows


def timeline_picture(explanation: Explanation) -> Markup:
    """What the colours mean, and one picture for each worker, on the same time axis."""
    lanes = lanes_of(explanation)
    idle = range(explanation.workers if explanation.placed else 0)  # they have variables
    workers = sorted({lane.worker for lane in lanes} | set(idle), key=_in_order)
    if not workers:
        return element("p", "There is nothing to show: the timeline is empty.", class_="quiet")
    axis_s = axis_s_of(explanation)
    drawn = [
        _worker(worker, [lane for lane in lanes if lane.worker == worker], axis_s, explanation)
        for worker in workers
    ]
    first, rest = drawn[:WORKERS_SHOWN], drawn[WORKERS_SHOWN:]
    folded = None
    if rest:
        last = who_text(explanation, workers[-1]).partition(" ")[0].lower()
        number = f"the other {len(rest)} {last}s" if len(rest) > 1 else f"the other {last}"
        folded = element("details", element("summary", f"Show {number}"), *rest)
    pictures = element(
        "div",
        element("div", *first, folded, class_="stretch"),
        class_="timeline",
        tabindex=0,
        role="region",
        aria_label="Timeline of the workers; scrolls sideways when stretched",
    )
    return joined(_legend(lanes, explanation), _zoom(), pictures)


def _in_order(place: int) -> tuple[bool, bool, int]:
    """One worker, all servers, the other workers: links of servers are seen beside a worker's."""
    return place > 0, place < 0, abs(place)


def _legend(lanes: Sequence[Lane], explanation: Explanation) -> Markup:
    """What the colours mean, of those that occur."""
    kinds = words_of(explanation).kinds
    found = {block.kind for lane in lanes for row in lane.rows for block in row}
    measured = explanation.measured
    if explanation.predicted.memory:
        found.add("held")
    if measured is not None and measured.memory:
        found.add("held-measured")
    keys = [
        element("li", element("span", class_=f"key {kind}"), text)
        for kind, text in kinds.items()
        if kind in found
    ]
    if any(lane.measured for lane in lanes):
        strong = element("span", class_="key compute")
        pale = element("span", class_="key compute measured")
        keys.append(element("li", strong, "predicted above, ", pale, "measured below, fainter"))
    for kind, title, _ in _borders(explanation):
        keys.append(element("li", element("span", class_=f"key {kind}"), title))
    return element("ul", *keys, class_="legend")


def _zoom() -> Markup:
    """Buttons that the page's script shows."""
    buttons = [
        element("button", text, type="button", data_zoom=factor, aria_label=name)
        for text, factor, name in (
            (MINUS, "0.5", "Shrink the timeline"),
            ("+", "2", "Stretch the timeline"),
            ("Fit", "0", "Fit the timeline to the page"),
        )
    ]
    return element("div", *buttons, class_="controls zoom", hidden=True)


# Blocks -----------------------------------------------------------------------------------------


def lanes_of(explanation: Explanation) -> list[Lane]:
    """What is drawn, by worker, then resource, predicted before measured."""
    lanes = list(_finest_lanes(explanation))
    axis_s = axis_s_of(explanation)
    for of_link, most in _MOST_BLOCKS.items():
        chosen = [lane for lane in lanes if (lane.resource in _LINK) == of_link]
        thinned, narrowest_s = chosen, axis_s * _FINEST
        while thinned := [_thinned(lane, narrowest_s) for lane in chosen]:
            blocks = sum(len(row) for lane in thinned for row in lane.rows)
            if blocks <= most or narrowest_s > axis_s:  # each row is one block
                break
            narrowest_s *= _COARSER
        lanes = [lane for lane in lanes if (lane.resource in _LINK) != of_link] + thinned
    order: list[Resource] = ["compute", "reduce", "send", "receive"]
    return sorted(lanes, key=lambda lane: (lane.worker, order.index(lane.resource), lane.measured))


def _finest_lanes(explanation: Explanation) -> Iterator[Lane]:
    numbers = {group.name: number for number, group in enumerate(explanation.groups)}
    touching_s = axis_s_of(explanation) * _FINEST
    chain = chain_ops(explanation)
    for measured, timeline in enumerate((explanation.predicted, explanation.measured)):
        if timeline is None:
            continue
        # Traced times count from another moment than predicted ones.
        origin_s = timeline.begin_s
        lanes: dict[tuple[int, Resource], list[Block]] = {}
        for span in timeline.spans:
            block = _block(span, origin_s, numbers, explanation.groups, chain)
            lanes.setdefault((span.worker, span.resource), []).append(block)
        for (worker, resource), blocks in lanes.items():
            whole = _chunks_joined(blocks, touching_s)
            yield Lane(worker, resource, bool(measured), _stacked(whole, touching_s))


def chain_ops(explanation: Explanation) -> frozenset[str]:
    """The ops that bound a step which is spread over several devices."""
    chain = explanation.placed.chain if explanation.placed is not None else ()
    return frozenset(name for each in chain if each.kind == "ops" for name in each.names)


def _block(
    span: Span,
    origin_s: float,
    numbers: Mapping[str, int],
    groups: Sequence[GroupExplanation],
    chain: frozenset[str],
) -> Block:
    begin_s, end_s, size_bytes = span.begin_s - origin_s, span.end_s - origin_s, span.bytes or 0
    if span.resource == "compute":
        return Block(
            "chain" if span.name in chain else "compute", (span.name,), begin_s, end_s, size_bytes
        )
    # A span is called after its group, or after an op or a tensor in it.
    names = (span.name, group_of(span.name) or "", span.name.partition("/")[0])
    number = next((numbers[name] for name in names if name in numbers), None)
    name = span.name if number is None else groups[number].name
    kind = "reduce" if span.resource == "reduce" else "other"
    if kind == "other" and number is not None:
        kind = groups[number].place
    return Block(kind, (name,), begin_s, end_s, size_bytes, number)


def _chunks_joined(blocks: Iterable[Block], touching_s: float) -> list[Block]:
    """Blocks of one name are joined where they overlap or touch: the chunks of a transfer."""
    done: list[Block] = []
    last: dict[str, Block] = {}
    for block in sorted(blocks, key=_in_time):
        name = block.names[0]
        before = last.get(name)
        if before is not None and block.begin_s <= before.end_s + touching_s:
            last[name] = _union(before, block)
        else:
            last[name] = block
            if before is not None:
                done.append(before)
    return sorted((*done, *last.values()), key=_in_time)


def _stacked(blocks: Sequence[Block], touching_s: float) -> Rows:
    """Blocks that overlap go into rows below each other; the last row takes what finds no room."""
    rows: list[list[Block]] = []
    for block in blocks:
        free = next((row for row in rows if row[-1].end_s <= block.begin_s + touching_s), None)
        if free is not None:
            free.append(block)
        elif len(rows) < _MOST_ROWS:
            rows.append([block])
        else:
            rows[-1][-1] = _union(rows[-1][-1], block)
    return tuple(tuple(row) for row in rows)


def _thinned(lane: Lane, narrowest_s: float) -> Lane:
    """Blocks that are too narrow to be seen are joined with what follows them closely."""
    rows = []
    for row in lane.rows:
        thin: list[Block] = []
        for block in row:
            before = thin[-1] if thin else None
            if (
                before is not None
                and before.end_s - before.begin_s < narrowest_s
                and block.begin_s - before.end_s < narrowest_s
            ):
                thin[-1] = _union(before, block)
            else:
                thin.append(block)
        rows.append(tuple(thin))
    return replace(lane, rows=tuple(rows))


def _union(first: Block, second: Block) -> Block:
    """Both as one block, of the kind and group of the longer one."""
    longer = max(first, second, key=lambda block: block.end_s - block.begin_s)
    return Block(
        longer.kind,
        tuple(dict.fromkeys((*first.names, *second.names))),
        min(first.begin_s, second.begin_s),
        max(first.end_s, second.end_s),
        first.bytes + second.bytes,
        longer.group,
    )


def _in_time(block: Block) -> tuple[float, float, tuple[str, ...]]:
    return block.begin_s, block.end_s, block.names


# Drawing ----------------------------------------------------------------------------------------


def axis_s_of(explanation: Explanation) -> float:
    """How much time the axis shows."""
    measured_s = explanation.measured.step_s if explanation.measured else 0.0
    return max(explanation.step_s, explanation.predicted.step_s, measured_s)


def _worker(worker: int, lanes: Sequence[Lane], axis_s: float, explanation: Explanation) -> Markup:
    """The picture of one worker, with its name and what its lanes are."""
    labels: list[Markup] = []
    shapes: list[Markup] = []
    top = 0
    for resource in dict.fromkeys(lane.resource for lane in lanes):
        own = [lane for lane in lanes if lane.resource == resource]
        height = len(own) * _ROW_HEIGHT
        labels.append(element("div", resource, style=f"top:{top}px;height:{height}px"))
        for lane in own:
            shapes += _lane_shapes(lane, top, axis_s)
            top += _ROW_HEIGHT
        top += _GAP
    memory = list(memory_shapes(explanation, worker, axis_s, top))
    if memory:
        labels.append(element("div", "memory", style=f"top:{top}px;height:{MEMORY_HEIGHT}px"))
        top += MEMORY_HEIGHT + _GAP
    height = top + _AXIS_HEIGHT - _GAP
    picture = element(
        "svg",
        *grid(axis_s, top - _GAP),
        *shapes,
        *memory,
        *_border_lines(explanation, axis_s, top - _GAP),
        height=height,
        role="img",
        aria_label=_in_words(worker, explanation),
    )
    return element(
        "section",
        element("h3", who_text(explanation, worker)),
        element(
            "div",
            element("div", *labels, class_="lanes", style=f"height:{height}px", aria_hidden="true"),
            picture,
            class_="worker",
        ),
    )


def _lane_shapes(lane: Lane, top: int, axis_s: float) -> Iterator[Markup]:
    height = _ROW_HEIGHT - 1
    row_height = height / max(len(lane.rows), 1)
    for number, row in enumerate(lane.rows):
        for block in row:
            yield element(
                "rect",
                element("title", _label(block, axis_s)),
                x=percent(block.begin_s, axis_s),
                # What is too narrow to be seen or pointed at is drawn wider.
                width=percent(max(block.end_s - block.begin_s, axis_s / 1000), axis_s),
                y=_short(top + number * row_height),
                height=_short(row_height),
                class_=f"{block.kind} measured" if lane.measured else block.kind,
                data_g=block.group,
            )


def _label(block: Block, axis_s: float) -> str:
    begin, end = milliseconds(block.begin_s, axis_s), milliseconds(block.end_s, axis_s)
    size = f", {bytes_text(block.bytes)}" if block.bytes else ""
    took = seconds_text(block.end_s - block.begin_s)
    when = f"{begin} to {end} ms ({took}){size}"
    if len(block.names) == 1:
        return f"{block.names[0]}: {when}"
    shown = ", ".join(block.names[:_NAMES_SHOWN])
    more = ", \u2026" if len(block.names) > _NAMES_SHOWN else ""
    return f"{len(block.names)} together: {when}: {shown}{more}"


def grid(axis_s: float, bottom: int) -> Iterator[Markup]:
    """Lines at round times, with the times below."""
    for number, time_s in enumerate(ticks(axis_s)):
        x = percent(time_s, axis_s)
        yield element("line", x1=x, x2=x, y1=0, y2=bottom, class_="grid")
        # Text at the ends of the axis would be cut off.
        place = "start" if time_s == 0 else "end" if time_s > 0.95 * axis_s else "middle"
        # Narrow screens have room for every second one.
        kind = "tick odd" if number % 2 else "tick"
        yield element(
            "text", _tick_text(time_s), x=x, y=bottom + 15, text_anchor=place, class_=kind
        )


def _borders(explanation: Explanation) -> Iterator[tuple[str, str, float]]:
    """Where steps end: the class of the line, what it is, and when."""
    step_s = explanation.step_s
    yield "step-end", f"predicted end of the step: {seconds_text(step_s)}", step_s
    if explanation.measured is not None:
        traced_s = explanation.measured.step_s
        yield "traced-end", f"end of the traced step: {seconds_text(traced_s)}", traced_s


def _border_lines(explanation: Explanation, axis_s: float, bottom: int) -> Iterator[Markup]:
    for kind, title, end_s in _borders(explanation):
        x = percent(end_s, axis_s)
        yield element("line", element("title", title), x1=x, x2=x, y1=0, y2=bottom, class_=kind)


def ticks(axis_s: float) -> list[float]:
    """Round times from 0 on, five to eleven of them."""
    rough = axis_s / 10
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    # Rounding must not lose the last one.
    return [number * step for number in range(math.floor(axis_s / step * (1 + 1e-9)) + 1)]


def _tick_text(time_s: float) -> str:
    return "0 ms" if time_s == 0 else f"{time_s * 1e3:,.6g}"


def _in_words(worker: int, explanation: Explanation) -> str:
    """What a picture shows, for those who cannot see it."""
    parts = []
    for name, timeline in (
        ("predicted", explanation.predicted),
        ("measured", explanation.measured),
    ):
        if timeline is not None:
            computes = seconds_text(timeline.busy_s(worker, "compute"))
            sends = seconds_text(timeline.busy_s(worker, "send"))
            receives = seconds_text(timeline.busy_s(worker, "receive"))
            parts.append(f"{name}: computes {computes}, sends {sends}, receives {receives}")
    return f"{who_text(explanation, worker)}, {'; '.join(parts)}"


def percent(time_s: float, axis_s: float) -> str:
    """A place on the time axis, or a length along it."""
    # Not in pixels: the picture fills any width, and is stretched without distorting text.
    return f"{_short(time_s / axis_s * 100)}%"


def _short(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
