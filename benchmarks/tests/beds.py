"""Which tests need network namespaces."""

from __future__ import annotations

import pytest

from benchmarks import testbed

_LACKING = testbed.missing()

needs_namespaces = pytest.mark.skipif(
    bool(_LACKING), reason=f"network namespaces need {', '.join(_LACKING)}"
)
