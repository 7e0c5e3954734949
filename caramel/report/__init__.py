"""Reports: what people see of plans and steps. None of them needs TensorFlow.

| file                  | what it makes                                                      |
|-----------------------|--------------------------------------------------------------------|
| `table.py`            | an explanation of a plan, as tables for the terminal               |
| `page.py`             | the same as one HTML file; `page.css` and `page.js` are part of it |
| `shown.py`            | an explanation that shows itself as either                         |
| `page_groups.py`      | its table of groups                                                |
| `timeline_picture.py` | its picture of what every worker does                              |
| `perfetto.py`         | timelines as JSON for ui.perfetto.dev and chrome://tracing         |
| `curves.py`           | how a job scales: tables for the terminal, and a picture           |
| `drawing.py`          | timelines as a picture: SVG, or a file drawn by matplotlib         |
| `saved.py`            | timelines as a file: a picture, or JSON                            |
| `layout.py`           | where spans go in those: steps, lanes, and thin spans together     |
| `markup.py`           | HTML elements, with all text escaped                               |
| `units.py`            | times, sizes and ratios as text                                    |
"""
