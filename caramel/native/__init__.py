"""TensorFlow's shared library, by ctypes, without TensorFlow's Python.

In come calls with plain data; out come sessions, servers and answers of the library. What Caramel
assumes of TensorFlow's binary is assumed here and nowhere else.

========== =========================================================================================
`check`    what is assumed of TensorFlow beyond what it promises, each checked once in a process
`kernels`  has TensorFlow a kernel for an op on a kind of device? As its library has registered them
`labels`   what TensorFlow calls the things that it traces: ops, kernels on GPUs, and transfers
`library`  TensorFlow's shared library, by ctypes, without TensorFlow's Python
`malloc`   memory that a step frees is kept for the next one
`messages` what TensorFlow writes to its log while Caramel starts servers and opens sessions
`server`   one of TensorFlow's servers, by its shared library: it needs nothing of TensorFlow's
           Python
`session`  sessions by TensorFlow's C API, over graphs that no Python objects stand for
========== =========================================================================================
"""
