"""Where are the input pipelines of the step split into shards?

Each worker reads every n-th element of a `tf.data` pipeline, beginning at its own number. Elements
have to be counted at a place where all workers see the same ones in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from caramel.core import op_types
from caramel.core.errors import InputPipelineError
from caramel.core.facts import InputPipelines, Pipeline, TrainingJob
from caramel.core.graph import Op, OpGraph
from caramel.core.names import TensorRef
from caramel.core.variable_access import handle_of

# Ops that take elements by their position, or make others of several neighbours.
_BY_POSITION = frozenset(
    {
        "AssertCardinalityDataset",
        "RebatchDataset",
        "RebatchDatasetV2",
        "SamplingDataset",
        "ScanDataset",
        "ShardDataset",
        "SkipDataset",
        "SlidingWindowDataset",
        "TakeDataset",
        "TakeWhileDataset",
        "UniqueDataset",
        "WindowDataset",
        "WindowDatasetV2",
        "ZipDataset",
    }
)
_CHOOSES_BETWEEN_DATASETS = "DirectedInterleaveDataset"  # by its first input, the selector
# Ops that make any number of elements out of one, or join datasets.
_ANY_NUMBER = frozenset(
    {
        "ConcatenateDataset",
        "FilterDataset",
        "FlatMapDataset",
        "InterleaveDataset",
        "ParallelFilterDataset",
        "ParallelInterleaveDataset",
        "ParallelInterleaveDatasetV2",
        "ParallelInterleaveDatasetV3",
        "ParallelInterleaveDatasetV4",
        "UnbatchDataset",
        _CHOOSES_BETWEEN_DATASETS,
    }
)
# Ops for which the values of elements decide which elements there are, or in which order.
_BY_VALUE = (_ANY_NUMBER - {"ConcatenateDataset"}) | {
    "GroupByReducerDataset",
    "GroupByWindowDataset",
    "TakeWhileDataset",
    "UniqueDataset",
}
_RANDOM_SOURCES = frozenset({"RandomDataset", "RandomDatasetV2"})
_MAKE_ITERATOR = frozenset({"MakeIterator"})
_CREATE_ITERATOR = frozenset({"Iterator", "IteratorV2"})
_UNKNOWN_ITERATORS = frozenset({"IteratorFromStringHandle", "IteratorFromStringHandleV2"})


def input_pipelines(graph: OpGraph, job: TrainingJob) -> InputPipelines:
    """Where the pipelines of the step are split, and which tensor tells a worker's examples.

    Raises:
        InputPipelineError: a pipeline cannot be split into disjoint and complete shards; the step
            reads an iterator whose pipeline is not in the graph; or the numbers of examples cannot
            be known.
    """
    step = graph.ancestors([job.train_op, job.loss.op])
    iterators = tuple(_iterators(graph, step))
    points: dict[str, Pipeline] = {}
    for iterator in iterators:
        for dataset in _datasets_of(graph, iterator):
            for source in _split_points(graph, dataset):
                tensor = TensorRef(source)
                readers = tuple(n for n in graph.consumers[source] if tensor in graph[n].inputs)
                points[source] = Pipeline(iterator, source, readers)
    fed = any(
        graph[name].kind in op_types.PLACEHOLDERS
        and name not in job.replicated_feeds
        and bool(graph[name].outputs[0].shape)
        for name in step
    )
    examples, fixed = (None, None) if fed or not iterators else _examples(graph, step)
    return InputPipelines(tuple(points.values()), examples, fixed, iterators)


# Iterators --------------------------------------------------------------------------------------


def _iterators(graph: OpGraph, step: set[str]) -> Iterator[str]:
    """The iterators that the step reads, in the order of the graph."""
    for op in graph:
        if op.name not in step:
            continue
        if op.kind in _UNKNOWN_ITERATORS:
            raise InputPipelineError(
                f"the step reads an iterator through the string handle of '{op.name}', which "
                "names an iterator of one process only; read an initializable iterator instead"
            )
        if any(out.dtype != "variant" for out in op.outputs) and _calls(graph, op, _MAKE_ITERATOR):
            raise InputPipelineError(
                f"'{op.name}' ({op.kind}) reads a dataset inside a function, where it cannot be "
                "sharded; read an initializable iterator outside and pass what it gives"
            )
        if op.kind in _CREATE_ITERATOR:
            yield op.name


def _calls(graph: OpGraph, op: Op, wanted: frozenset[str]) -> bool:
    """Whether any function that `op` calls, directly or not, contains an op of a wanted kind."""
    return any(kind in wanted for kind in _kinds_in_functions(graph, op.functions, set()))


def _kinds_in_functions(
    graph: OpGraph, functions: tuple[str, ...], seen: set[str]
) -> Iterator[str]:
    for name in functions:
        if name in seen or name not in graph.functions:
            continue
        seen.add(name)
        for op in graph.functions[name].body:
            yield op.kind
            yield from _kinds_in_functions(graph, op.functions, seen)


def _datasets_of(graph: OpGraph, iterator: str) -> list[Op]:
    """The last dataset of each pipeline that an initializer gives to `iterator`."""
    found = [
        graph[op.inputs[0].op]
        for op in graph
        if op.kind in _MAKE_ITERATOR and handle_of(graph, op.inputs[1]) == iterator
    ]
    if not found:
        raise InputPipelineError(
            f"the step reads iterator '{iterator}', but nothing in the graph initialises it; call "
            "iterator.make_initializer(dataset) before the Context is made"
        )
    return found


# Numbers of examples ----------------------------------------------------------------------------


def _examples(graph: OpGraph, step: set[str]) -> tuple[TensorRef | None, int | None]:
    """The first batch read whose size may differ between workers; second, a size that never does.

    Raises:
        InputPipelineError: it may differ, but all batches are read where they may not be read.
    """
    reads = [op for op in graph if op.name in step and op.kind in op_types.ITERATOR_READS]
    hidden = any(_calls(graph, graph[name], op_types.ITERATOR_READS) for name in step)
    batches = [
        (TensorRef(op.name, index), spec.shape[0] if spec.shape else None)
        for op in reads
        for index, spec in enumerate(op.outputs)
        if spec.shape != () and spec.dtype not in ("variant", "resource")
    ]
    if not hidden and batches and batches[0][1] is not None:
        return None, batches[0][1]
    # A batch that is read in a branch may not be there in a step.
    for tensor, size in batches:
        if size is None and not _is_conditional(graph, tensor.op):
            return tensor, None
    if hidden or batches:
        raise InputPipelineError(
            "the step reads its batches inside a conditional or a function, so that the workers "
            "cannot tell each other how many examples they have; call iterator.get_next() outside "
            "of it, or use a reinitializable iterator to choose between datasets"
        )
    return None, None


def _is_conditional(graph: OpGraph, name: str) -> bool:
    return any(graph[source].kind == "Switch" for source in graph.ancestors([name]))


# Split points -----------------------------------------------------------------------------------


def _split_points(graph: OpGraph, dataset: Op) -> list[str]:
    """The datasets behind which shards are taken, looking from `dataset` towards the sources.

    As early as possible, so that a worker does not transform what it drops.
    """
    inputs = _dataset_inputs(graph, dataset)
    if not inputs:
        return [dataset.name]
    if dataset.kind in _BY_POSITION | _ANY_NUMBER:
        differing = _differs(graph, dataset)
        # If shards were taken before it, it would count elements within one shard.
        if differing is None:
            return [dataset.name]
        if dataset.kind in _BY_POSITION:
            raise InputPipelineError(
                f"'{dataset.name}' ({dataset.kind}) takes elements by position, but '{differing}' "
                "gives them in another order on every worker, so shards would overlap; give "
                f"'{differing}' a seed, or move it behind '{dataset.name}'"
            )
        # Workers see different elements here (a shuffle without a seed): shards are taken before.
        if dataset.kind == _CHOOSES_BETWEEN_DATASETS:
            # The selector is no source of elements; every worker has all of it.
            inputs = inputs[1:]
    return list(dict.fromkeys(name for op in inputs for name in _split_points(graph, op)))


def _dataset_inputs(graph: OpGraph, dataset: Op) -> list[Op]:
    """The datasets that a dataset op reads."""
    sources = [graph[t.op] for t in dataset.inputs if graph.spec(t).dtype == "variant"]
    return [op for op in sources if "Dataset" in op.kind or op.kind in op_types.PASS_THROUGH]


def _differs(graph: OpGraph, dataset: Op, by_value: bool = False) -> str | None:
    """What gives `dataset` other elements, or another order, on every worker; None if nothing.

    `by_value` says whether the values of its elements count, and not only their order.
    """
    by_value = by_value or dataset.kind in _BY_VALUE
    if _shuffles_without_seed(graph, dataset) or (by_value and _draws(graph, dataset)):
        return dataset.name
    found = (_differs(graph, source, by_value) for source in _dataset_inputs(graph, dataset))
    return next((name for name in found if name is not None), None)


def _shuffles_without_seed(graph: OpGraph, dataset: Op) -> bool:
    if "Shuffle" in dataset.kind:
        return _no_seeds(dataset.inputs[2:4], graph.constants)
    return any(_function_shuffles(graph, name, set()) for name in dataset.functions)


def _function_shuffles(graph: OpGraph, name: str, seen: set[str]) -> bool:
    """Whether a function makes a dataset that is shuffled without a seed."""
    if name in seen or name not in graph.functions:
        return False
    seen.add(name)
    body = graph.functions[name].body
    return any(
        ("Shuffle" in op.kind and _no_seeds(op.inputs[2:4], body.constants))
        or any(_function_shuffles(graph, called, seen) for called in op.functions)
        for op in body
        if "Dataset" in op.kind or op.functions
    )


def _draws(graph: OpGraph, dataset: Op) -> bool:
    """Whether the elements of a dataset are drawn at random, differently on every worker."""
    if dataset.kind in _RANDOM_SOURCES:
        return _no_seeds(dataset.inputs[:2], graph.constants)
    return _calls(graph, dataset, op_types.RANDOM)


def _no_seeds(seeds: Sequence[TensorRef], constants: Mapping[str, int]) -> bool:
    """Whether both seeds are the constant 0, which asks for a random one."""
    return all(constants.get(seed.op) == 0 for seed in seeds)
