"""How a job comes in.

In comes the user's graph, with the names of its step, loss and batch; out comes a `Context`: the
job captured by name and frozen. Analyzers take it from there.

====================== =============================================================================
`context`              one single-device training job, captured by name and frozen
`counted_names`        names that do not depend on what else a process has built
`functions`            lowers a training step that is a function to a single-device graph
`given`                what users name when they give a job: its loss, the count behind it, its raw
                       gradients
`graph_names`          names of a graph's tensors, operations and variables, from what users pass
                       for them
`grouped_convolutions` makes depthwise convolutions of those that have a group for each channel
`initial_values`       what do the initial values of variables need: feeds, and other variables
                       before them?
`open_sizes`           how large would tensors be if a batch had so many examples?
`rows`                 sparse and ragged values as the tensors they consist of: taken apart by rows,
                       and put together
`stand_ins`            variables that stand in a graph for others, made many at once
`structures`           what users feed and fetch, as `tf.compat.v1.Session.run` takes it: structures
                       and composites
`variables`            which variables does a graph have, wherever they are registered?
====================== =============================================================================
"""
