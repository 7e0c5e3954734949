"""The job of the pictures in these pages: the network of ``examples/digits.py``, wider.

caramel profile --out profile.json --module digits_job:make_context --workers ...
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

import caramel

_EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"
CHANNELS = (64, 128, 256)
"""Four times those of the example, so that there is something to send."""

BATCH = 64
"""Images of one worker in a step."""


def make_context() -> tuple[caramel.Context, dict[Any, Any]]:
    """The job, and what one worker is fed."""
    spec = importlib.util.spec_from_file_location("digits", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = example
    spec.loader.exec_module(example)
    example.CHANNELS = CHANNELS  # type: ignore[attr-defined]
    with tf.Graph().as_default() as graph:
        network = example.build_network(total_steps=300, seed=0)
    data, _ = example.load_data()
    feeds = {
        network.images: data.images[:BATCH],
        network.labels: data.labels[:BATCH],
        network.is_training: True,
    }
    context = caramel.Context(graph, train_op=network.train_op, loss=network.loss, name="digits")
    return context, feeds
