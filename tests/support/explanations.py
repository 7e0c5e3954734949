"""Explanations to show: one that can be read off at once, and one of the size of ResNet-50."""

from __future__ import annotations

import math
from dataclasses import replace

from caramel.core.explanation import Explanation, GroupExplanation, Limit, WhatIf
from caramel.core.timeline import Span, Timeline

# Two workers; "late" is ready first and deferred, "early" is aggregated in the step.
SMALL = Explanation(
    job="tiny",
    workers=2,
    parameters=3,
    parameter_bytes=3 * 2**20,
    planner="search",
    step_s=0.5,
    plain_step_s=0.6,
    computation_s=0.4,
    wire_limit_s=0.25,
    rho=0.625,
    alpha=0.6,
    utilisation=0.8,
    limited_by="computation",
    why="Computation takes 0.400 s of 0.500 s.",
    predicted=Timeline(
        tuple(
            span
            for worker in (0, 1)
            for span in (
                Span("compute", "forward", 0.0, 0.15, worker),
                Span("compute", "backward", 0.15, 0.4, worker),
                Span("send", "late", 0.0, 0.1, worker, 2**20),
                Span("send", "early", 0.35, 0.49, worker, 2**20),
                Span("reduce", "early", 0.49, 0.5, worker),
            )
        )
    ),
    groups=(
        GroupExplanation(
            "late", ("dense/kernel",), 2**20, "ring", 1, True, 0.2, 0.1, 0.0, 0.1, reason="fills"
        ),
        GroupExplanation(
            "early",
            ("conv/kernel", "conv/bias"),
            2 * 2**20,
            "shuffle",
            2,
            False,
            ready_s=0.35,
            needed_s=0.01,
            predicted_begin_s=0.35,
            predicted_end_s=0.5,
            waits_for=("late",),
            reason="ready last, needed first",
        ),
    ),
    limits=(Limit("the last gradient is ready at the end of the backward pass", 0.1),),
    what_if=(WhatIf("twice the bandwidth", 0.45, 1.11, "one group less is deferred"),),
)


def trained(explanation: Explanation, lateness_s: dict[str, float] | None = None) -> Explanation:
    """What it is after training, with groups so much later than predicted; by a rule if None."""

    def late_s(number: int, name: str) -> float:
        if lateness_s is not None:
            return lateness_s.get(name, 0.0)
        return explanation.step_s * (0.02 + 0.03 * math.sin(2.1 * number) + 0.0004 * number)

    groups = tuple(
        replace(
            group,
            measured_begin_s=max(0.0, group.predicted_begin_s + late_s(number, group.name)),
            measured_end_s=max(0.0, group.predicted_end_s + late_s(number, group.name)),
        )
        for number, group in enumerate(explanation.groups)
    )
    late = {group.name: group.late_s or 0.0 for group in groups}
    slower = 1.0 if lateness_s is not None else 1.01
    spans = tuple(
        replace(
            span,
            begin_s=max(0.0, slower * span.begin_s + late.get(span.name, 0.0)),
            end_s=max(0.0, slower * span.end_s + late.get(span.name, 0.0)),
        )
        for span in explanation.predicted.spans
    )
    measured = Timeline(spans)
    return replace(
        explanation, groups=groups, measured=measured, measured_step_s=measured.step_s * 0.99
    )


# ResNet-50 --------------------------------------------------------------------------------------


def resnet_layers() -> list[tuple[str, int, float]]:
    """Name, bytes and relative cost of each layer of ResNet-50 that has weights, in order."""
    layers = [("resnet_v1_50/conv1", 7 * 7 * 3 * 64, 112)]
    depth = 64
    for block, (planes, units, side) in enumerate(
        ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)), start=1
    ):
        for unit in range(1, units + 1):
            scope = f"resnet_v1_50/block{block}/unit_{unit}/bottleneck_v1"
            if unit == 1:
                layers.append((f"{scope}/shortcut", depth * 4 * planes, side))
            layers.append((f"{scope}/conv1", depth * planes, side))
            layers.append((f"{scope}/conv2", 9 * planes * planes, side))
            layers.append((f"{scope}/conv3", planes * 4 * planes, side))
            depth = 4 * planes
    layers.append(("resnet_v1_50/logits", 2048 * 1000, 1))
    return [(name, 4 * weights, weights * side**2 + 2e7) for name, weights, side in layers]


def resnet(
    workers: int = 2, *, computation_s: float = 0.65, bytes_per_s: float = 119.5e6
) -> Explanation:
    """A plan of ResNet-50: 54 groups, of which those that are ready first are deferred."""
    layers = resnet_layers()
    cost = sum(each for _, _, each in layers)
    forward_s = [0.0]  # when the forward pass reaches each layer, if it never waits
    for _, _, each in layers:
        forward_s.append(forward_s[-1] + computation_s / 3 * each / cost)
    size_bytes = sum(size for _, size, _ in layers)
    s_per_byte = 2 * (workers - 1) / workers / bytes_per_s
    groups, delay_s = _groups(layers, forward_s, computation_s, s_per_byte)
    predicted = Timeline(
        tuple(
            span
            for worker in range(workers)
            for span in (
                *_computation(layers, forward_s, computation_s, delay_s, worker),
                *_transfers(groups, s_per_byte * bytes_per_s, worker),
            )
        )
    )
    wire_limit_s = s_per_byte * size_bytes
    return Explanation(
        job="resnet_v1_50, batch 32",
        workers=workers,
        parameters=161,
        parameter_bytes=size_bytes,
        planner="search",
        step_s=predicted.step_s,
        plain_step_s=predicted.step_s * 1.19,
        computation_s=computation_s,
        wire_limit_s=wire_limit_s,
        rho=wire_limit_s / computation_s,
        alpha=(wire_limit_s + computation_s - predicted.step_s) / min(computation_s, wire_limit_s),
        utilisation=computation_s / predicted.step_s,
        limited_by="wire",
        why=(
            f"Each worker must send for {wire_limit_s:.3f} s in a step of {predicted.step_s:.3f} "
            f"s; computation takes {computation_s:.3f} s."
        ),
        predicted=predicted,
        groups=groups,
        limits=(
            Limit("global-norm clipping makes every update wait", 0.21),
            Limit("the wire is idle until the first gradient of the backward pass is ready", 0.048),
            Limit("gates leave the wire idle for a round trip between transfers", 0.0061),
        ),
        what_if=(
            WhatIf("twice the bandwidth", 0.71, 1.3, "computation becomes the bound"),
            WhatIf("batch 64", 1.32, 1.41, "wire hidden entirely"),
            WhatIf("clipping by value in place of the global norm", 0.85, 1.08),
            WhatIf("half the latency", 0.911, 1.0),
        ),
    )


def _groups(layers, forward_s, computation_s, s_per_byte):
    """The groups in order of transfer, and how long the forward pass waits for deferred ones."""
    first = len(layers)
    while sum(size for _, size, _ in layers[first:]) < 0.3 * sum(size for _, size, _ in layers):
        first -= 1
    groups, clock_s, delay_s = [], 0.0, 0.0
    for number in (*range(first, len(layers)), *reversed(range(first))):
        name, size, _ = layers[number]
        deferred = number >= first
        ready_s = computation_s - 2 * forward_s[number]
        begin_s = max(clock_s, 0.0 if deferred else ready_s + delay_s)
        clock_s = begin_s + size * s_per_byte
        if deferred:
            delay_s = max(delay_s, clock_s - forward_s[number])
        groups.append(
            GroupExplanation(
                name=f"group_{len(groups)}",
                members=(f"{name}/weights", f"{name}/BatchNorm/beta", f"{name}/BatchNorm/gamma"),
                size_bytes=size,
                pattern="shuffle" if size > 2**20 else "halving_doubling",
                depth=1 + size // 2**22,
                deferred=deferred,
                ready_s=ready_s,
                needed_s=forward_s[number],
                predicted_begin_s=begin_s,
                predicted_end_s=clock_s,
                waits_for=(groups[-2].name,) if len(groups) > 1 else (),
                reason=(
                    "ready first and read last: fills the wire during the forward pass"
                    if deferred
                    else "ready too late to be deferred without delaying the next step"
                ),
            )
        )
    return tuple(groups), delay_s


def _computation(layers, forward_s, computation_s, delay_s, worker):
    """Forward and backward pass; the last layers wait for the deferred groups."""
    total_s = computation_s / 3
    for number, (name, _, _) in enumerate(layers):
        wait_s = delay_s if number >= len(layers) - 8 else 0.0
        begin_s, end_s = forward_s[number] + wait_s, forward_s[number + 1] + wait_s
        yield Span("compute", f"{name}/Conv2D", begin_s, end_s, worker)
    for number in reversed(range(len(layers))):
        begin_s = delay_s + total_s + 2 * (total_s - forward_s[number + 1])
        end_s = delay_s + total_s + 2 * (total_s - forward_s[number])
        yield Span("compute", f"gradients/{layers[number][0]}/Conv2D_grad", begin_s, end_s, worker)


def _transfers(groups, share, worker):
    """Two stages for each group, with a reduction between them."""
    for group in groups:
        begin_s, end_s = group.predicted_begin_s, group.predicted_end_s
        middle_s = (begin_s + end_s) / 2
        for stage in ((begin_s, middle_s), (middle_s, end_s)):
            for resource in ("send", "receive"):
                size_bytes = round(share * group.size_bytes / 2)
                yield Span(resource, group.name, *stage, worker, size_bytes)
        yield Span("reduce", group.name, middle_s, (middle_s + end_s) / 2, worker)


def many_groups(explanation: Explanation, copies: int) -> Explanation:
    """The same with every group and span so many times, under names of their own, spread out."""
    groups, spans = [], []
    for copy in range(copies):
        for group in explanation.groups:
            waits_for = tuple(f"{name}_{copy}" for name in group.waits_for)
            groups.append(replace(group, name=f"{group.name}_{copy}", waits_for=waits_for))
        for span in explanation.predicted.spans:
            part_s = (span.end_s - span.begin_s) / copies
            begin_s = span.begin_s + copy * part_s
            name = f"{span.name}_{copy}"
            spans.append(replace(span, name=name, begin_s=begin_s, end_s=begin_s + part_s))
    return replace(explanation, groups=tuple(groups), predicted=Timeline(tuple(spans)))
