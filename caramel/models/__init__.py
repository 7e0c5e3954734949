"""The front: from a job and a cluster to a session.

In come a `Context` and the user's options; out comes a session over a graph that carries out the
chosen plan. Four stages make one from the other: facts, plan, graph, session. A model of another
kind takes other options and reuses them.

=================== ================================================================================
`allreduce`         the front for users: a model whose gradients are aggregated inside the graph
`assembly`          the distributed graph, put together plan by plan
`distribute`        lets workers do a training step that is a function
`facts`             the first stage: what is known of the job, its workers, and each of its steps
`facts_from_traces` what traced steps of a distributed job tell: times of ops, rate and latency of
                    the network
`in_parts`          which parameters are split over parameter servers, and the job in which they are
`joint_facts`       what is known of a step that is done together with fetches that write
`keras`             trains, evaluates and runs a compiled Keras model on many workers
`model`             what all models have in common: facts, plan, graph and session, made one from
                    the other
`options`           what the user of a model has chosen, but for the job and its workers
`parameter_server`  the front for users: a model whose variables live on parameter servers
`placed`            the front for users: a model that is spread over several devices
`plan_choice`       the fourth stage: which plans do sessions try, and which one proved the fastest?
`planned`           the second stage: the plan of one step, and what of other plans can be carried
                    out
`remote_step`       a step that is a function, done by many workers
`scalar_scales`     how does a scalar of a step scale with the examples, be it a loss or not?
`signatures`        what a step is called with: the dtypes and shapes for which it is lowered
`step_model`        one step of a model, as users see it: its plan, all plans that stand beside
                    that, and why
`steps`             the steps of a model, each made by the four stages, and what they become with
                    fetches that write
`variants`          the third stage: the plans of one step that stand side by side in the graph
=================== ================================================================================
"""
