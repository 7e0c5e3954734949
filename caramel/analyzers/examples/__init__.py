"""How does each tensor go with the examples of a batch? Rules for each kind of op, in one place for
each sort.

============== =====================================================================================
`course_rules` what each kind of op does to the courses of what it reads
               (`caramel.analyzers.examples.courses`)
`courses`      how a tensor goes with the examples of a batch, as a value to reckon with
`examples`     how does each tensor go with the examples of a batch?
`row_rules`    what ops that work on each example by itself do to courses, and kinds that nobody
               knows
`shape_rules`  what ops that move, cut, join and make axes do to courses (`courses`)
============== =====================================================================================
"""
