"""In which v1 loop frame is each op?

Frames are opened by ``Enter`` and closed by ``Exit``; everything between is inside.
"""

from __future__ import annotations

from caramel.facts import LoopFrames
from caramel.graph import OpGraph

ROOT = ""


def loop_frames(graph: OpGraph) -> LoopFrames:
    """The frame of each op, as a path of ``Enter`` ops' names; the root frame is ''.

    Ops of one loop need not carry the same name here: what matters is whether an op is inside a
    loop, and how deep. The frame is named after the first ``Enter`` that leads into it.
    """
    frame: dict[str, str] = {}
    for name in graph.topological_order():
        op = graph[name]
        around = max((frame.get(source, ROOT) for source in op.sources), key=_depth, default=ROOT)
        if op.kind == "Enter":
            frame[name] = f"{around}/{name}" if around else name
        elif op.kind == "Exit":
            frame[name] = ROOT
        else:
            frame[name] = around
    return LoopFrames(frame)


def _depth(frame: str) -> int:
    return len(frame)
