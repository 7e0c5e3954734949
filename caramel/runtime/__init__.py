"""What happens while it trains.

In come a distributed graph with one plan or several, and a cluster; out come the results of steps,
variables, checkpoints, traces and metrics. `session` is what users hold.

================== =================================================================================
`batch_evaluation` evaluates batches on all workers, without training: each worker computes its part
                   of a batch
`checkpoint`       checkpoints in TensorFlow's own format, written so that an interruption never
                   loses the last one
`checkpoint_index` the index file of a checkpoint: how many data files does it say there are?
`checkpoints`      the checkpoints of a session: written at once, or beside its next steps
`control/`         which plan does the next step: trials, drift, and plans that cannot run
`course`           how far training is, also over several runs of a program
`device_check`     are the devices there that a job asks for, and what runs elsewhere?
`evaluation`       runs part of the graph once, without training
`execution/`       parts of the distributed graph on the cluster: compiled once, called many times,
                   never in silence
`inheritance`      what a session takes over from another one with the same parameter servers
`job`              what a model hands to its sessions: each step of the job, and who gives it plans
`pipeline_elements` reads input pipelines of the graph to their ends, element by element, to
                   evaluate them
`preemption`       saves a checkpoint when the process is told to end by SIGTERM, and ends it
`saved_progress`   where training was when a checkpoint was written
`recovery/`        goes on after the loss of workers, unseen by the user's loop
`resuming`         where a program goes on that was started again
`remains`          which variables are left when workers are lost? Each worker has a replica of
                   most of them
`rescue`           the variables of a session that has lost workers, from those that are left
`rotation`         which checkpoints of a series stay: the newest ones, and now and then one for
                   good
`running_job`      what a session works with while it is open: workers, variables, and what does the
                   steps
`saving`           variables into a checkpoint, and back
`session`          what a running job can be asked to do: training steps, evaluation, variables,
                   checkpoints
`session_life`     a session's life: how it is opened, what it tells of itself, and how it ends
`stalls/`          steps that take too long: what do they wait for?
`steps/`           one training step of a plan: what is fed, fetched, put together, and left for the
                   next step
`summaries`        numbers of training steps, written for TensorBoard: losses, times, bytes on the
                   wire
`traces/`          from what TensorFlow traced to times of ops and timelines of steps
`training`         training steps: what is given is checked and split, done by a controller, and put
                   together
`turns`            the public methods of an object take turns: one is done before that of another
                   thread begins
`variables`        the variables that all plans of a session work on: initialised, read, broadcast,
                   merged
`work`             how a session lets things be done on its workers: once, or again after each loss
                   of a worker
`worker_copies`    what workers evaluate with, beside the evaluation copy: made when it is first
                   asked for
`writer`           writes files beside training: one thing at a time
================== =================================================================================
"""
