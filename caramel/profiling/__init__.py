"""Measuring beforehand: what ops take on one device, and what a network carries.

In come a job or a cluster; out come measurements, timings and a calibration for a profile.

============= ======================================================================================
`calibration` measures on this machine, in some seconds, what transfers cost it
              (`core.calibration`)
`gain`        what several workers bring: their step beside that of one worker, and what other
              machines would bring
`network`     measures what aggregations take on a real cluster (Caramel paper, section 4.2)
`ops`         traces steps of the single-device job: how long does each op take (Caramel paper,
              section 4.1)?
`series`      kinds of steps that are timed in turns, so that a slow moment does not hit one of them
              alone
============= ======================================================================================
"""
