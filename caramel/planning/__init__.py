"""From facts to a plan.

===================== ===========================================================================
`plain`               every gradient is aggregated by itself when it appears
`fit`                 does a plan that was made elsewhere fit the job?
===================== ===========================================================================
"""
