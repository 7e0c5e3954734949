"""What a step of a model returns, for all workers together.

What it computes from metrics, each worker would compute from what its own examples say. The same
ops compute it here, from what all workers have gathered. All else the workers tell.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import tensorflow as tf

from caramel.capture.functions import LoweredStep
from caramel.core.errors import GraphError


class StepResults:
    """What a step returns.

    Args:
        lowered: the step.
        metrics: the ids of the variables of metrics.

    Attributes:
        told: the tensors that the workers tell.

    Raises:
        GraphError: something is computed from metrics and also from what each worker has of its
            own.
    """

    def __init__(self, lowered: LoweredStep, metrics: Container[int]) -> None:
        self._lowered, self._metrics = lowered, metrics
        self._inner: dict[str, tf.Operation] = {}  # compute something from metrics
        self._reads: dict[str, tf.Variable] = {}  # by the tensors that have their values
        self._flat = tf.nest.flatten(lowered.outputs)
        tensors = [value for value in self._flat if isinstance(value, tf.Tensor)]
        self._computed = [value for value in tensors if self._is_of_metrics(value)]
        computed = set(map(id, self._computed))
        self.told = [value for value in tensors if id(value) not in computed]

    def of_metrics(self) -> list[tf.Tensor]:
        """What is computed from metrics, by ops that are made where this is called."""
        if not self._computed:
            return []
        whole = self._lowered.graph.as_graph_def()
        graph_def = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
        for op in self._inner.values():
            node = graph_def.node.add()
            node.CopyFrom(op.node_def)
            del node.input[len(op.inputs) :]  # what the step waited for
        values = {name: variable.read_value() for name, variable in self._reads.items()}
        read = {text if ":" in text else f"{text}:0" for n in graph_def.node for text in n.input}
        inner = [value.name for value in self._computed if value.op.name in self._inner]
        computed = tf.graph_util.import_graph_def(
            graph_def,
            {name: value for name, value in values.items() if name in read},
            return_elements=inner,
        )
        values |= zip(inner, computed, strict=True)
        return [values[value.name] for value in self._computed]

    def together(self, told: Sequence[Any], computed: Sequence[Any]) -> Any:
        """What the step returns.

        Args:
            told: values of what workers tell.
            computed: those of what is computed from metrics.
        """
        values = dict(zip(map(id, self.told), told, strict=True))
        values |= zip(map(id, self._computed), computed, strict=True)
        flat = [values.get(id(value), value) for value in self._flat]
        return tf.nest.pack_sequence_as(self._lowered.outputs, flat)

    def _is_of_metrics(self, value: tf.Tensor) -> bool:
        """Whether something is computed from metrics; if so, how is kept."""
        inner, reads = dict[str, tf.Operation](), dict[str, tf.Variable]()
        own, waiting, seen = list[tf.Operation](), [value.op], {value.op}
        while waiting:
            op = waiting.pop()
            variable = self._variable_read_by(op)
            if variable is not None:
                reads[op.outputs[0].name] = variable
            elif op.type == "Placeholder" or op.op_def.is_stateful:
                own.append(op)
            else:
                inner[op.name] = op
                new = {tensor.op for tensor in op.inputs} - seen
                seen |= new
                waiting += new
        if all(id(variable) not in self._metrics for variable in reads.values()):
            return False
        if own:
            raise GraphError(
                f"the step returns '{self._key_of(value)}', which is computed from metrics, that "
                f"all workers have together, and from '{own[0].name}', of which each has its own; "
                "return these apart"
            )
        self._inner |= inner
        self._reads |= reads
        return True

    def _variable_read_by(self, op: tf.Operation) -> Any:
        """The variable whose value an op has, if this process knows it when the step is done."""
        lowered = self._lowered
        if op.type == "ReadVariableOp":
            variable = lowered.variables.get(op.inputs[0].op.name)
            return variable if id(variable) in self._metrics else None
        return lowered.scalars.get(op.name)

    def _key_of(self, value: tf.Tensor) -> str:
        outputs = self._lowered.outputs
        named = outputs.items() if isinstance(outputs, Mapping) else ()
        keys = [k for k, part in named if any(each is value for each in tf.nest.flatten(part))]
        return str(keys[0]) if keys else str(value.name)
