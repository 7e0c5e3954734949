"""Rewrites of the distributed graph: functions ``(graph_def, plan) -> graph_def``.

===================== ===========================================================================
`replicate`           one copy of the user's graph on every worker
`serialize`           the plan's control edges, by which gradients get ready in one order
`order_sums`          the user's sums in a fixed order
`shard`               each worker's own shard of the input pipelines
`await_inputs`        no update before every worker has read its inputs
`weigh`               how much each worker's part of a batch counts
`add_tokens`          queues by which a step waits for the deferred part of the one before
`aggregate`           gradients aggregated between the workers
`defer`               the deferred part, cut off from its step
`synchronise`         programs that read, broadcast and average variables
===================== ===========================================================================

`rewrite` runs them in this order. `aggregate` is helped by `dense`, `sparse`, `factors`, `split`
and `desk`, `aggregated` knows where the results are, `keep` what is kept between two steps; `nodes`
writes the nodes that all of them add. `stand_beside` makes what comes out ready to stand in one
graph with that of another plan.
"""
