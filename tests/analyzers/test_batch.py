"""How many examples a worker's step has, from literal graphs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from caramel.analyzers.examples.batch import batch_of
from caramel.core.facts import WorkerInputs
from caramel.core.graph import Op, OpGraph, TensorSpec
from caramel.core.names import TensorRef


def batch(x, y, sizes):
    """A loss that is computed from two placeholders."""
    ops = [
        Op("x", "Placeholder", "", (), (), (x,)),
        Op("y", "Placeholder", "", (), (), (y,)),
        Op("rate", "Placeholder", "", (), (), (TensorSpec("float32", ()),)),
        Op("loss", "Sum", "", tuple(map(TensorRef, ("x", "y", "rate"))), ()),
        Op("other", "Placeholder", "", (), (), (TensorSpec("float32", (7,)),)),  # of no loss
    ]
    graph = OpGraph({op.name: op for op in ops})
    job = SimpleNamespace(loss=TensorRef("loss"))
    inputs = WorkerInputs(dict.fromkeys(("x", "y", "rate", "other"), "fed"))
    return batch_of(graph, job, inputs, sizes)


OPEN, LABELS = TensorSpec("float32", (None, 8)), TensorSpec("int64", (None,))


@pytest.mark.parametrize(
    ("x", "y", "sizes", "examples"),
    [
        (OPEN, LABELS, {}, None),
        (OPEN, LABELS, {"x:0": 32 * 8 * 4, "y:0": 32 * 8}, 32),
        (OPEN, LABELS, {"x:0": 32 * 8 * 4, "y:0": 16 * 8}, None),
        (OPEN, TensorSpec("string", (None,)), {"x:0": 32 * 8 * 4}, 32),
        (TensorSpec("float32", (None, None)), LABELS, {"x:0": 64, "y:0": 32 * 8}, 32),
        (TensorSpec("float32", (32, 8)), TensorSpec("int64", (32,)), {}, 32),
        (TensorSpec("float32", (32, 8)), LABELS, {}, None),
        (TensorSpec("float32", (32, 8)), TensorSpec("int64", (4,)), {}, None),
    ],
)
def test_the_examples_of_a_step(x, y, sizes, examples):
    assert batch(x, y, sizes) == examples
