"""From facts to a plan.

===================== ===========================================================================
`plain`               every gradient is aggregated by itself when it appears
`serialize`           which control edges let gradients get ready in one order?
`fit`                 does a plan that was made elsewhere fit the job?
===================== ===========================================================================
"""
