"""Run benchmarks: ``python -m benchmarks NAME [--quick]``."""

from __future__ import annotations

from caramel.cluster.quiet_start import quiet_start

with quiet_start():  # TensorFlow is imported here
    from benchmarks.commands import app

if __name__ == "__main__":
    app()
