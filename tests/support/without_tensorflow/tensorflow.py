"""Stands in TensorFlow's place for `make test-fast`: whoever imports it is skipped.

A test that is run cannot have imported TensorFlow, nor can a process that it starts.
"""

import pytest

pytest.skip("needs TensorFlow", allow_module_level=True)
