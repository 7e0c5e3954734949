"""Does TensorFlow compute with oneDNN on this machine?

TensorFlow decides when it is loaded, so nobody can do so later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SETTING = "TF_ENABLE_ONEDNN_OPTS"
PROCESSOR = Path("/proc/cpuinfo")

# By itself TensorFlow uses oneDNN's kernels only on processors with one of these, which are made
# for neural networks, and Eigen's on all others. There oneDNN's are faster, too: on one that has
# AVX2, training steps took 0.45 (AlexNet-v2) to 0.93 times (Inception v3) as long
# (``docs/decisions/onednn.md``).
_USED_FOR = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}


def advice(environment: Mapping[str, str] = os.environ, processor: Path = PROCESSOR) -> str | None:
    """What to set on this machine, in a sentence; None if there is nothing.

    Args:
        environment: variables of the process that loads TensorFlow. Nothing is said if it sets
            `SETTING`, to whatever value.
        processor: the file that lists the processor's features.
    """
    if SETTING in environment:
        return None
    found = features(processor)
    if "avx2" not in found or found & _USED_FOR:
        return None
    return (
        "TensorFlow computes without oneDNN on this processor unless it is told to use it. "
        f"{SETTING}=1 in the environment of all workers makes convolutions and matrix products up "
        f"to twice as fast; {SETTING}=0 leaves all as it is, without this hint"
    )


def features(processor: Path = PROCESSOR) -> set[str]:
    """What an x86 processor can do, by the names that Linux has; nothing if it is another one."""
    try:
        lines = processor.read_text().splitlines()
    except OSError:
        return set()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.partition(":")[2].split())
