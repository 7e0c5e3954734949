"""Predicts a training step: what every worker and link does when, without running anything.

================ ==================================================================================
`workload`       what does a worker compute, piece by piece, and what does each piece wait for?
`hardware`       what can the workers and their links do?
`rounds`         in which rounds does an aggregation go over a link?
`loads`          what does each group bring: how much, from when on, and until when?
`tasks`          everything that happens in a step, and what waits for what
`transfers`      of that, how a group gets from its raw gradients to where it is aggregated
`engine`         when does each task begin and end? `alone`: the same of one host, in less time
`simulate`       the timeline of a step, from a plan
`explain`        why does it take that long, and what would help?
`limits`         which resource limits it?
`assumed`        workers and links that nobody has measured
`scaling`        how does a job scale on them?
================ ==================================================================================

A step is simulated in its steady state: transfers that are deferred from the step before begin with
it. The client waits for both parts of a step, so nothing else is left over from one to the next.
"""
