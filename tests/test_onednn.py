"""What is said of processors for which TensorFlow does not use oneDNN by itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from caramel.onednn import PROCESSOR, SETTING, advice


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


@pytest.mark.processes
@pytest.mark.skipif(
    not PROCESSOR.exists() or "avx2" not in PROCESSOR.read_text(), reason="needs Linux and AVX2"
)
def test_tensorflow_says_the_same_of_this_machine():
    environment = {key: value for key, value in os.environ.items() if key != SETTING}
    result = subprocess.run(
        [sys.executable, "-c", "import tensorflow"],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "0"},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    used = "oneDNN custom operations are on" in result.stderr
    assert used == (advice({}) is None)
