"""What users look at: timelines in viewers and as pictures. Nothing here needs TensorFlow.

=============== ================================================================================
`layout`        where spans go: steps one after the other, lanes, and thin spans together
`perfetto`      timelines as JSON for ui.perfetto.dev and chrome://tracing
`drawing`       timelines as a picture: SVG for a page, or a file drawn by matplotlib
=============== ================================================================================
"""
