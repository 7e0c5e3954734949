"""Training with parameter servers: which variable lives where, and what travels in which order.

================= ==================================================================================
`ahead`           which variables are sent to workers when they were updated, for the next step?
`course`          what is predicted of a worker's step: what it computes, and what travels
`explain`         what an order of transfers makes of a worker's step, and why each has its place
`explain_step`    a step as an `Explanation`: what it costs and why, and what would help
`observed_orders` what do traced steps tell of orders?
`ownership`       which server has which variables?
`planner`         who plans steps: in which order do parameters and gradients travel?
`prospect`        what can a search for an order bring at most, and how long does it take?
`pushes`          in which order do workers send gradients to servers?
`received`        a worker's part of a step, as the algorithms for orders see it
`rows`            which parameters are split by rows over the servers, and into how many rows each?
`unordered`       in which orders could parameters come that come in any order?
`served_plan`     the plain plan of a step with parameter servers
================= ==================================================================================
"""
