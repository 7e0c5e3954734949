"""Goes on after the loss of workers, unseen by the user's loop.

============ =======================================================================================
`bequest`    what a client that was killed has left on workers that go on, for the next one to go on
             from
`kept_calls` what was asked for since the last snapshot, so that it can be done again
`left_behind` what clients that are gone have left on workers: the snapshots there, the newest first
`members`    which workers take part: who is there after a loss, who is started again, and who comes
             back
`pace`       when is it time for another snapshot?
`positions`  how far input pipelines are, so that another session can go on with their next elements
`record`     what happened when a session went on after a loss, as plain data
`restarts`   how often may a session try to go on?
`settings`   what a user says of how a session survives the loss of workers
`snapshots`  the snapshots of a session: taken on the workers, found there again, and put back
`supervised` goes on after the loss of workers, unseen by whoever asks for steps
============ =======================================================================================
"""
