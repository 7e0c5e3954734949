"""Rewrites of the graph: functions ``(graph_def, plan) -> graph_def``.

In come the user's graph and a plan; out comes the distributed graph that carries it out, audited.
`pipeline` is the list of modifiers, in their order.

================= ==================================================================================
`aggregation/`    the aggregation of raw gradients between the workers, by ordinary ops
`await_inputs`    holds updates back until every worker has read its inputs
`batch_weights`   says how much each worker's part of a batch counts
`carry_over`      keeps tensors of one step for the next one, in variables of their worker
`containers`      keeps what a session has apart from that of other sessions
`control_edges`   adds the plan's control edges to every replica. Caramel paper, section 4.1, stage
                  2
`count_once`      lets what is the same on every worker count once in gradients that are no means
`crossings`       what crosses between the tasks of a distributed graph
`defer`           lets what is downstream of deferred groups run at the start of the next step
`evaluating`      copies of a part of the evaluation graph, one on each worker, so that all of them
                  evaluate
`fixed_sum_order` gives the user's sums of three and more tensors a fixed order
`graph_writer`    writes nodes into a GraphDef: the one place that fills in protos of Caramel's own
                  ops
`invariants`      the invariants of a distributed graph, in one place
`other_variables` reads what variables are in another session of the same job
`pipeline`        carries out a plan: an explicit list of modifiers and the loop that runs them
`place`           lets what crosses between the devices of one replica pass an op on each side
`positions`       tells how far the iterators of input pipelines are, and puts them back there
`progress_marks`  leaves marks by which the client can tell how far a running step has come
`replicate`       puts one copy of the user's graph on every worker
`serving/`        parameter servers: what workers and servers send to each other
`shard`           gives each worker its own shard of every input pipeline of the step
`share_state`     makes the graph of another plan for a job ready to stand beside the first one, on
                  the same state
`snapshots`       snapshots: copies of all variables, in the memory of workers and servers, that
                  outlive a session
`step_tokens`     tokens by which ops of a step wait for moved ops of the step before, across two
                  calls
`traffic_audit`   the traffic audit: what crosses between tasks, from the graph's edges and from the
                  plan
`values_left`     reads variables of a job where they still are, by a graph that has nothing else
`variable_copies` copies of variables, which are taken before a step that may be given up, and put
                  back after it
`variable_ops`    ops beside the training step that read, broadcast, merge and restore variables
================= ==================================================================================
"""
