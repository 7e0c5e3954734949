"""Parameter servers: what workers and servers send to each other.

=========== ========================================================================================
`pulls`     lets workers receive the variables that they read, in the planned order
`remote`    lets ops that read rows of a variable run where the variable is
`rows`      splits parameters by rows: a rewrite of the single-device graph, before anything is
            planned
`servers`   where variables that are on servers are, and what is done with them
=========== ========================================================================================
"""
