"""One graph over several devices: where is each vertex executed, and in which order?

The paper is Mayer, Mayer and Laich, *The TensorFlow Partitioning and Scheduling Problem: It's the
Critical Path!* (DIDL 2017); sections and equations without another source are its own. Everything
here works on plain graphs and numbers.

================= ==================================================================================
`bounds`          how long must a step take at least, wherever it is placed?
`chain`           what does a simulated step wait for?
`clusters`        groups that exchange many bytes, joined
`explain`         why is a step placed as it is, what bounds it, and what does each device need?
`filling`         what stands on which device while groups are placed, and where may the next go?
`from_graph`      the problem of a training step, from its graph
`lists`           one vertex after the other gets the device on which it ends first
`memory`          how much memory does each device need at most, and does it have it? Equation 2
`order`           the control edges by which devices execute ops in the planned order
`partitioners/`   from a problem to the device of each vertex: one file for each way. Section 3
`place`           places a problem so that it fits: a partitioner, a scheduler, the memory
`planner`         who plans steps of one replica that is spread over several devices
`problem`         vertices, tensors, devices, and what must be together. Section 2
`ranks`           how long are the paths through each vertex? Equations 5 and 6
`schedulers`      which of the executable vertices is next? Section 4
`search`          the placement whose step is predicted to be the shortest
`send_gates`      which tensor waits for which, so that devices send them in the planned order?
`simulate`        when is what executed? A simulation of events. Section 5
`stages`          one device after the other is filled, in the order of the step
`step_ops`        which ops of a step may wait for more than they do, and which not?
`whole_graph`     the device of every op of a graph, also of those that no step runs
================= ==================================================================================
"""
