"""The aggregation of raw gradients between the workers, by ordinary ops.

=============== ====================================================================================
`aggregate`     aggregates the raw gradients between the workers, by ordinary ops
`dense`         the aggregation of dense tensors: laid side by side, split, summed by a pattern,
                taken apart
`factors`       the aggregation of a gradient that every worker computes from the factors of all
                workers
`results`       where a worker has what is read in place of its raw gradients
`sparse`        the aggregation of a sparse gradient: rows gathered, or whole matrices added up
`split`         gradients that are split into parts: taken apart, and joined when all parts are
                aggregated
`worker_writer` writes the nodes of aggregations; what all groups of a worker need is written once
=============== ====================================================================================
"""
