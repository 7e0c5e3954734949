"""Steps that take too long: what do they wait for?

=========== ========================================================================================
`diagnosis` what does a late step wait for? Decided from the marks that its groups have left on the
            workers
`watchdog`  looks into steps that take too long while they run, and says what they wait for
=========== ========================================================================================
"""
