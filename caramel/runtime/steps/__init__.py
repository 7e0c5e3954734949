"""One training step of a plan: what is fed, fetched, put together, and left for the next step.

=================== ================================================================================
`combine_results`   makes one result of what the workers of a step returned
`deferred`          runs steps whose deferred part is still to come: the programs fresh, steady and
                    flush
`deferred_fetches`  which fetches of a step cannot be had from a plan that defers part of it?
`entries`           does a loss average over the entries of a sparse or ragged value, in place of
                    its rows?
`exchangeable`      which tensors can be exchanged with the user's program? Not handles of what
                    lives on a worker
`factor_comparison` do all workers compute the same bits from the same factors? Compared now and
                    then
`feeds`             splits what is fed to a step over the workers, and refuses what does not fit
                    before it runs
`marks`             how far has a running step come? Reads the marks that a plan's steps leave on
                    the workers
`missing_feeds`     is every placeholder fed that is needed?
`plan_executor`     runs the training steps of one plan: what they fetch and feed, and what of them
                    is done later
`scaled_results`    from scalars of the workers to that of the whole batch: what to fetch besides,
                    and how to add
`step_result`       what a step is asked for, and what it returned
`user_feeds`        what a user feeds, by tensor or name: found in the graph, with what is known of
                    each
`user_fetches`      what a user fetches: tensors, operations or names in any structure, and back
                    into that
=================== ================================================================================
"""
