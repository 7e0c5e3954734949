"""Lets what crosses between the devices of one replica pass an op on each side.

Ops have their devices already (`replicate`). TensorFlow would put a send and a receive on each edge
that crosses by itself. What is between is what can be named, counted (`traffic_audit`), traced and
made to wait.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from caramel.core.dtypes import STAYS
from caramel.core.errors import InvariantError, PlanError
from caramel.core.graph import TensorSpec
from caramel.core.graph_reader import read_outputs
from caramel.core.names import (
    TensorRef,
    control_string,
    in_replica,
    input_string,
    parse_input,
    received,
    sent,
    source_op,
    without_prefix,
)
from caramel.core.placement import Placement
from caramel.core.plan import Plan
from caramel.modifiers.graph_writer import GraphWriter, copy_of


def place(graph_def: Any, plan: Plan) -> Any:
    """Add an op where each tensor leaves its device, and one where it arrives.

    A tensor goes to each other device once. So do control edges, over which nothing travels.

    Raises:
        PlanError: what has a resource or a variant is on another device than what reads it, or a
            gate names what is not sent.
    """
    if plan.placement is None:
        return graph_def
    placed = copy_of(graph_def)
    sends = _Sends(placed, plan.placement)
    own = list(placed.node)
    for node in own:
        sends.let_cross(node)
    sends.gate()
    for node in own:
        node.attr.pop("_output_shapes", None)  # which only what sends needs
    return placed


class _Sends:
    """Adds what sends and receives to a graph."""

    def __init__(self, graph_def: Any, placement: Placement) -> None:
        self._writer, self._placement = GraphWriter(graph_def), placement
        self._nodes = {node.name: node for node in graph_def.node}
        self._definitions = tf.Graph()
        self._functions = {f.signature.name: f.signature for f in graph_def.library.function}
        self._made: dict[str, Any] = {}  # what sends, by its name
        known = placement.number_of
        # What Caramel has added is where it was put: with an op of the user's, or at the client.
        self._number_on = {
            node.device: known[name]
            for node in graph_def.node
            if (name := without_prefix(node.name)) in known
        }
        for number, device in enumerate(placement.devices):
            self._number_on.setdefault(device, number)

    def let_cross(self, node: Any) -> None:
        """Let a node read what comes from other devices where it has arrived."""
        target = self._number(node)
        for position, text in enumerate(node.input):
            source = self._nodes[source_op(text)]
            if self._number(source) != target:
                tensor = parse_input(text)
                if tensor is None:
                    node.input[position] = control_string(self._tell(source, target))
                else:
                    node.input[position] = input_string(self._send(source, tensor, target, node))

    def gate(self) -> None:
        """Let tensors be sent in order."""
        for gate in self._placement.gates:
            names = [
                kind(in_replica(0, tensor.op), tensor.index, gate.device)
                for kind, tensor in ((sent, gate.tensor), (received, gate.after))
            ]
            for name, tensor in zip(names, (gate.tensor, gate.after), strict=True):
                if name not in self._made:
                    raise PlanError(
                        f"a gate of the placement is about '{tensor}', which is not sent to "
                        f"'{self._placement.devices[gate.device]}'"
                    )
            self._made[names[0]].input.append(control_string(names[1]))

    def _number(self, node: Any) -> int:
        own = self._placement.number_of.get(without_prefix(node.name))
        if own is not None:
            return own
        if node.device not in self._number_on:
            raise InvariantError(f"'{node.name}' is on '{node.device}', where nothing is placed")
        return self._number_on[node.device]

    def _send(self, source: Any, tensor: TensorRef, target: int, reader: Any) -> TensorRef:
        """Where a tensor arrives."""
        name = received(tensor.op, tensor.index, target)
        if name not in self._made:
            spec = self._spec(source, tensor)
            if spec.dtype in STAYS:
                raise PlanError(
                    f"'{without_prefix(reader.name)}' is on another device than "
                    f"'{without_prefix(source.name)}', whose {spec.dtype} it reads, and which "
                    "cannot leave its device: put both on one"
                )
            leaving = sent(tensor.op, tensor.index, target)
            self._identity(leaving, tensor, spec, source.device)
            self._identity(name, TensorRef(leaving), spec, self._placement.devices[target])
        return TensorRef(name)

    def _identity(self, name: str, tensor: TensorRef, spec: TensorSpec, device: str) -> None:
        self._writer.add(name, "Identity", [tensor], device=device, outputs=[spec], T=spec.dtype)
        self._made[name] = self._writer.last

    def _tell(self, source: Any, target: int) -> str:
        """What runs on the other device when an op has run."""
        name = received(source.name, None, target)
        if name not in self._made:
            leaving = sent(source.name, None, target)
            device = self._placement.devices[target]
            self._writer.add(leaving, "NoOp", device=source.device, controls=[source.name])
            self._writer.add(name, "NoOp", device=device, controls=[leaving])
            self._made[name] = self._writer.last
        return name

    def _spec(self, source: Any, tensor: TensorRef) -> TensorSpec:
        known = self._functions.get(source.op)
        definition = self._definitions.op_def_for_type(source.op) if known is None else known
        return read_outputs(source, definition)[tensor.index]
