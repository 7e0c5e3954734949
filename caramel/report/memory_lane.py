"""The memory that a device needs over a step, as a lane of its picture: predicted, and measured."""

from __future__ import annotations

from collections.abc import Iterator

from caramel.core.explanation import Explanation
from caramel.core.memory import MemoryCurve
from caramel.core.placed_step import PlacedDevice
from caramel.core.util.sizes import bytes_text
from caramel.report.markup import Markup, element

HEIGHT = 56
_WIDTH, _DEPTH = 10_000, 1_000  # units of the drawing, which is stretched to its place
_NEAR = 2.0  # a limit is shown if it is at most so many times what is needed


def memory_shapes(
    explanation: Explanation, worker: int, axis_s: float, top: int
) -> Iterator[Markup]:
    """What is drawn for one device; nothing if no replica is spread over devices.

    Variables are at the bottom, tensors above them. All devices have the same scale.
    """
    if explanation.placed is None:
        return
    device, most = explanation.placed.devices[worker], _most(explanation)
    shapes = [_area(_curve(explanation.predicted.memory, worker), device, axis_s, most)]
    if explanation.measured is not None and explanation.measured.memory:
        shapes.append(_line(_curve(explanation.measured.memory, worker), device, axis_s, most))
    yield element(
        "svg",
        *shapes,
        x=0,
        y=top,
        width="100%",
        height=HEIGHT,
        viewBox=f"0 0 {_WIDTH} {_DEPTH}",
        preserveAspectRatio="none",
    )
    if device.limit_bytes is not None and device.limit_bytes <= most:
        y = f"{top + HEIGHT * (1 - device.limit_bytes / most):.1f}"
        title = element("title", f"limit: {bytes_text(device.limit_bytes)}")
        yield element("line", title, x1=0, x2="100%", y1=y, y2=y, class_="memory-limit")


def _most(explanation: Explanation) -> float:
    """Bytes at the upper end of the scale."""
    assert explanation.placed is not None, "a replica is spread"
    curves = [*explanation.predicted.memory]
    if explanation.measured is not None:
        curves += explanation.measured.memory
    devices = explanation.placed.devices
    needs = [devices[each.worker].variable_bytes + each.peak_bytes for each in curves]
    most = max(needs, default=0.0)
    limits = [device.limit_bytes for device in devices if device.limit_bytes is not None]
    return max([most, *(limit for limit in limits if limit <= _NEAR * most)]) or 1.0


def _curve(curves: tuple[MemoryCurve, ...], worker: int) -> MemoryCurve:
    return next((each for each in curves if each.worker == worker), MemoryCurve(worker, (), ()))


def _area(curve: MemoryCurve, device: PlacedDevice, axis_s: float, most: float) -> Markup:
    title = (
        f"predicted: {bytes_text(device.variable_bytes)} of variables, and at most "
        f"{bytes_text(round(curve.peak_bytes))} of tensors"
    )
    outline = f"M0 {_DEPTH} {_steps(curve, device, axis_s, most)}V{_DEPTH}Z"
    return element("path", element("title", title), d=outline, class_="held")


def _line(curve: MemoryCurve, device: PlacedDevice, axis_s: float, most: float) -> Markup:
    title = f"measured: at most {bytes_text(round(curve.peak_bytes))} of tensors"
    outline = f"M0 {_y(device.variable_bytes, most)} {_steps(curve, device, axis_s, most)}"
    return element("path", element("title", title), d=outline, class_="held-measured")


def _steps(curve: MemoryCurve, device: PlacedDevice, axis_s: float, most: float) -> str:
    """The way along the curve, above the variables, to the end of the axis."""
    base = device.variable_bytes
    points = zip(curve.times_s, curve.bytes, strict=True)
    ways = [f"H{_WIDTH * time_s / axis_s:.0f}V{_y(base + size, most)}" for time_s, size in points]
    return f"V{_y(base, most)}{''.join(ways)}H{_WIDTH}"


def _y(size: float, most: float) -> int:
    return round(_DEPTH * (1 - size / most))
