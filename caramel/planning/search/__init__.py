"""The plan that is predicted to be the fastest: a search by simulation.

============ =======================================================================================
`descent`    makes a plan better by changes of single groups: first by descent, then by kicks
`factoring`  which gradients are sent by their factors?
`grouping`   from gradients to candidates: what may be joined or deferred, and in which order it
             goes
`neighbours` which candidates differ from one by a change of a single group?
`search`     which plan is predicted to be the fastest? A search by simulation
`split`      splits large gradients into parts that are aggregated in groups of their own
`starts`     the family of plans from which a search starts
============ =======================================================================================
"""
