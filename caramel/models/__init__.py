"""The front: from a job and a cluster to a session.

In come a `Context` and the user's options; out comes a session over a graph that carries out the
chosen plan. Facts, plan, graph and session are made here, in this order, by the packages below.

=================== ================================================================================
`allreduce`         from a single-device job to a distributed one: facts, plan, graph, session
`assembly`          the distributed graph, put together plan by plan
`facts_from_traces` what traced steps of a distributed job tell: times of ops, rate and latency of
                    the network
`joint_steps`       the steps of a model, and what they become together with fetches that write
`plan_choice`       which plans of a step do sessions try, and which one proved the fastest?
`scalar_scales`     how does a scalar of a step scale with the examples, be it a loss or not?
`step_model`        one step of a model: what is known of it, its plan, and all plans that stand
                    beside that
`variants`          the plans of one job that stand side by side in its graph
=================== ================================================================================
"""
