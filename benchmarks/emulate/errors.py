"""What can go wrong when an accelerator is emulated."""

from __future__ import annotations

from caramel.core.errors import CaramelError


class EmulationError(CaramelError):
    """The computation of a job cannot be replaced by waits, or the times given do not fit it."""
