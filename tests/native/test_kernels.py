"""Which ops have no kernel for an accelerator: told, and run on the processor of their worker."""

from __future__ import annotations

import os
import re
import sys

import pytest

from caramel.native.kernels import has_kernel
from tests.support import forking
from tests.support.commands import ROOT
from tests.support.networks import tf

PROGRAM = """
import logging
import numpy as np
from tests.support.networks import network, perceptron, run_on_one_device, tf
import caramel

def model(x):
    lengths = tf.strings.length(tf.strings.as_string(x))  # of which processors alone have kernels
    return perceptron(x + tf.cast(lengths, x.dtype) / 10)

logging.basicConfig(level=logging.INFO, format="%(message)s")
job = network("momentum", model=model, number=24)
devices = [f"/job:worker/task:{task}/device:XLA_CPU:0" for task in range(2)]
model = caramel.ARModel(job.context(), 2, device_list=devices, planner="plain")
with model.session() as session:
    initial = session.variables()
    losses = [session.step(job.feed) for _ in range(3)]
np.testing.assert_allclose(losses, run_on_one_device(job, initial, steps=3).losses, rtol=1e-9)
print("trained")
"""


def node(kind, **types):
    made = tf.compat.v1.NodeDef(op=kind)
    for name, dtype in types.items():
        made.attr[name].type = dtype.as_datatype_enum
    return made


@pytest.mark.parametrize(
    ("kind", "types", "device", "expected"),
    [
        ("StringJoin", {}, "CPU", True),
        ("StringJoin", {}, "GPU", False),
        ("MatMul", {"T": tf.float32}, "CPU", True),
        ("MatMul", {"T": tf.string}, "CPU", False),
        ("Identity", {"T": tf.float32}, "NPU", True),  # one for every accelerator
        ("NoSuchOp", {}, "CPU", False),
    ],
)
def test_the_library_knows_which_kernels_there_are(kind, types, device, expected):
    assert has_kernel(node(kind, **types), device) is expected


def test_ops_without_a_kernel_run_on_the_processor_and_are_counted():
    """On the one accelerator that there is everywhere: XLA's view of the processor."""
    environment = {
        **os.environ,
        "TF_XLA_FLAGS": "--tf_xla_enable_xla_devices",
        "PYTHONPATH": str(ROOT),
    }
    done = forking.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "trained\n", done.stderr[-2000:]
    told = "4 of .* ops on devices of kind XLA_CPU have no kernel for it, and run on the CPU"
    assert re.search(told, done.stderr)
