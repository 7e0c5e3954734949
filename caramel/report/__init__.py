"""What people look at: tables, pages, pictures. None of it needs TensorFlow.

In come explanations, timelines and predictions; out come text, HTML, SVG and JSON.

================== =================================================================================
`columns`          tables by columns, on the terminal and on pages, without columns that have no
                   entry
`curves`           shows how a job scales: a table for each network, and a picture with a curve for
                   each
`drawing`          draws timelines: what every worker computes, adds up, sends and receives, over
                   milliseconds
`layout`           where the spans of timelines go in a picture or a viewer
`markup`           HTML elements from Python: text is escaped unless it is `Markup`, which only this
                   file makes
`memory_lane`      the memory that a device needs over a step, as a lane of its picture: predicted
                   and measured
`page`             an explanation as one HTML file that needs nothing else: no network, no other
                   file
`page_groups`      the page's table of groups: size, window, pattern, depth, place and reason of
                   each, and when
`page_parts`       parts that pages are made of: sections, tiles with a figure, rows with a bar,
                   tables
`page_placed`      what a page tells of a step that is spread over several devices
`perfetto`         timelines as JSON in the Trace Event Format, for ui.perfetto.dev and
                   chrome://tracing
`plan_table`       prints a plan as a table: what is aggregated together, when, how, and why
`progress`         shows what the library is doing while that takes long: live on a terminal, in
                   lines elsewhere
`saved`            timelines as files that people look at: a picture, or JSON for a viewer
`shown`            an explanation that people look at: printed, in a notebook, or as a page of its
                   own
`shown_order`      an explanation of an order of transfers that people look at: printed, or as a
                   page
`table`            an explanation as tables for the terminal
`table_placed`     an explanation of a step that is spread over several devices, likewise
`timeline_picture` the timeline picture of a page: what every worker does, predicted above measured,
                   as SVG
`units`            times and ratios as short text for people: three digits and a unit
`words`            what an explanation calls what it is about: groups between workers, or transfers
                   from servers; and what its figures mean
================== =================================================================================
"""
