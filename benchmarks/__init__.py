"""Programs that measure Caramel, and what they stand on; run them from the repository.

| file          | what                                                                          |
|---------------|-------------------------------------------------------------------------------|
| `step`        | time of a training step, beside peers; how it is predicted                    |
| `order`       | in how many orders transfers arrive                                           |
| `scale`       | how building and opening a job grow with its workers                          |
| `held`        | what each device of a placed model holds in a step                            |
| `search`      | how near to the bound plans are predicted to be, and what planning takes      |
| `ps`          | orders of what workers receive from parameter servers                         |
| `overhead`    | what a session's step costs                                                   |
| `protection`  | what it costs that strangers stay outside                                     |
| `faults`      | what training does when something goes wrong                                  |
| `networks`    | the papers' networks, in plain TensorFlow                                     |
| `emulate`     | accelerators without a GPU: computation replaced by timed waits               |
| `peers`       | other systems, trained side by side with Caramel                              |
| `testbed`     | several hosts with a real, rate-limited network, on one machine               |
| `wire`        | the least time in which aggregated bytes can be sent                          |
| `workers`     | Caramel workers on the hosts of a test bed                                    |
| `environment` | what processes that are measured find in their environment                    |
| `pieces`      | benchmarks that are run some networks at a time, into one file                |
| `results`     | samples, statistics, and the files that keep them                             |
| `document`    | the tables of docs/benchmarks; `when`: when they were measured                |
| `tables`      | those of benchmarks that are no suites                                        |

Files named `..._client` run where TensorFlow is loaded, most of them in a process of their own.
"""
