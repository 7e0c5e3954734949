"""From facts to a plan.

In come facts and the user's options; out comes a `caramel.Plan`: which gradients are aggregated
together, when, how and in which order. `choose` is where it begins.

==================== ===============================================================================
`all_reduce_planner` who plans steps in which workers aggregate gradients between them
`candidate`          a plan as far as it is searched, and what is known for predicting its steps
`choose`             chooses a plan from the facts that are there
`compatibility`      does a plan that was made elsewhere fit the job it is used for?
`complete`           completes a plan with what follows from what was decided and the job
`control_edges`      control edges that let gradients get ready in one order. Caramel paper, section
                     4.1, stage 2
`depth`              into how many parts is a group split? Caramel paper, section 4.4
`from_profile`       planning without a graph: from the outline of a job (`core.workload`) in a
                     profile
`gates`              which transfer waits for which, so that they arrive in the planned order?
`held_updates`       which updates have to wait until every worker has read its inputs?
`options`            what a user may choose about planning
`pattern_choice`     which aggregation pattern is the fastest for a group? The Caramel paper,
                     section 4, by cost
`plain`              the plain plan: every gradient is aggregated by itself when it appears
`prospect`           what can a search for a plan bring at most, and how long does it take?
`step_planner`       who plans a step: what a kind of model has to know to make its plans
`worth_a_trial`      which plans besides the decided one should a session try?
`ordering/`          in which order does a worker receive its parameters? TicTac and the
                     execution-ordering paper
`paper/`             the plan of the Caramel paper (sections 4.2 to 4.4)
`placement/`         one graph over several devices: where is each op executed, and in which order?
                     The partitioning and scheduling paper
`search/`            the plan that is predicted to be the fastest: a search by simulation
`serving/`           training with parameter servers: which variable lives where, and what travels
                     in which order
`what_if/`           what a plan brings, what bounds it, and how a job would scale: answered by
                     simulating variations
==================== ===============================================================================
"""
