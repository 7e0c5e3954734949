"""Training with parameter servers: which variable lives where, and what travels.

============= ======================================================================================
`ownership`   which server has which variables?
`served_plan` the plain plan of a step with parameter servers
============= ======================================================================================
"""
