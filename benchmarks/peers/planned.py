"""Caramel with a plan made from measured facts; see `plain`, which runs both."""

from benchmarks.peers.plain import PLANNED as PEER

__all__ = ["PEER"]
