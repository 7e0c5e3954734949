"""A program under `caramel run`: killed, told to end, and in the end as if nothing had been."""

from __future__ import annotations

import os
import sys
import textwrap

import numpy as np
import pytest

from tests.runtime.test_resuming import EPOCH, expected
from tests.support import forking
from tests.support.commands import ROOT

pytestmark = pytest.mark.processes

PROGRAM = """
    import os, signal, sys
    import numpy as np
    import tests.conftest
    from tests.support.pipelines import job, numbers

    made = job(lambda: numbers(40).shuffle(40).batch(2))
    with made.model(2).session(resume="kept", save_on_sigterm="kept") as session:
        if session.resumed is None:
            np.save("begin.npy", session.variables()["w"])
        session.run(made.iterator.initializer)
        while session.steps_done < int(sys.argv[1]):
            ids = session.step(fetches={"ids": made.ids})["ids"]
            np.save(f"ids-{session.steps_done}.npy", np.ravel(ids))
            if session.steps_done in (2, 4, 8):
                session.save("kept/m", global_step=session.steps_done, keep=1, wait=False)
            if session.steps_done == 5 and not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            if session.steps_done == 7 and not os.path.exists("told"):
                open("told", "w").close()
                os.kill(os.getpid(), signal.SIGTERM)
        np.save("end.npy", session.variables()["w"])
"""


def test_killed_and_told_to_end_a_program_trains_as_if_nothing_had_been(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = [sys.executable, "-m", "caramel", "run", sys.executable, str(program), str(EPOCH)]
    paths = os.pathsep.join(map(str, (ROOT, os.environ.get("PYTHONPATH", ""))))
    environ = {**os.environ, "PYTHONPATH": paths}
    codes, errors = [], []
    for _ in range(2):
        result = forking.run(
            command,
            forks=True,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
        )
        codes.append(result.returncode)
        errors.append(result.stderr)
    assert codes == [143, 0], errors
    name = os.path.basename(sys.executable)
    assert f"caramel: {name} ended (killed by signal 9); it is started again in 1 s" in errors[0]
    assert "told to end by SIGTERM; checkpoint 'kept/preempted' is written" in errors[0]
    batches = [np.load(tmp_path / f"ids-{step}.npy") for step in range(1, EPOCH + 1)]
    assert sorted(np.concatenate(batches).tolist()) == list(range(40))
    w = expected(np.load(tmp_path / "begin.npy"), batches)
    np.testing.assert_allclose(np.load(tmp_path / "end.npy"), w, rtol=1e-12)
    # Killed between writing m-4 and removing m-2, it leaves both, until the next one is kept.
    kept = {path.name for path in (tmp_path / "kept").glob("*.index")}
    assert kept == {"m-8.index", "preempted.index"}
