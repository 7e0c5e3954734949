"""Which plan does the next step: trials, drift, and plans that cannot run.

================ ===================================================================================
`controller`     which plan does the next training step? One of a session's plans, or each in its
                 turn
`controllers`    which controller does a step? There is one for each step of a job, and for each
                 joint one
`drift`          when does a running job measure itself and plan again?
`kept_variables` the variables as they were before a step that may be given up
`metrics`        what a session can tell of itself, as plain data
`probation`      no plan can stop a job: the first steps of a new plan are given up if they never
                 end
`settings`       what a user says of how a session chooses between plans, plans anew, and looks for
                 stalls
`trials`         which of several plans is the fastest? Tried in turn, during the first steps of
                 training
================ ===================================================================================
"""
