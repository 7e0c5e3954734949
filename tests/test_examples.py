"""The programs in `examples/` print what `tests/golden/` says, and the README tells the truth.

A golden file is what a terminal shows: the command, all that it writes to standard output and
errors, and its exit code. ``{loss: 0.1..0.3}`` stands for a number in that range; all other text is
exact, and nothing else may appear.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from caramel.cluster.processes import free_ports
from tests.support import forking

ROOT = Path(__file__).parents[1]
GOLDEN = sorted((ROOT / "tests" / "golden").glob("*.txt"))
TRAINING = ROOT / "tests" / "golden" / "train_resnet.txt"
README = (ROOT / "README.md").read_text()

NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
RANGE = re.compile(rf"\{{([\w ]+): ({NUMBER})\.\.({NUMBER})\}}")
LAUNCHERS = re.compile("TF_CONFIG|SLURM|OMPI_|PMI|MV2_")


def environment(**more: str) -> dict[str, str]:
    """What a user's programs have: no log level is set."""
    environ = {k: v for k, v in os.environ.items() if not LAUNCHERS.match(k)} | more
    environ.pop("TF_CPP_MIN_LOG_LEVEL", None)
    return environ


def run(
    command: list[str], directory: Path, *, how=forking.run, **more: str
) -> subprocess.CompletedProcess:
    """Run a program as a user does; standard output is no terminal."""
    return how(
        command,
        cwd=directory,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
    )


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def forked(command: list[str], **options) -> subprocess.CompletedProcess:
    """A program is forked, and so are the workers that it starts."""
    return forking.run(command, forks=True, **options)


def transcript(command: str, directory: Path, how=forked) -> str:
    """What a terminal shows that runs a command of a golden file."""
    program, script, *options = shlex.split(command)
    assert program == "python"
    result = run(python(str(ROOT / script), *options), directory, how=how)
    return f"$ {command}\n{result.stdout}$ echo $?\n{result.returncode}\n"


def differences(expected: str, actual: str) -> list[str]:
    """In which lines `actual` is not what a golden file describes; empty if in none."""
    wanted, given = expected.splitlines(), actual.splitlines()
    found = [
        f"line {number}: expected {line!r}, got {got!r}"
        for number, (line, got) in enumerate(zip(wanted, given, strict=False), 1)
        if not _fits(line, got)
    ]
    if len(wanted) != len(given):
        found.append(f"expected {len(wanted)} lines, got {len(given)}:\n{actual}")
    return found


def _fits(line: str, got: str) -> bool:
    ranges = RANGE.findall(line)
    pieces = [re.escape(piece) for piece in re.split(r"\{[^{}]*\}", line)] if ranges else []
    match = re.fullmatch(f"({NUMBER})".join(pieces) or re.escape(line), got)
    return match is not None and all(
        float(low) <= float(value) <= float(high)
        for value, (_, low, high) in zip(match.groups(), ranges, strict=True)
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    "golden", [pytest.param(file, id=file.stem) for file in GOLDEN if file != TRAINING]
)
def test_an_example_prints_its_golden_output(golden, tmp_path):
    if "legacy" in golden.stem and importlib.util.find_spec("tf_keras") is None:
        pytest.skip("tf_keras is not installed")
    expected = golden.read_text()
    command = expected.partition("\n")[0].removeprefix("$ ")
    how = subprocess.run if golden.stem == "quickstart" else forked
    assert differences(expected, transcript(command, tmp_path, how)) == []


def test_every_example_says_on_a_terminal_what_takes_long():
    examples = {file.stem: file.read_text() for file in (ROOT / "examples").glob("*.py")}
    del examples["digits"]
    silent = [name for name, text in examples.items() if "caramel.show_progress()" not in text]
    assert silent == []


def test_every_example_has_a_golden_output():
    examples = {file.stem for file in (ROOT / "examples").glob("*.py")}
    examples.remove("digits")  # the network and the data of the others
    assert examples <= {file.stem for file in GOLDEN}


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("loss {loss: 0.1..0.3}", "loss 0.31"),
        ("loss {loss: 0.1..0.3}", "loss nan"),
        ("loss {loss: 0.1..0.3}", "loss 0.2 or so"),
        ("loss {loss: 0.1..0.3}", "loss"),
        ("loss", "loss\nWARNING"),
        ("loss\nend", "loss"),
        ("a.c", "abc"),
    ],
)
def test_a_golden_file_notices(expected, actual):
    assert differences(expected, actual)


@pytest.mark.parametrize("actual", ["loss 0.1, 3%", "loss 0.25, -1e-05%", "loss 0.3, 3.5%"])
def test_a_golden_file_accepts(actual):
    assert differences("loss {loss: 0.1..0.3}, {part of all: -1..5}%", actual) == []


@functools.cache
def imported(name: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"examples/{name}.py")
    example = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ([], {}),
        (["--no-serialization"], {"serialization": False}),
        (["--no-batching"], {"batching": False}),
        (["--no-scheduling"], {"scheduling": False}),
        (["--no-adaptive-depth"], {"adaptive_depth": False}),
        (["--no-factors"], {"factors": False}),
        (["--planner", "paper"], {"planner": "paper"}),
        (["--pattern", "ring", "--profile", "p.json"], {"pattern": "ring", "profile": "p.json"}),
    ],
)
def test_the_flags_of_the_training_script_are_those_of_the_model(words, changed, monkeypatch):
    given = {}

    class EnoughError(Exception):
        pass

    def model(context, workers, **options):
        given.update(options)
        raise EnoughError

    example = imported("train_resnet")
    job = SimpleNamespace(train_op=None, loss=None)  # it has no part in this
    monkeypatch.setattr(imported("digits"), "build_network", lambda *_: job)
    monkeypatch.setattr(example.caramel, "Context", lambda *_, **names: names)
    monkeypatch.setattr(example.caramel, "ARModel", model)
    app = typer.Typer()
    app.command()(example.main)
    assert isinstance(CliRunner().invoke(app, words).exception, EnoughError)
    flags = ("serialization", "batching", "scheduling", "adaptive_depth", "factors")
    usual = {"pattern": "auto", "profile": None, "planner": "search"} | dict.fromkeys(flags, True)
    assert given == usual | changed


@pytest.mark.processes
def test_training_prints_its_golden_output_and_saves_what_is_as_good_on_a_single_device(tmp_path):
    expected = TRAINING.read_text()
    shown = transcript(expected.partition("\n")[0].removeprefix("$ "), tmp_path)
    assert differences(expected, shown) == []
    printed = re.search(r"test accuracy ([\d.]+)%", shown)
    assert printed, shown

    example = imported("digits")
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        network = example.build_network(42, 0)
        tf.compat.v1.train.Saver().restore(session, str(tmp_path / "checkpoints/digits.ckpt"))
        _, test = example.load_data()
        fed = {network.images: test.images, network.labels: test.labels, network.is_training: False}
        accuracy = session.run(network.accuracy, fed)
    assert float(printed[1]) == pytest.approx(100 * accuracy, abs=100 / len(test))
    assert np.isfinite(accuracy)


# The README -------------------------------------------------------------------------------------


def readme_code(language: str, containing: str, text: str = README) -> str:
    """The one code block of the README, or of another document, that contains something."""
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    (block,) = [block for block in blocks if containing in block]
    return block


def quickstart_code() -> str:
    text = (ROOT / "examples/quickstart.py").read_text()
    return text.partition("# README: begin\n")[2].partition("# README: end\n")[0]


def test_the_readme_shows_the_code_of_the_quickstart():
    assert len(quickstart_code().splitlines()) == 10
    assert readme_code("python", "ARModel(context, workers=4") == quickstart_code()


def test_the_readme_shows_a_keras_model_that_trains(tmp_path, monkeypatch):
    import keras

    import caramel

    monkeypatch.chdir(tmp_path)
    x, y = np.random.rand(60, 64), np.arange(60) % 10
    names = {"keras": keras, "layers": keras.layers, "caramel": caramel, "x": x, "y": y}
    names |= {"test_x": x, "test_y": y, "new_x": x[:3]}
    exec(readme_code("python", "keras.Trainer"), names)
    assert len(names["history"].history["val_loss"]) == 5
    assert names["predictions"].shape == (3, 10)
    assert (tmp_path / "digits.keras").exists()


@pytest.mark.parametrize("target", ["train", "test", "test-fast"])
def test_the_readme_names_commands_that_exist(target):
    assert f"make {target}" in readme_code("sh", "make train")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_a_name_in_the_readme_exists():
    """Each `caramel.something` in the text can be imported or looked up."""
    import caramel

    names = set(re.findall(r"caramel\.([A-Z]\w+(?:\.\w+)*)", README))
    assert {"Context", "ARModel", "Cluster.from_environment"} <= names
    for name in names:
        value = caramel
        for part in name.split("."):
            value = getattr(value, part)


@pytest.mark.processes
def test_the_documents_run_one_script_on_all_workers(tmp_path):
    clusters = (ROOT / "docs/clusters.md").read_text()
    program = (ROOT / "examples/quickstart.py").read_text()
    job, _, _ = program.partition("context = ")
    (tmp_path / "job.py").write_text(job)
    use = """
        from job import images, labels, x, y

        with model.session() as session:
            loss_value = session.step({x: images, y: labels})
        print("trained on", cluster.size, "workers", loss_value > 0)
    """
    script = tmp_path / "script.py"
    snippet = readme_code("python", "serve_until_chief_ends(cluster)", clusters)
    script.write_text(snippet + textwrap.dedent(use))
    first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
    config = '{"cluster": {"worker": ["%s", "%s"]}, "task": {"type": "worker", "index": %d}}'
    other = forking.Popen(
        python(str(script)),
        cwd=tmp_path,
        env=os.environ | {"TF_CONFIG": config % (first, second, 1)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        chief = run(python(str(script)), tmp_path, TF_CONFIG=config % (first, second, 0))
        # Before it, on a slow machine, what takes long.
        assert chief.stdout.endswith("trained on 2 workers True\n")
        output, _ = other.communicate(timeout=200)
        assert (other.returncode, output) == (0, "")
    finally:
        other.kill()
        other.wait()


@pytest.mark.processes
def test_the_readme_starts_workers_by_hand(tmp_path):
    commands = [
        line for line in README.splitlines() if line.startswith("caramel worker --cluster ")
    ]
    assert len(commands) == 2
    ports = free_ports(2)
    workers = []
    try:
        for command in commands:
            for host, port in zip("ab", ports, strict=True):
                command = command.replace(f"{host}:2222", f"127.0.0.1:{port}")
            words = shlex.split(command.partition("#")[0])
            workers.append(
                forking.Popen(
                    [*python("-m"), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            )
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        options = ("--workers", addresses, "--epochs", "1", "--planner", "paper")
        result = run(python(str(ROOT / "examples/train_resnet.py"), *options), tmp_path)
        assert result.returncode == 0, result.stdout
        assert "2 workers, auto" in result.stdout
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.communicate(timeout=200)
