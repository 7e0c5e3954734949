"""Environment variables of the processes that benchmarks start."""

from __future__ import annotations

from caramel.cluster.onednn_check import SETTING as ONEDNN
from caramel.cluster.quiet_start import WITHOUT_KERAS

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", ONEDNN: "1"}
"""TensorFlow says nothing and looks for no GPU: computation is the processor's, or emulated. It
uses oneDNN on all processors, as PyTorch does."""

WITH_KERAS = {WITHOUT_KERAS[0]: "0"}
"""For Horovod, which names classes of Keras."""

TENSORFLOW = {**QUIET, **dict([WITHOUT_KERAS])}
