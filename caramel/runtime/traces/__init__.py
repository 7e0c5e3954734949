"""From what TensorFlow traced to times of ops and timelines of steps.

=============== ====================================================================================
`held_memory`   from what TensorFlow traced in a step to the memory that its tensors took on each
                device
`op_times`      from what TensorFlow traced in a step to the time that each op of the graph took
`replicas`      which worker or server is on what device of a trace, and what its clock shows
`step_timeline` from what TensorFlow traced in a step of the distributed graph to its timeline
=============== ====================================================================================
"""
