"""Keras models that are measured, and batches for them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

layers = keras.layers

IMAGE = 112
WORDS, LENGTH, WIDTH, HEADS, BLOCKS = 8000, 64, 128, 4, 2


def model_of(network: str) -> Any:
    """A functional model, not compiled, that puts out logits.

    Raises:
        ValueError: there is no such network.
    """
    if network == "resnet_50":
        shape = (IMAGE, IMAGE, 3)
        return keras.applications.ResNet50(
            weights=None, input_shape=shape, classifier_activation=None
        )
    if network == "transformer":
        return _transformer()
    if network == "dense":
        x = keras.Input((16,))
        return keras.Model(x, layers.Dense(4)(layers.Dense(16, "relu")(x)))
    raise ValueError(f"there is no network '{network}' here")


def examples(network: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels, drawn at random."""
    random = np.random.default_rng(1)
    if network == "transformer":
        return random.integers(0, WORDS, (count, LENGTH)), random.integers(0, 2, count)
    if network == "dense":
        return random.standard_normal((count, 16), np.float32), random.integers(0, 4, count)
    pixels = random.standard_normal((count, IMAGE, IMAGE, 3), np.float32)
    return pixels, random.integers(0, 1000, count)


def _transformer() -> Any:
    """An encoder that says which of two classes a text is of."""
    words = keras.Input((LENGTH,), dtype="int64")
    x = layers.Embedding(WORDS, WIDTH)(words)
    for _ in range(BLOCKS):
        attended = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        wide = layers.Dense(4 * WIDTH, "relu")(x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(WIDTH)(wide)]))
    return keras.Model(words, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
