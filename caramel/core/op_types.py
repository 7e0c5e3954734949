"""What the kinds of ops (TensorFlow's op types) do, as far as distribution depends on it.

Kinds are TensorFlow's public vocabulary ("MatMul"), not names that users choose. Nothing here
looks at the name of an op.
"""

from __future__ import annotations

VARIABLE = "VarHandleOp"
REFERENCE_VARIABLES = frozenset({"Variable", "VariableV2", "TemporaryVariable"})
WITHOUT_DEFAULT = frozenset({"Placeholder", "PlaceholderV2"})
PLACEHOLDERS = WITHOUT_DEFAULT | {"PlaceholderWithDefault"}

# Ops whose output is their first input, so that a resource handle can be traced through them.
PASS_THROUGH = frozenset({"Identity", "Enter", "Exit", "Switch", "Merge", "NextIteration"})
HANDS_ON = PASS_THROUGH | {
    "CheckNumerics",
    "ExpandDims",
    "PreventGradient",
    "ReadVariableOp",
    "Reshape",
    "Squeeze",
    "StopGradient",
}
"""Kinds of ops whose output has the memory of their first input."""

# Ops that take a variable's handle. Whatever is in neither set is taken to read and to write.
ONLY_READ_VARIABLES = frozenset(
    {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp", "VariableShape"}
)
ONLY_WRITE_VARIABLES = frozenset({"AssignVariableOp"})
SCATTERING = frozenset(
    {"ResourceScatterAdd", "ResourceScatterNdAdd", "ResourceScatterNdSub", "ResourceScatterSub"}
)
ADDING_TO_VARIABLES = frozenset({"AssignAddVariableOp", "AssignSubVariableOp", *SCATTERING})
"""Ops that add something to a variable, or take it away."""
NO_VALUE_OF_VARIABLES = frozenset({"VarIsInitializedOp", "VariableShape", "DestroyResourceOp"})
SPARSE_UPDATES = frozenset({"ResourceScatterSub", "ResourceScatterAdd"})
SPARSE_UPDATE_PREFIX = "ResourceSparseApply"
SUM_OF_ROWS = "UnsortedSegmentSum"
"""Makes a sparse gradient dense: its inputs are rows, their numbers, and how many there are."""
UPDATE_PREFIXES = ("ResourceApply", SPARSE_UPDATE_PREFIX)
"""Optimizers' ops, whose first input is the variable that is trained."""

# Random draws from a seed in the op's attributes (``seed`` and ``seed2``).
SEEDED_RANDOM = frozenset(
    {
        "AllCandidateSampler",
        "ComputeAccidentalHits",
        "FixedUnigramCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "LogUniformCandidateSampler",
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomCrop",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "ThreadUnsafeUnigramCandidateSampler",
        "TruncatedNormal",
        "UniformCandidateSampler",
    }
)
# Random draws from a generator's state, which is a variable.
GENERATOR_RANDOM = frozenset(
    {
        "NonDeterministicInts",
        "RngReadAndSkip",
        "StatefulRandomBinomial",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
    }
)
RANDOM = SEEDED_RANDOM | GENERATOR_RANDOM

# Which input is the seed of what draws the same from the same seed.
SEED_INPUTS: dict[str, int] = {
    "RandomIndexShuffle": 1,
    "StatelessMultinomial": 2,
    "StatelessParameterizedTruncatedNormal": 1,
    "StatelessRandomBinomial": 1,
    "StatelessRandomGammaV2": 1,
    "StatelessRandomGetKeyCounter": 0,
    "StatelessRandomGetKeyCounterAlg": 0,
    "StatelessRandomNormal": 1,
    "StatelessRandomPoisson": 1,
    "StatelessRandomUniform": 1,
    "StatelessRandomUniformFullInt": 1,
    "StatelessRandomUniformInt": 1,
    "StatelessSampleDistortedBoundingBox": 3,
    "StatelessTruncatedNormal": 1,
}

# Values from outside the graph, different on every worker.
ITERATOR_READS = frozenset({"IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"})
PYTHON_CALLS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
OTHER_INPUTS = frozenset(
    {
        "Timestamp",
        "QueueDequeueV2",
        "QueueDequeueManyV2",
        "QueueDequeueUpToV2",
        "ReaderReadV2",
        "ReaderReadUpToV2",
        "ReadFile",
        "BarrierTakeMany",
        # What was put there by the worker itself, of which no edge tells.
        "Unstage",
        "StagePeek",
        "MapUnstage",
        "MapUnstageNoKey",
        "MapPeek",
        "OrderedMapUnstage",
        "OrderedMapUnstageNoKey",
        "OrderedMapPeek",
        "AccumulatorTakeGradient",
        "ResourceAccumulatorTakeGradient",
        "SparseAccumulatorTakeGradient",
    }
)
INPUTS = ITERATOR_READS | PYTHON_CALLS | OTHER_INPUTS

ONE_SHOT_ITERATOR = "OneShotIterator"

# Where optimizers for many processes (`SyncReplicasOptimizer`) collect the gradients of all.
ACCUMULATORS = frozenset(
    {"ConditionalAccumulator", "SparseConditionalAccumulator", "ResourceConditionalAccumulator"}
)
QUEUES = frozenset(
    {
        "FIFOQueueV2",
        "RandomShuffleQueueV2",
        "PaddingFIFOQueueV2",
        "PriorityQueueV2",
        "FIFOQueue",
        "RandomShuffleQueue",
        "PaddingFIFOQueue",
        "PriorityQueue",
    }
)

# Control flow whose branches and bodies are functions, and whose ops are stateful.
FUNCTIONAL_CONTROL_FLOW = frozenset({"If", "Case", "While"})

FUNCTIONAL_LOOPS = frozenset({"While", "StatelessWhile"})

# Conditionals whose branches are functions; their first input says which is called.
CONDITIONALS = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})

# Ops on tables that change nothing in them.
TABLE_READS = frozenset(
    {
        "LookupTableExport",
        "LookupTableExportV2",
        "LookupTableFind",
        "LookupTableFindV2",
        "LookupTableSize",
        "LookupTableSizeV2",
    }
)
TABLE_PREFIX = "LookupTable"

STACK = "StackV2"
STACK_PUSH = "StackPushV2"
STACK_POP = "StackPopV2"

# Ops that hand out constants without computing anything that could be rounded.
CONSTANT = frozenset(
    {
        "BroadcastTo",
        "Cast",
        "Const",
        "Fill",
        "Identity",
        "OnesLike",
        "Pack",
        "Reshape",
        "ZerosLike",
    }
)

# Ops that say something of a tensor's shape and nothing of its value.
SHAPE_ONLY = frozenset({"Shape", "ShapeN", "Size", "Rank"})

# The same whatever they are computed from, but for the shape. (`Fill` is linear in its value.)
CONSTANTS = frozenset({"Const", "OnesLike", "ZerosLike"})

# Linear in the one input that depends on the worker (or in all of them together): the mean over
# the workers may be taken before or after.
LINEAR = frozenset(
    {
        "Add",
        "AddN",
        "AddV2",
        "AccumulateNV2",
        "BiasAddGrad",
        "BroadcastTo",
        "Cast",
        "CheckNumerics",
        "Complex",
        "ConcatV2",
        "Conj",
        "Cumsum",
        "DynamicStitch",
        "Enter",
        "Exit",
        "ExpandDims",
        "Fill",
        "GatherV2",
        "Identity",
        "IdentityN",
        "Imag",
        "Mean",
        "Merge",
        "MirrorPadGrad",
        "Neg",
        "NextIteration",
        "Pack",
        "Pad",
        "PadV2",
        "Real",
        "Reshape",
        "Reverse",
        "ReverseV2",
        "Roll",
        "ScatterNd",
        "Slice",
        "Snapshot",
        "Split",
        "SplitV",
        "Squeeze",
        "StopGradient",
        "StridedSlice",
        "StridedSliceGrad",
        "Sub",
        "Sum",
        "Switch",
        "TensorArrayGatherV3",
        "TensorArrayReadV3",
        "TensorListStack",
        "Tile",
        "Transpose",
        "Unpack",
        "UnsortedSegmentSum",
        "SegmentSum",
    }
)
# Linear in all inputs together, and in no smaller number of them.
SUMS = frozenset({"Add", "AddN", "AddV2", "AccumulateNV2", "ConcatV2", "Pack", "Sub"})
# Linear as long as only one of their inputs depends on the worker.
BILINEAR = frozenset(
    {
        "BatchMatMul",
        "BatchMatMulV2",
        "Conv2D",
        "BatchMatMulV3",
        "DivNoNan",
        "Einsum",
        "InvGrad",
        "MatMul",
        "Mul",
        "MulNoNan",
        "RealDiv",
        "ReciprocalGrad",
        "ReluGrad",
        "RsqrtGrad",
        "Select",
        "SelectV2",
        "SigmoidGrad",
        "SoftplusGrad",
        "SqrtGrad",
        "TanhGrad",
        "Xdivy",
    }
)
# Inputs in which these are not linear: divisors, conditions, and what was put out forward.
NOT_LINEAR_IN: dict[str, tuple[int, ...]] = {
    "DivNoNan": (1,),
    "InvGrad": (0,),
    "MulNoNan": (1,),
    "RealDiv": (1,),
    "ReciprocalGrad": (0,),
    "ReluGrad": (1,),
    "RsqrtGrad": (0,),
    "Select": (0,),
    "SelectV2": (0,),
    "SigmoidGrad": (0,),
    "SoftplusGrad": (1,),
    "SqrtGrad": (0,),
    "TanhGrad": (0,),
    "Xdivy": (1,),
}
# Ops whose output has the rank of each of their inputs at least.
BROADCASTING = frozenset(
    {
        "Abs",
        "Add",
        "AddN",
        "AddV2",
        "Cast",
        "DivNoNan",
        "Exp",
        "Identity",
        "Log",
        "Log1p",
        "Maximum",
        "Minimum",
        "Mul",
        "MulNoNan",
        "Neg",
        "Pow",
        "RealDiv",
        "Sigmoid",
        "Softplus",
        "Sqrt",
        "Square",
        "SquaredDifference",
        "StopGradient",
        "Sub",
        "Tanh",
    }
)
ELEMENTWISE_PRODUCTS = frozenset({"Mul", "RealDiv", "DivNoNan", "MulNoNan"})

# Products of two tensors that each have a row for each example, or several: which inputs these are.
PRODUCTS: dict[str, tuple[int, int]] = {
    "MatMul": (0, 1),
    "Conv2DBackpropFilter": (0, 2),
    "Conv3DBackpropFilterV2": (0, 2),
    "DepthwiseConv2dNativeBackpropFilter": (0, 2),
}
