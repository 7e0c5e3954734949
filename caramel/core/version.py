"""The versions of this package, and of the TensorFlow that it is made for."""

__version__ = "0.1.0"
TENSORFLOW = "2.21"
"""Only with this one was everything looked up that `caramel.native` assumes."""
