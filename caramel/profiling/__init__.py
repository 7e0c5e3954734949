"""Measuring beforehand: what ops take on one device, and what a network carries.

In come a job or a cluster; out come measurements and timings for a profile.

========= ==========================================================================================
`network` measures what aggregations take on a real cluster (Caramel paper, section 4.2)
`ops`     traces steps of the single-device job: how long does each op take (Caramel paper, section
          4.1)?
========= ==========================================================================================
"""
