"""Where are the raw gradients: the tensors that are aggregated between the workers?

========== =========================================================================================
`calls`    does one call of a function give the loss and gradients, too?
`frontier` where does differentiation end and post-processing begin?
`proven`   raw gradients among the tensors that are proven to be sums over the examples
`regions`  a training step taken apart: the loss, differentiation, and what lies behind it
`roles`    what may the tensors before an update be of the gradient of a parameter?
`search`   the cheapest tensors that separate differentiation from the updates of the parameters
`seeded`   raw gradients among the tensors that are linear in the seed of differentiation
`seeds`    from which constants does differentiation start, and what depends on them?
`wider`    the search for raw gradients where more is known of tensors than how they lie
========== =========================================================================================
"""
