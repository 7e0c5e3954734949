"""In which order does a worker receive its parameters? TicTac and the execution-ordering paper.

"TicTac 2019" is Hashemi, Abdu Jyothi and Campbell, *TicTac: Accelerating Distributed Deep Learning
with Communication Scheduling* (SysML 2019), "2018" its preprint. Both have the same algorithms and
properties; of metrics, the preprint has the scheduling efficiency E with its bounds and the speedup
S, the later text the overlap coefficient alpha and rho. "Execution-ordering" is *On the Importance
of Execution Ordering in Graph-Based Distributed Machine Learning Systems* (SysML 2018). Everything
here works on plain graphs and times.

================= ==================================================================================
`dependencies`    which transfers does each op wait for, directly or through others? `dep`
`execution_order` Order(read): the heuristic of the execution-ordering paper
`executor`        executes a worker's step in thought: when is what received and computed?
`makespan`        how long does a step take with an order? Without computing op by op
`metrics`         what the papers measure of orders: U, L, E, S, alpha, rho, stragglers, orders
`properties`      M, P and M+ of the outstanding transfers, updated with each arrival
`search`          the order that is predicted to take the shortest step: a local search
`tac`             timing-aware communication scheduling
`tic`             timing-independent communication scheduling
`time_oracle`     how long does each op and each transfer take? Measured, or the general oracle
`transfer_graph`  a worker's part of a step: what it receives, and which ops wait for it
`transfer_spans`  how long does each transfer occupy its channel, by the spans of a trace?
================= ==================================================================================
"""
