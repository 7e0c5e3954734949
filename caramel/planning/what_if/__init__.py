"""What a plan brings, what bounds it, and how a job would scale: answered by simulating variations.

========= ==========================================================================================
`explain` why does a step take as long as it does, and what would help? Answered by simulating
          variations
`limits`  what is a step limited by? Each resource in turn is made free; the one that saves most is
          it
`scaling` how does a job scale? Its step on given hardware, without a plan and with one, by
          simulation
`served`  how would a job do with parameter servers? Its step with some servers, by simulation
========= ==========================================================================================
"""
