"""How long does it take to aggregate one tensor, and how near is that to the wire limit?

Time against size, pattern, depth, workers and peers, as in Figures 4c, 13 and 14 of the Caramel
paper: ``python -m benchmarks allreduce``.

| file       | what is in it                                                                     |
|------------|-----------------------------------------------------------------------------------|
| `settings` | what is measured, full and quick; the wire limit                                  |
| `systems`  | Caramel and each peer: how its processes are started, and what they run           |
| `member`   | what all these processes have in common: they do what the measuring process says  |
| `group`    | the processes of one system, seen from the measuring process                      |
| `hosts`    | what the hosts have sent and how busy the processors were                         |
| `validity` | which rows count                                                                  |
| `driver`   | measures everything, all systems in turn                                          |
| `report`   | the table; `markdown`: for docs/benchmarks; `drawing`: figures                 |
"""
