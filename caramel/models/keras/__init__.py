"""Trains, evaluates and runs a compiled Keras model on many workers: `caramel.keras`.

=================== ============================================================================
`callbacks`         what stands around the user's callbacks: variables go to and fro
`gathered_metrics`  what metrics have gathered of the examples of all workers
`made_before`       variables that the first step would make are made before it is traced
`model_steps`       what a model does with a batch, done by workers
`refused`           which models cannot be
`step_results`      what a step returns, for all workers together
`trainer`           the front for users: fit, evaluate, predict
=================== ============================================================================
"""

from caramel.models.keras.trainer import Trainer

__all__ = ["Trainer"]
