"""The search for raw gradients where more is known of tensors than how they lie.

An update that reads a value of the worker's own beside gradients is refused here: what is a
gradient is known.
"""

from __future__ import annotations

from caramel.analyzers.gradients.roles import parameters_of
from caramel.analyzers.gradients.search import Search, advice, listed
from caramel.core.errors import AmbiguousGradientError
from caramel.core.facts import Variable
from caramel.core.names import TensorRef


class WiderSearch(Search):
    """Finds a cut among the tensors of which a subclass accepts some."""

    def _obstacle(self, tensor: TensorRef) -> str | None:
        """An op before a tensor because of which the tensor is not accepted."""
        return None

    def _bypassed(self, sink: str, tensor: TensorRef) -> None:
        """Raise because a value that an update reads is neither a gradient nor computed from some.

        Raises:
            AmbiguousGradientError: names the parameter, its candidates, and what to write.
        """
        parameter = self._job.variable(parameters_of(self._access, self._regions.serves, sink)[0])
        alike = self._alike(tensor, parameter)
        likely = [each for each in alike if self._obstacle(each) is None]
        why = f"'{tensor}', which '{sink}' reads, differs between workers in another way, too"
        if obstacle := self._obstacle(tensor):
            why = f"'{obstacle}' ({self._graph[obstacle].kind}), before '{sink}', is not linear"
        raise AmbiguousGradientError(
            f"cannot tell what the raw gradient of '{parameter.name}' is: {why}; candidates are "
            f"{listed(alike)}; {advice(parameter.name, (likely or alike)[-1:])}"
        )

    def _alike(self, tensor: TensorRef, parameter: Variable) -> list[TensorRef]:
        """Tensors of a parameter's dtype and shape that a tensor is computed from, in order."""
        behind = self._graph.data_ancestors([tensor.op], stop=self._regions.forward)
        return [
            TensorRef(name, index)
            for name in self._graph.ops
            if name in behind and (name in self._regions.core or name in self._regions.tail)
            for index, spec in enumerate(self._graph[name].outputs)
            if spec == parameter.spec
        ]
