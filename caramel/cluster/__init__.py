"""Who computes, who serves, and how processes start.

In comes what users and launchers say (hosts, `TF_CONFIG`, Slurm, MPI, torchrun, Kubernetes); out
come a `Cluster`, and processes of workers and parameter servers with a server each, set up for
large messages.

============== =====================================================================================
`addresses`    the form of addresses, ``host:port``, alone and as those of a job's tasks
`by_ssh`       workers that ssh starts on hosts, and that end with this process
`client_relay` how a program reaches workers that are protected: by a relay of its own
`cluster`      who computes and who serves, where they listen, and how to find out
`grpc_tuning`  a process is woken when a message is there, not for each packet of it
`hosts`        machines on which workers are started: how a text names them
`joining`      a worker that is started by a command on another machine, and learns from that who it
               is
`kubernetes`   indexed jobs of Kubernetes: pods whose names differ in their index only
`launch`       a job as its launcher describes it, and how numbers in descriptions are read
`launchers`    what the launcher of a job says about it: who asks whom, `TF_CONFIG`, Slurm's
               variables, MPI
`local_tasks`  the processes of `Cluster.local`: one for each task, on ports of this machine
`onednn_check` does TensorFlow compute with oneDNN on this machine?
`parsing`      workers as one text describes them, on a command line or in a file
`piped`        a program that one speaks with through pipes, in lines
`probes`       who listens at an address?
`processes`    a group of child processes that cannot outlive the process that started it
`protected`    a worker or parameter server that only those with a certificate reach
`quiet_start`  keeps TensorFlow's start-up messages out of a program's errors
`restarts`     how often something that has ended is started again, and after which time
`servers`      TensorFlow's servers: those inside this process, and the one a worker process runs
`tasks`        the tasks of a job: what users may say of them, and what is made of it
`tcp_check`    does this machine's TCP suit aggregation?
`torchrun`     jobs that torchrun started, or that set its variables: ranks that know where rank 0
               is
============== =====================================================================================
"""
