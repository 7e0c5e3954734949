"""What is the program called that uses the library?"""

from __future__ import annotations

import sys
from pathlib import Path

_NO_NAMES = ("", "-c", "-m", "-", "__main__", "ipykernel_launcher", "colab_kernel_launcher")
_UNKNOWN = "training job"


def program_name() -> str:
    """The name of the script that runs, without its ending; "training job" where there is none."""
    name = Path(sys.argv[0] if sys.argv else "").stem
    return _UNKNOWN if name in _NO_NAMES else name
