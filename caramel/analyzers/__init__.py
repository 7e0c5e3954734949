"""Algorithms from facts to a fact; each file answers one question."""
