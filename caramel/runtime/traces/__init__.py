"""From what TensorFlow traced to times of ops and timelines of steps.

=============== ====================================================================================
`op_times`      from what TensorFlow traced in a step to the time that each op of the graph took
`step_timeline` from what TensorFlow traced in a step of the distributed graph to its timeline
=============== ====================================================================================
"""
