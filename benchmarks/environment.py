"""Environment variables of the processes that benchmarks start."""

from __future__ import annotations

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
"""TensorFlow says nothing and looks for no GPU: computation is the processor's, or emulated."""

WITHOUT_KERAS = {"TF_USE_LEGACY_KERAS": "1"}
"""TensorFlow leaves out Keras, and all that Keras imports: half of the processor time of a start."""

WITH_KERAS = {"TF_USE_LEGACY_KERAS": "0"}
"""For Horovod, which names classes of Keras."""

TENSORFLOW = {**QUIET, **WITHOUT_KERAS}
