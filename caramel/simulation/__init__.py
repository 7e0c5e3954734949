"""What a step would take: every worker and link, without running anything.

In come a plan, the job's workload and what the hardware can do; out comes a timeline. A step is
simulated in its steady state: transfers that are deferred from the step before begin with it. The
client waits for both parts of a step, so nothing else is left over from one to the next.

=============== ====================================================================================
`assumed`       workers and links that nobody has measured: from rates and latencies that someone
                names
`conditions`    under which conditions are steps simulated, and what is the same for many plans?
`contention`    how much longer does computing take where the processor also sends and receives?
`engine`        when does each task of a step begin and end?
`hardware`      what can the workers and their links do, as far as it matters for the time of a
                step?
`lead`          by how much is one worker ahead of another that sends to the same server?
`loads`         what does each group of a plan bring to a step: how much, from when on, and until
                when?
`network_model` a model of the network: fitted to measurements, or assumed from the rate of its
                links
`rounds`        in which rounds does an aggregation go over the links?
`serving`       what a step with parameter servers would take: pulls, gradients, sums and updates
                as tasks
`simulate`      the timeline of a step, predicted from a plan, what workers compute, and what they
                can do
`single_host`   the same simulation as `engine` of one host, which sends to itself
`tasks`         everything that happens in a step, and what waits for what
`transfers`     the tasks in which a group gets from where its gradients are complete to where it is
                aggregated
=============== ====================================================================================
"""
