"""Is every placeholder fed that is needed?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from caramel.capture.context import Context
from caramel.core import op_types
from caramel.core.errors import FeedError
from caramel.core.names import TensorRef


class MissingFeeds:
    """Remembers what was found complete: most steps fetch and feed the same."""

    def __init__(self) -> None:
        self._complete: set[tuple[int, tuple[str, ...], frozenset[str]]] = set()

    def check(self, context: Context, wanted: Sequence[str], fed: Iterable[TensorRef]) -> None:
        """Raise unless every placeholder that is needed is fed.

        Args:
            context: whose graph it is; lives as long as this object.
            wanted: the ops that are to run.
            fed: the tensors that are fed.

        Raises:
            FeedError: something is missing; names it.
        """
        given = frozenset(tensor.op for tensor in fed)
        key = (id(context), tuple(wanted), given)
        if key in self._complete:
            return
        needed = context.op_graph.ancestors(wanted, stop=given) - given
        missing = [
            name
            for name in context.op_graph.ops
            if name in needed and context.op_graph[name].kind in op_types.WITHOUT_DEFAULT
        ]
        if missing:
            raise FeedError("nothing is fed for " + ", ".join(f"'{name}:0'" for name in missing))
        self._complete.add(key)
