"""How does each tensor go with the examples of a batch? Rules for each kind of op, in one place for
each sort.

============= ======================================================================================
`arithmetic`  the courses of sums, products, quotients and of what is not linear
`arrays`      what loops and branches hand on: arrays and lists, and one of several values
`at`          an op with the courses of what it reads, as rules see it
`axes`        what ops that move axes, or work along one, do to courses
`batch`       how many examples does a worker's step have, as the graph or measured sizes tell?
`chosen_rows` what ops that pick, sort and add up rows by their numbers do to courses
`courses`     how a tensor goes with the examples of a batch, as a value to reckon with: its
              *course*
`elementwise` what ops that work on each element by itself do to courses
`examples`    how does each tensor go with the examples of a batch?
`outside`     courses of what a function returns, as they are seen where it is called
`parts`       what ops that cut tensors into parts, and join parts, do to courses
`products`    what matrix products, contractions and gradients of filters do to courses
`reductions`  what sums, means and other reductions do to courses
`row_rules`   what ops that work on each example by itself do to courses, and kinds that nobody
              knows
`rules`       the rule for each kind of op: what it does to the courses of what it reads
`shapes`      what ops do to courses that tell shapes, or that fill a tensor of a given shape
`vectors`     shapes as vectors of integers, whose elements are followed one by one
============= ======================================================================================
"""
