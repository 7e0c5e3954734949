"""Data and vocabulary: what all others speak of. No TensorFlow.

In comes plain data (a serialized graph, a file); out come frozen records, checked when they are
made. Nothing here computes a plan or runs anything.

================= ==================================================================================
`calibration`     what transfers cost a machine, beside what is measured of each job and each
                  network
`consequences`    what follows from a job and what was decided for it; nobody decides it
                  (`planning.complete`)
`decision`        what a planner decides: groups of gradients, parts, control edges and gates
`devices`         device names as TensorFlow writes them: parsed, merged, and reduced to their task
`dtypes`          dtypes as TensorFlow numbers and names them: how large an element is, and what it
                  is good for
`errors`          every error Caramel raises: what went wrong, where, and what the user can do about
                  it
`explanation`     an explanation: what a plan makes of a step, what bounds it, and what would help,
                  as pure data
`facts`           facts: frozen answers to one question each, which analyzers take and give
`graph`           the dataflow graph as plain data: ops, what they read, and what they put out
`graph_reader`    reads a GraphDef as an `OpGraph`
`measurements`    what was measured on a cluster, before anything is concluded
                  (`simulation.network_model`)
`memory`          how much memory the tensors of a step need on one device, moment by moment
`names`           names of nodes and tensors: the only place that builds or parses them
`op_types`        what the kinds of ops (TensorFlow's op types) do, as far as distribution depends
                  on it
`orders`          what traced steps tell of the order in which workers received parameters:
                  TicTac's figures
`patterns`        aggregation patterns as data: who sends which chunk to whom, and who adds what in
                  which order
`payback`         when does a pause of training pay? What it costs, against what each later step
                  saves
`placed_step`     what is explained of a step that is spread over several devices, as pure data
`placement`       where the ops of one replica are, if it is spread over several devices
`plan`            the plan: everything that will happen in the distributed job, as pure data
`planned_job`     what a plan is for: a training step, its raw gradients, and the workers that do it
`profile`         a profile: measured facts in a file, so that planning needs to run nothing
`row_split`       parameters that are split by rows, so that several servers have a part of each
`time_facts`      facts about times: how long ops and transfers take, and when they can be
`timeline`        a timeline: what each worker did when, as a simulator predicts it or a trace shows
                  it
`train_steps`     the training steps that a user gives for one job: one, or several by name
`util/`           small helpers that know nothing of training jobs (`disk_cache` knows what it
                  keeps)
`variable_access` which variables does each op read and write?
`version`         the versions of this package, and of the TensorFlow that it is made for
`workload`        what a step of a job computes and aggregates, as far as its time depends on it
================= ==================================================================================
"""
