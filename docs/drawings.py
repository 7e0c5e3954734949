"""Draws the pictures of these pages that are no measurements: ``python docs/drawings.py``.

Each is a small SVG file in ``docs/pictures``, with a white background, so that it can be read in
light and dark pages alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
FORWARD, BACKWARD, UPDATE = "#9db7d5", "#5b7fa6", "#35516e"
SENT, DEFERRED, IDLE = "#e08e3c", "#9a4b8f", "#eeeeee"
INK = "#222222"


@dataclass
class Drawing:
    """Shapes on a canvas, in pixels."""

    width: int
    height: int
    shapes: list[str] = field(default_factory=list)

    def box(
        self, x: float, y: float, width: float, height: float, colour: str, text: str = ""
    ) -> None:
        """A filled box, with a text in its middle."""
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" '
            f'fill="{colour}" stroke="#ffffff"/>'
        )
        if text:
            dark = colour in (BACKWARD, UPDATE, DEFERRED)
            ink = "#ffffff" if dark else INK
            self.text(x + width / 2, y + height / 2 + 4, text, ink=ink, anchor="middle")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        ink: str = INK,
        anchor: str = "start",
        size: int = 12,
    ) -> None:
        """A line of text, from its left end on, or around its middle."""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" fill="{ink}" font-size="{size}" '
            f'text-anchor="{anchor}">{escape(text)}</text>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, colour: str = INK) -> None:
        """A line with a head at its end."""
        self.shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" '
            'stroke-width="1.5" marker-end="url(#head)"/>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A thin dashed line."""
        self.shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="#888888" '
            'stroke-dasharray="4 3"/>'
        )

    def write(self, name: str) -> None:
        """Write it to the folder of pictures."""
        head = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L10 5L0 10z" fill="{INK}"/>'
            "</marker></defs>"
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="sans-serif">',
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>',
            head,
            *self.shapes,
            "</svg>",
        ]
        (PICTURES / f"{name}.svg").write_text("\n".join(lines) + "\n")


Bar = tuple[float, float, str, str]  # begin, length, colour, text


def lanes(
    name: str, rows: Sequence[tuple[str, Iterable[Bar]]], ends: Sequence[tuple[float, str]]
) -> None:
    """Rows of bars over one axis of time; dashed lines where steps end."""
    left, unit, high = 92, 50, 30
    drawing = Drawing(750, 34 + len(rows) * (high + 8) + 26)
    for number, (title, bars) in enumerate(rows):
        y = 12 + number * (high + 8)
        drawing.text(8, y + 19, title)
        drawing.box(left, y, 12 * unit, high, IDLE)
        for begin, length, colour, text in bars:
            drawing.box(left + begin * unit, y, length * unit, high, colour, text)
    bottom = 12 + len(rows) * (high + 8)
    for at, text in ends:
        drawing.line(left + at * unit, 6, left + at * unit, bottom + 4)
        drawing.text(left + at * unit, bottom + 20, text, anchor="middle")
    drawing.write(name)


def overlap() -> None:
    """What overlaps with what: without a plan, with deferred groups, with factors."""
    forward = lambda at: (at, 1.5, FORWARD, "forward")  # noqa: E731
    backward = lambda at: (at, 2.5, BACKWARD, "backward")  # noqa: E731
    lanes(
        "overlap-plain",
        [
            ("processor", [forward(0), backward(1.5), forward(6), backward(7.5)]),
            ("network", [(2, 4, SENT, "gradients"), (8, 4, SENT, "gradients")]),
        ],
        [(6, "end of step 1"), (12, "end of step 2")],
    )
    lanes(
        "overlap-deferred",
        [
            ("processor", [forward(0.1), backward(1.6), forward(4.3), backward(5.8)]),
            (
                "network",
                [
                    (0, 1.5, DEFERRED, "of step 0"),
                    (2.1, 2.1, SENT, "gradients 1"),
                    (4.2, 1.5, DEFERRED, "of step 1"),
                    (6.3, 2.1, SENT, "gradients 2"),
                    (8.4, 1.5, DEFERRED, "of step 2"),
                ],
            ),
        ],
        [(4.2, "end of step 1"), (8.4, "end of step 2")],
    )
    lanes(
        "overlap-factors",
        [
            (
                "processor",
                [
                    forward(0),
                    backward(1.5),
                    (4, 0.5, UPDATE, "x"),
                    forward(4.5),
                    backward(6),
                    (8.5, 0.5, UPDATE, "x"),
                ],
            ),
            ("network", [(2, 2.2, SENT, "factors"), (6.5, 2.2, SENT, "factors")]),
        ],
        [(4.5, "end of step 1"), (9, "end of step 2")],
    )


def window() -> None:
    """The transfer window of a group in its step and of a deferred one."""
    lanes(
        "window",
        [
            (
                "processor",
                [
                    (0, 2, FORWARD, "forward"),
                    (2, 4, BACKWARD, "backward"),
                    (6, 2, FORWARD, "forward"),
                    (8, 4, BACKWARD, "backward"),
                ],
            ),
            ("first layer", [(5.8, 0.3, SENT, "")]),
            ("last layer", [(2.4, 5.2, DEFERRED, "window of the last layer's gradient")]),
        ],
        [(6, "end of the step")],
    )


def patterns() -> None:
    """Who sends what to whom, for four workers."""
    drawing = Drawing(720, 210)
    centres = {"shuffle": 90, "ring": 270, "halving_doubling": 450, "exchange": 630}
    arrows = {
        "shuffle": [(0, 1), (2, 1), (3, 1)],
        "ring": [(0, 1), (1, 3), (3, 2), (2, 0)],
        "halving_doubling": [(0, 1), (1, 0), (2, 3), (3, 2)],
        "exchange": [(a, b) for a in range(4) for b in range(4) if a != b],
    }
    notes = {
        "shuffle": ("each part is added up", "by one worker"),
        "ring": ("each sends to its", "neighbour, round by round"),
        "halving_doubling": ("pairs swap halves, then", "other pairs"),
        "exchange": ("everyone sends all", "to everyone"),
    }
    for name, centre in centres.items():
        spots = [(centre - 45, 50), (centre + 45, 50), (centre - 45, 130), (centre + 45, 130)]
        drawing.text(centre, 20, name, anchor="middle", size=13)
        for a, b in arrows[name]:
            (x1, y1), (x2, y2) = spots[a], spots[b]
            length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
            dx, dy = (x2 - x1) / length, (y2 - y1) / length
            side = 3 if (b, a) in arrows[name] else 0
            drawing.arrow(
                *(x1 + 17 * dx - side * dy, y1 + 17 * dy + side * dx),
                *(x2 - 17 * dx - side * dy, y2 - 17 * dy + side * dx),
            )
        for number, (x, y) in enumerate(spots):
            drawing.box(x - 14, y - 14, 28, 28, FORWARD, str(number))
        for number, note in enumerate(notes[name]):
            drawing.text(centre, 172 + 16 * number, note, anchor="middle", size=11)
    drawing.write("patterns")


def factors() -> None:
    """What is sent with factors, and what without."""
    drawing = Drawing(720, 190)
    drawing.text(20, 24, "worker 0", size=13)
    drawing.text(400, 24, "worker 1", size=13)
    for x in (20, 400):
        drawing.box(x, 40, 30, 110, FORWARD)
        drawing.text(x + 15, 168, "input", anchor="middle", size=11)
        drawing.text(x + 36, 100, "x", size=14)
        drawing.box(x + 52, 80, 110, 30, BACKWARD)
        drawing.text(x + 107, 128, "output's gradient", anchor="middle", size=11)
    drawing.arrow(200, 95, 380, 95)
    drawing.text(290, 86, "factors: little to send", anchor="middle")
    drawing.text(572, 100, "=", size=14)
    drawing.box(592, 40, 110, 110, SENT, "gradient")
    drawing.text(647, 168, "large", anchor="middle", size=11)
    drawing.write("factors")


def flow() -> None:
    """From the user's graph to a running session."""
    drawing = Drawing(720, 150)
    stages = [
        ("tf.Graph", "yours"),
        ("Context", "captured"),
        ("facts", "by analyzers"),
        ("Plan", "plain data"),
        ("GraphDef", "by modifiers"),
        ("Session", "on a cluster"),
    ]
    for number, (title, note) in enumerate(stages):
        x = 10 + number * 120
        drawing.box(x, 30, 96, 40, FORWARD if number else IDLE, title)
        drawing.text(x + 48, 88, note, anchor="middle", size=11)
        if number:
            drawing.arrow(x - 23, 50, x - 2, 50)
    drawing.arrow(658, 100, 658, 126)
    drawing.shapes.append(
        f'<path d="M658 126H298V100" fill="none" stroke="{INK}" stroke-width="1.5" '
        'marker-end="url(#head)"/>'
    )
    drawing.text(478, 142, "traced steps", anchor="middle", size=11)
    drawing.write("flow")


def main() -> None:
    """Draw all of them."""
    PICTURES.mkdir(exist_ok=True)
    for draw in (overlap, window, patterns, factors, flow):
        draw()


if __name__ == "__main__":
    main()
