"""TensorFlow with oneDNN and without: what is said of processors, and that both train the same."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from caramel.cluster.onednn_check import PROCESSOR, SETTING, advice
from tests.support.commands import ROOT


@pytest.fixture
def processor(tmp_path):
    """A processor with these features, as a file."""

    def with_features(line):
        (tmp_path / "processor").write_text(f"processor\t: 0\n{line}\nbugs\t\t: none\n")
        return tmp_path / "processor"

    return with_features


def test_a_processor_without_instructions_for_networks_gets_a_hint(processor):
    said = advice({}, processor("flags\t\t: fpu avx avx2 avx512f fma"))
    assert f"{SETTING}=1" in said
    assert f"{SETTING}=0" in said


@pytest.mark.parametrize("value", ["0", "1"])
def test_nothing_is_said_to_those_who_have_chosen(processor, value):
    assert advice({SETTING: value}, processor("flags\t\t: avx2")) is None


@pytest.mark.parametrize(
    "line",
    [
        "flags\t\t: avx avx2 avx512f avx512_vnni",
        "flags\t\t: avx avx2 avx_vnni",
        "flags\t\t: sse sse2",
        "Features\t: fp asimd",
    ],
)
def test_nothing_is_said_where_tensorflow_chooses_well_or_nothing_is_known(processor, line):
    assert advice({}, processor(line)) is None


def test_nothing_is_said_where_the_processor_cannot_be_read(tmp_path):
    assert advice({}, tmp_path / "none") is None


# What is told is told by the library, which takes an eighth of the time of the whole import.
LOADS = """
from caramel.native import library
library.functions(library._STATUS)
"""


@pytest.mark.processes
@pytest.mark.skipif(
    not PROCESSOR.exists() or "avx2" not in PROCESSOR.read_text(), reason="needs Linux and AVX2"
)
def test_tensorflow_says_the_same_of_this_machine():
    environment = {key: value for key, value in os.environ.items() if key != SETTING}
    result = subprocess.run(
        [sys.executable, "-c", LOADS],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "0", "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    used = "oneDNN custom operations are on" in result.stderr
    assert used == (advice({}) is None)


# Training ---------------------------------------------------------------------------------------

TRAINS = """
import caramel
from caramel.core.time_facts import ActivationOrder
from tests.support import convolving, networks
from tests.support.deferring import deferred

def order_of(layer):
    own = [f"{kind}{n}" for n in (2, 1, 0) for kind in layer]
    def order() -> ActivationOrder:
        return ActivationOrder(("out", *own, "w"))
    return order

def compare(job, workers, analyzers):
    planned = caramel.ARModel(
        job.context(), workers=workers, planner="paper", analyzers=analyzers
    )
    assert planned.plan.decision.edges
    plan = deferred(planned, "some")
    model = caramel.ARModel(job.context(), workers=workers, plan=plan, check=True)
    with model.session(trials=None, step_timeout_s=60) as session:
        initial = session.variables()
        losses = [session.step(job.feed) for _ in range(4)]
        values = session.variables()
    expected = networks.run_on_one_device(job, initial, steps=4)
    error = networks.relative_error(values, expected.values)
    assert error < 1e-4, (workers, error)

for workers in (2, 3):
    facts = networks.slow_facts(workers)
    compare(convolving.job(convolving.usual), workers, facts)
    for layer in ("bw", "wb"):
        compare(convolving.job(), workers, [*facts, order_of(layer)])
print("trained")
"""


@pytest.mark.processes
@pytest.mark.parametrize("setting", ["0", pytest.param("1", marks=pytest.mark.onednn)])
def test_convolutions_train_as_on_one_device_with_onednn_and_without(setting):
    if os.environ.get(SETTING) == setting:  # as this process has imported TensorFlow
        exec(TRAINS, {})
        return
    result = subprocess.run(
        [sys.executable, "-c", TRAINS],
        env={**os.environ, SETTING: setting, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert result.stdout == "trained\n", result.stderr
