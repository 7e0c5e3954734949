"""In which v1 loop frame is each op?

Frames are opened by ``Enter`` and closed by ``Exit``; everything between is inside.
"""

from __future__ import annotations

from caramel.core import op_types
from caramel.core.errors import PlanError
from caramel.core.facts import LoopFrames
from caramel.core.graph import OpGraph
from caramel.core.names import TensorRef

ROOT = ""


def loop_frames(graph: OpGraph) -> LoopFrames:
    """The frame of each op, as a path of ``Enter`` ops' names; the root frame is ''.

    Ops of one loop need not carry the same name here: what matters is whether an op is inside a
    loop, and how deep. The frame is named after one of the ``Enter`` ops that lead into it.
    """
    frame: dict[str, str] = {}
    outside: dict[str, str] = {}  # each frame's surrounding frame

    def depth(name: str) -> int:
        return 1 + depth(outside[name]) if name else 0

    for name in graph.topological_order():
        op = graph[name]
        # Constants and loop invariants may come from further outside.
        around = max((frame.get(source, ROOT) for source in op.sources), key=depth, default=ROOT)
        frame[name] = around
        if op.kind == "Enter":
            frame[name] = f"{around}/{name}" if around else name
            outside[frame[name]] = around
        elif op.kind == "Exit":
            frame[name] = outside.get(around, ROOT)
    return LoopFrames(frame)


def outermost(graph: OpGraph, frames: LoopFrames, name: str, handle: TensorRef) -> str:
    """The op that is to wait where an op uses a variable: outside of all loops.

    No control edge leads into a loop. So where the op is in one, it is the op that brings the
    variable into the outermost loop.

    Args:
        name: the op.
        handle: as which of its inputs it takes the variable's handle.

    Raises:
        PlanError: the op does not get the variable through the border of the loop.
    """
    source = handle.op
    while frames.frame.get(name, ROOT):
        if graph[source].kind not in op_types.PASS_THROUGH:
            raise PlanError(
                f"'{name}' touches a variable inside a loop in a way that cannot be delayed"
            )
        name = source
        source = graph[name].inputs[0].op
        if graph[name].kind == "Enter" and not frames.frame.get(source, ROOT):
            break
    return name
