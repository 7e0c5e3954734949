"""From facts to a plan.

===================== ===========================================================================
`plain`               every gradient is aggregated by itself when it appears
`options`             what may a user choose?
`choose`              which plan, from the facts that are there?
`search`              which plan is predicted to be the fastest? `candidate`: a plan that it tries;
                      `grouping`: candidates of a job; `family`: where it starts; `improve`: how it
                      goes on; `neighbours`: candidates that differ by a change
`split`               into which parts are large gradients split?
`paper`               the plan of the Caramel paper; `batching`, `packing`, `depth`, `pattern` and
                      `gates` answer its questions
`serialize`           which control edges let gradients get ready in one order?
`deferral`            what moves into the next step with deferred gradients?
`hold`                which updates have to wait until every worker has read its inputs?
`complete`            a plan with what follows from its groups
`outline`             planning without a graph, from what a profile says of a job
`fit`                 does a plan that was made elsewhere fit the job?
===================== ===========================================================================
"""
