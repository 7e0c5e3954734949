"""Parameter servers: what a step does once, and what workers and servers send to each other.

=========== ========================================================================================
`home`      where what is done once stands: in the evaluation copy, on the servers
`pulls`     lets workers receive the variables that they read, in the planned order
`remote`    lets ops that read rows of a variable run where the variable is
=========== ========================================================================================
"""
