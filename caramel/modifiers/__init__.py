"""Rewrites of the distributed graph: functions (graph_def, plan) -> graph_def."""
