"""Programs that measure Caramel, and what they stand on; run them from the repository.

| file       | what                                                                             |
|------------|----------------------------------------------------------------------------------|
| `networks` | the papers' networks, in plain TensorFlow                                        |
| `testbed`  | several hosts with a real, rate-limited network, on one machine                  |
"""
