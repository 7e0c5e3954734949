"""What training does when something goes wrong.

=========== ========================================================================================
`malformed` is everything that is malformed refused, by one clear error?
`mutations` malformed texts, made from a seed out of well-formed ones
=========== ========================================================================================
"""
