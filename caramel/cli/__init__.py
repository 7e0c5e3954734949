"""The command `caramel`: one file for each of its commands.

============== =====================================================================================
`certificates` what ``caramel certificates`` does: for workers that strangers do not reach
`clusters`     clusters as options of commands describe them
`doctor`       what ``caramel doctor`` does: says what this machine has for Caramel, and what to
               change
`hosts`        ``caramel run --hosts``: workers by ssh, for as long as a program runs
`main`         the command ``caramel``; see ``caramel --help``
`profile`      what ``caramel profile`` does: measures, shows how far it is, and shows what came out
`run`          the command ``caramel run``: starts a program again when it has crashed
`simulate`     what ``caramel simulate`` does: reads what is to be simulated, and how a job scales
               there
`trace`        what ``caramel trace`` does: runs steps of a job, and shows what every worker did
               when
`user_job`     the job that a command of the command line works on: made by a function in a module
               of the user
`worker`       ``caramel worker``: a process with one of TensorFlow's servers
============== =====================================================================================
"""
