"""What training does when something goes wrong.

=============== ====================================================================================
`case`          what the client of a run is told
`client`        a training that faults disturb
`jobs`          jobs that faults disturb, and what plain TensorFlow makes of them on one device
`growth`        does memory grow with steps and sessions?
`malformed`     is everything that is malformed refused, by one clear error?
`memory_worker` a worker that tells what memory it has in use
`mutations`     malformed texts, made from a seed out of well-formed ones
`snapshots`     what do snapshots cost that training goes on from?
`runs`          does training end as if nothing had happened, whatever fault comes?
=============== ====================================================================================
"""
