"""Times aggregations on running workers: ``python -m benchmarks.congestion_client CASE RESULT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from caramel.cluster import Cluster
from caramel.measure import MANY, measure_network


def main() -> None:
    """Measure, and write numbers of tensors, bytes and seconds of each series."""
    case = json.loads(sys.argv[1])
    measured = measure_network(
        Cluster.coerce(case["workers"]),
        patterns=[case["pattern"]],
        sizes=case["sizes"],
        repeats=case["repeats"],
        pairs=False,
    )
    series = [(t.tensors, t.size_bytes, t.seconds) for t in measured.aggregations]
    result = {"aggregations": [each for each in series if each[0] != MANY]}
    Path(sys.argv[2]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
