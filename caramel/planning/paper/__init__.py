"""The plan of the Caramel paper (sections 4.2 to 4.4).

========== =========================================================================================
`batching` which gradients are aggregated together? Caramel paper, section 4.2
`packing`  when does each group go, and which wait for the next step? Caramel paper, section 4.3
`plan`     the plan of the Caramel paper: batching, transfer scheduling, adaptive depth (sections
           4.2-4.4)
========== =========================================================================================
"""
