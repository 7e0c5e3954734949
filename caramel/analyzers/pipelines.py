"""Where are the input pipelines of the step split into shards?

Each worker reads every n-th element of a `tf.data` pipeline, beginning at its own number. Elements
have to be counted at a place where all workers see the same ones in the same order: behind ops that
take elements by position (``skip``, ``take``, a ``shard`` of the user's own) or make many out of
one (``flat_map``, ``interleave``), and before a shuffle without a seed. As early as that allows, so
that a worker does not transform what it drops.
"""

from __future__ import annotations

from caramel import kinds
from caramel.access import handle_of
from caramel.errors import InputPipelineError
from caramel.facts import InputPipelines, Pipeline, TrainingJob
from caramel.graph import Op, OpGraph
from caramel.names import TensorRef

_BY_POSITION = frozenset(
    {
        "SkipDataset",
        "TakeDataset",
        "TakeWhileDataset",
        "ScanDataset",
        "WindowDataset",
        "WindowDatasetV2",
        "ShardDataset",
        "UniqueDataset",
        "ZipDataset",
        "DirectedInterleaveDataset",
        "ConcatenateDataset",
        "SlidingWindowDataset",
        "RebatchDataset",
        "SamplingDataset",
    }
)
_MANY_FROM_ONE = frozenset(
    {
        "FlatMapDataset",
        "InterleaveDataset",
        "ParallelInterleaveDataset",
        "ParallelInterleaveDatasetV2",
        "ParallelInterleaveDatasetV3",
        "ParallelInterleaveDatasetV4",
        "FilterDataset",
        "ParallelFilterDataset",
        "UnbatchDataset",
    }
)
_MAKE_ITERATOR = "MakeIterator"


def input_pipelines(graph: OpGraph, job: TrainingJob) -> InputPipelines:
    """Where the pipelines of the step are split, and which tensor tells a worker's examples.

    Raises:
        InputPipelineError: a pipeline cannot be split into disjoint and complete shards, or the
            step reads an iterator chosen by a handle that is fed.
    """
    step = graph.ancestors([job.train_op, job.loss.op])
    reads = [op for op in graph if op.name in step and op.kind in kinds.ITERATOR_READS]
    iterators = tuple(dict.fromkeys(handle_of(graph, op.inputs[0]) for op in reads))
    for iterator in iterators:
        if graph[iterator].kind.startswith("IteratorFromStringHandle"):
            raise InputPipelineError(
                f"the step reads an iterator through the string handle of '{iterator}', which "
                "names an iterator of one process only; read an initializable iterator instead"
            )
    points: dict[str, Pipeline] = {}
    for op in graph:
        if op.kind != _MAKE_ITERATOR or handle_of(graph, op.inputs[1]) not in iterators:
            continue
        iterator = handle_of(graph, op.inputs[1])
        for source in _split_points(graph, graph[op.inputs[0].op]):
            tensor = TensorRef(source)
            readers = tuple(n for n in graph.consumers[source] if tensor in graph[n].inputs)
            points[source] = Pipeline(iterator, source, readers)
    fed = any(
        graph[name].kind in kinds.PLACEHOLDERS
        and name not in job.replicated_feeds
        and bool(graph[name].outputs[0].shape)
        for name in step
    )
    examples, fixed = (None, None) if fed else _examples(reads)
    return InputPipelines(tuple(points.values()), examples, fixed, iterators)


def _examples(reads: list[Op]) -> tuple[TensorRef | None, int | None]:
    """The first tensor read that has a first dimension, or that dimension if it is fixed."""
    for op in reads:
        for index, spec in enumerate(op.outputs):
            if spec.shape and spec.dtype not in ("variant", "resource"):
                fixed = spec.shape[0]
                return (TensorRef(op.name, index), None) if fixed is None else (None, fixed)
    return None, None


def _split_points(graph: OpGraph, dataset: Op) -> list[str]:
    """The datasets behind which shards are taken, looking from `dataset` towards the sources."""
    inputs = _dataset_inputs(graph, dataset)
    if not inputs:
        return [dataset.name]
    unordered = _unordered(graph, dataset)
    if dataset.kind in _BY_POSITION | _MANY_FROM_ONE and unordered is None:
        return [dataset.name]
    if dataset.kind in _BY_POSITION:
        raise InputPipelineError(
            f"'{dataset.name}' ({dataset.kind}) takes elements by position from '{unordered}', "
            "which puts them in another order on every worker, so shards would overlap; give the "
            "shuffle a seed, or shuffle afterwards"
        )
    return list(dict.fromkeys(name for op in inputs for name in _split_points(graph, op)))


def _dataset_inputs(graph: OpGraph, dataset: Op) -> list[Op]:
    """The datasets that a dataset op reads."""
    sources = [graph[t.op] for t in dataset.inputs if graph.spec(t).dtype == "variant"]
    return [op for op in sources if "Dataset" in op.kind or op.kind in kinds.PASS_THROUGH]


def _unordered(graph: OpGraph, dataset: Op) -> str | None:
    """A shuffle without a seed in `dataset` or before it, or None."""
    if "Shuffle" in dataset.kind and _without_seed(graph, dataset):
        return dataset.name
    found = (_unordered(graph, source) for source in _dataset_inputs(graph, dataset))
    return next((name for name in found if name is not None), None)


def _without_seed(graph: OpGraph, shuffle: Op) -> bool:
    """Whether both seeds of a shuffle are the constant 0, which asks for a random one."""
    seeds = [tensor.op for tensor in shuffle.inputs[2:4]]
    return all(graph.constants.get(seed) == 0 for seed in seeds)
