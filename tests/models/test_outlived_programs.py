"""Programs of functions and of Keras go on with what workers have of one that was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from caramel.cluster.processes import LISTENING, free_ports
from tests.models.test_distribute import Job, batches
from tests.support import forking
from tests.support.commands import ROOT
from tests.support.keras_jobs import X, Y, assert_close, classifier
from tests.support.processes import WORKER, started

pytestmark = pytest.mark.processes

SIZES = (7, 7, 5, 7, 4, 6)  # of a function's batches
FIT = {"batch_size": 5, "shuffle": False, "verbose": 0}
PROGRAM = """
import json
import sys
sys.path.insert(0, sys.argv[1])
import keras
import caramel
from tests.models.test_distribute import Job, batches
from tests.models.test_outlived_programs import FIT, SIZES, X, Y, classifier, finals

options = {"trials": None, "resume": sys.argv[2], "recover": caramel.Recovery(snapshot_every=2)}
kind, workers = sys.argv[3], sys.argv[4:]

def tell(steps):
    print(json.dumps(steps), flush=True)
    sys.stdin.readline()

if kind == "function":
    job = Job()
    with caramel.distribute(job.step, workers, session_options=options) as step:
        tell(step.steps_done)
        for x, y in batches(SIZES)[step.steps_done:]:
            step(x, y)
            tell(step.steps_done)
    values = job.values
else:
    keras.config.set_floatx("float64")
    model = classifier()
    with caramel.keras.Trainer(model, workers, session_options=options) as trainer:
        done = trainer.steps_done
        tell(done)
        after = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda *_, **__: tell(trainer.steps_done)
        )
        trainer.fit(X[5 * done:], Y[5 * done:], **FIT, callbacks=[after])
    values = finals(model)
print(json.dumps([value.tolist() for value in values]), flush=True)
"""


def finals(model):
    """What training makes: weights, and what the optimizer keeps."""
    return [v.numpy() for v in (*model.trainable_variables, *model.optimizer.variables)]


@pytest.fixture(name="workers", scope="module")
def fixture_workers():
    """Workers that go on when a program ends."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    with ExitStack() as stack:
        for task in range(2):
            words = (*WORKER, "--cluster", ",".join(addresses), "--task", str(task))
            worker = stack.enter_context(started(*words, how=forking.Popen))
            assert LISTENING in worker.stdout.readline()
        yield addresses


def run(words, steps):
    """What a program tells after each step; it is killed after so many, unless it ends before."""
    with forking.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        told = [json.loads(program.stdout.readline())]
        while isinstance(told[-1], int) and len(told) <= steps:
            program.stdin.write("\n")
            program.stdin.flush()
            told.append(json.loads(program.stdout.readline()))
        program.kill()
    return told


@pytest.mark.timeout(600)  # it starts programs one after the other
@pytest.mark.parametrize("kind", ["function", "keras"])
def test_a_program_goes_on_from_the_snapshot_of_one_that_was_killed(
    workers, tmp_path, kind, float64
):
    """What it is told before its first step is where it goes on."""
    words = (sys.executable, "-c", PROGRAM, str(ROOT), str(tmp_path), kind, *workers)
    assert run(words, 5) == [0, 1, 2, 3, 4, 5]
    first, *others, values = run(words, 100)
    assert first == 4
    if kind == "function":
        alone = Job()
        for x, y in batches(SIZES):
            alone.step(x, y)
        expected = alone.values
    else:
        model = classifier()
        model.fit(X, Y, **FIT)
        expected = finals(model)
    steps = len(SIZES) if kind == "function" else -(-len(X) // FIT["batch_size"])
    assert others == [*range(5, 1 + steps)]
    assert_close(map(np.array, values), expected)
