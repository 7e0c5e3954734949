"""The emulated computation of a step, layer by layer, for a peer that has no TensorFlow.

A layer begins with each parameter of two or more dimensions; those of one dimension that follow it
(bias, scale) belong to it. Its forward time is that of the ops which its parameters' readers wait
for and no earlier layer does; the last layer's includes the loss. Its backward time is that of the
ops which its gradients wait for and no later layer's do.

What is lost: parallel branches become a sequence, and the gradients of a layer appear together.
Times are not joined to a grain as TensorFlow's waits are; some layers take microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.emulate.region import Computation, computation
from benchmarks.peers.data import Kernel
from caramel import Context


def layers_of(context: Context, seconds: Mapping[str, float]) -> list[Kernel]:
    """The layers in forward order; the sum of their times is that of `seconds`.

    Args:
        context: the job for one device.
        seconds: what each op of its computation takes.
    """
    found = computation(context)
    readers = _readers(context, found)
    layers = _layers(context, list(readers))
    gradients = {cut.gradient.parameter: cut.gradient.values.op for cut in found.cuts}
    assigned: set[str] = set()

    def take(names: Iterable[str]) -> float:
        behind = found.graph.ancestors(names, stop=frozenset(assigned)) - assigned
        assigned.update(behind)
        return sum(seconds.get(name, 0.0) for name in behind)

    forward = [take(readers[parameter] for parameter in layer) for layer in layers]
    forward[-1] += take([context.job.loss.op])
    backward = [take(gradients[parameter] for parameter in layer) for layer in reversed(layers)][
        ::-1
    ]
    backward[0] += take(found.order)
    shapes = [tuple(_shape(context, parameter) for parameter in layer) for layer in layers]
    return [Kernel(*layer) for layer in zip(shapes, forward, backward, strict=True)]


def _shape(context: Context, parameter: str) -> tuple[int, ...]:
    return tuple(size or 0 for size in context.job.variable(parameter).spec.shape or ())


def _readers(context: Context, found: Computation) -> dict[str, str]:
    """The op that is the first to read each parameter, in the order of these ops."""
    names = {variable.handle: variable.name for variable in context.job.variables}
    trained = {variable.name for variable in context.job.variables if variable.trainable}
    readers: dict[str, str] = {}
    for op in found.order:
        links = found.links.get(op)
        for tensor in links.tensors if links else ():
            for handle in found.graph.ancestors([tensor.op]) & names.keys():
                if names[handle] in trained:
                    readers.setdefault(names[handle], op)
    return readers


def _layers(context: Context, parameters: Sequence[str]) -> list[list[str]]:
    layers: list[list[str]] = []
    for parameter in parameters:
        if not layers or len(_shape(context, parameter)) > 1:
            layers.append([])
        layers[-1].append(parameter)
    return layers
