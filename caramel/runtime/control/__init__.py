"""Which plan does the next step: trials, drift, and plans that cannot run.

================ ===================================================================================
`controller`     which plan does the next training step? One of a session's plans, or each in its
                 turn
`controllers`    which controller does a step? There is one for each step of a job, and for each
                 joint one
`drift`          when does a running job measure itself and plan again?
`executors`      the executors of a session's plans, each made when its plan is first asked for
`kept_variables` the variables as they were before a step that may be given up
`metrics`        what a session can tell of itself, as plain data
`payback`        when do trials pay? Training pauses while the graphs of plans are made, and gains
                 afterwards
`phases`         what a controller does with the next steps: leaves them to one plan, traces them,
                 waits with plans until they pay, or tries them
`probation`      no plan can stop a job: the first steps of a new plan are given up if they never
                 end
`settings`       what a user says of how a session chooses between plans, plans anew, and looks for
                 stalls
`step_times`     how many steps were done, and how long the last ones took
`trials`         which of several plans is the fastest? Tried in turn, during the first steps of
                 training
================ ===================================================================================
"""
