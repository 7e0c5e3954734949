"""From facts to a plan."""
