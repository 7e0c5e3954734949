"""Programs that measure Caramel, and what they stand on; run them from the repository.

| file        | what                                                                            |
|-------------|---------------------------------------------------------------------------------|
| `allreduce` | time to aggregate one tensor (``python -m benchmarks allreduce``)               |
| `networks`  | the papers' networks, in plain TensorFlow                                       |
| `emulate`   | accelerators without a GPU: computation replaced by timed waits                 |
| `peers`     | other systems, trained side by side with Caramel                                |
| `testbed`   | several hosts with a real, rate-limited network, on one machine                 |
| `workers`   | Caramel workers on the hosts of a test bed                                      |
| `results`   | samples, statistics, and the files that keep them                               |
"""
