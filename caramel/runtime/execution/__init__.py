"""Parts of the distributed graph on the cluster: compiled once, called many times, never in
silence.

=================== ================================================================================
`calls`             calls into TensorFlow that never wait in silence
`clients`           the process that drives a session, and whether it is still there
`clocks`            by how much do the clocks of several workers differ?
`containers`        tensorFlow's containers in which a session has its state
`distributed_graph` the distributed graph: one part for each plan, as a session sends it
`leases`            clients enter their containers in a table on each worker, so that nothing stays
                    for ever
`leaving`           lets servers forget a session whose calls may still be under way there
`liveness`          which workers answer? Each is asked by a call that its server answers by itself
`outcome`           what becomes of a call that another thread makes, for a caller who may be
                    interrupted
`runner`            runs parts of the distributed graph on the cluster, each compiled once
`transfer_recorder` lets TensorFlow record all transfers of calls that are traced
`variant_runner`    runs parts of one variant of the distributed graph
=================== ================================================================================
"""
