"""Parts of the distributed graph on the cluster: compiled once, called many times, never in
silence.

=================== ================================================================================
`calls`             calls into TensorFlow that never wait in silence
`clocks`            by how much do the clocks of several workers differ?
`containers`        tensorFlow's containers in which a session has its state
`distributed_graph` the distributed graph: one part for each plan, as a session sends it
`outcome`           what becomes of a call that another thread makes, for a caller who may be
                    interrupted
`runner`            runs parts of the distributed graph on the cluster, each compiled once
`transfer_recorder` lets TensorFlow record all transfers of calls that are traced
=================== ================================================================================
"""
