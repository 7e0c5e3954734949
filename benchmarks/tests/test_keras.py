"""The benchmark of Keras models runs, and the graph of v1 is that of the model's layers."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from benchmarks import keras as benchmark
from benchmarks.keras.as_v1 import context_of
from benchmarks.keras.models import LENGTH, WORDS, model_of
from benchmarks.testbed import missing
from caramel import ARModel
from tests.support.commands import quick_benchmark


@pytest.mark.namespaces
@pytest.mark.processes
@pytest.mark.skipif(bool(missing()), reason=f"needs {', '.join(missing())}")
def test_the_quick_benchmark_of_keras_gives_valid_numbers(tmp_path):
    rows = quick_benchmark("keras", tmp_path)["rows"]
    assert [row["what"]["system"] for row in rows] == [benchmark.FIT, benchmark.STEP, benchmark.V1]
    for row in rows:
        assert row["invalid"] is None
        assert len(row["samples_s"]) == benchmark.QUICK.rounds * benchmark.QUICK.steps


def test_the_graph_of_v1_trains_as_the_model():
    model = model_of("transformer")
    x = np.random.default_rng(1).integers(0, WORDS, (4, LENGTH))
    y = np.array([0, 1, 1, 0])
    context = context_of(model, 0.1, 0.9)
    model.compile(keras.optimizers.SGD(0.1, 0.9), keras.losses.SparseCategoricalCrossentropy(True))
    expected = [model.train_on_batch(x, y) for _ in range(3)]
    with ARModel(context, 1).session() as session:
        own = [session.step({"x:0": x, "y:0": y}) for _ in range(3)]
    np.testing.assert_allclose(own, [float(loss) for loss in expected], rtol=1e-4)
