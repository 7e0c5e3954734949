"""One single-device training job, captured by name and frozen.

The user's graph is read once and never changed: everything later works on the GraphDef and the
names that a `Context` holds.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from caramel.capture.functions import LoweredStep, lower
from caramel.capture.given import (
    Gradients,
    by_step,
    gradients_by_step,
    scalar_loss,
    scalar_weight,
)
from caramel.capture.graph_names import GraphNames, describe, name_of
from caramel.capture.structures import PerWorker, tensors_of
from caramel.capture.variables import variables_of
from caramel.core import op_types
from caramel.core.errors import (
    GraphError,
    NoParametersError,
    NothingUpdatedError,
    NotTensorFlowError,
    OneShotIteratorError,
    QueueRunnerError,
    ReferenceVariableError,
    UnknownNameError,
    UnsupportedOpError,
)
from caramel.core.facts import RawGradient, Reduction, TrainingJob, Variable
from caramel.core.graph import Op, OpGraph
from caramel.core.graph_reader import read_graph
from caramel.core.names import JOINED_STEP, TensorRef, control_string
from caramel.core.row_split import RowSplits
from caramel.core.train_steps import StepName, given_steps
from caramel.core.util.arguments import checked
from caramel.core.util.program import program_name
from caramel.core.util.rows import html_table
from caramel.core.util.sizes import bytes_text, counted
from caramel.core.util.suggestion import suggestion
from caramel.core.variable_access import state_access

tf1 = tf.compat.v1


class Context:
    """A training job written for one device.

    A job may have several steps over the same variables, as that of a GAN has. Each then has a
    name, by which `Session.step` is told which one to do, and a plan of its own.

    Args:
        graph: the `tf.Graph` that holds it. It is not changed.
        train_op: what one training step runs: an operation, a tensor, or a name. For several steps
            a mapping by name, or a list, whose steps are called 0, 1, ...
        loss: the floating-point scalar that is minimised: a tensor or its name. For several steps
            likewise, or one for all of them.
        steps: in place of both, pairs of a train op and a loss, by name or in a list, as in
            ``steps={"d": (d_train, d_loss), "g": (g_train, g_loss)}``.
        gradients: raw gradients and their variables, as `tf.gradients` or
            `Optimizer.compute_gradients` gave them, where they cannot be found from the graph's
            structure; values may be `tf.IndexedSlices`. Those of all steps together, or, if two
            train the same variable, a mapping by step.
        loss_reduction: "mean" if the loss is the mean over the examples of a batch, "sum" if it is
            their sum. By default the graph tells, also where the loss is divided by a count that
            differs between workers, such as the sum of a mask.
        loss_weight: where the graph does not tell, the scalar tensor (or its name) that has the
            count by which the loss is divided; each worker then counts by its own. If there are
            several steps, a mapping from their names to theirs.
        replicated_feeds: placeholders whose fed value every worker gets whole, although it is not
            a scalar (class weights, say).
        trains: False for a job that updates no parameter, such as an evaluation. What its step
            writes each worker keeps for itself: what metrics gather, say.
        name: what explanations and pages call the job; by default the program's name.

    Attributes:
        graph_def: the captured graph.
        job: what is trained, by names; if there are several steps, by the first.
        op_graph: the graph as plain data.
        unfetchable: ops of which TensorFlow says that nothing can be fetched: those inside v1
            loops and branches.
        row_splits: which parameters are split by rows, so that parameter servers have parts of
            them, and why others are not.
        lowered: how a function became the graph, if it did (`from_function`).
        name: what explanations and pages call the job.

    Raises:
        GraphError: the graph cannot be distributed; the subclass and the message say why and what
            to do.
    """

    @checked(GraphError, apart=("graph",))
    def __init__(
        self,
        graph: tf.Graph,
        *,
        train_op: Any = None,
        loss: Any = None,
        steps: Any = None,
        gradients: Gradients | Mapping[StepName, Gradients] | None = None,
        loss_reduction: Reduction | None = None,
        loss_weight: Any = None,
        replicated_feeds: Sequence[Any] = (),
        trains: bool = True,
        name: str | None = None,
    ) -> None:
        if not isinstance(graph, tf.Graph):
            raise NotTensorFlowError(
                f"the first argument of Context must be a tf.Graph, not {describe(graph)}; build "
                "the job inside 'with tf.Graph().as_default() as graph:'"
            )
        if loss_reduction not in (None, "mean", "sum"):
            raise GraphError(f"loss_reduction must be 'mean' or 'sum', not {loss_reduction!r}")
        if loss_reduction is not None and loss_weight is not None:
            raise GraphError("give loss_reduction or loss_weight, not both")
        _refuse_unsupported(graph)
        self.lowered: LoweredStep | None = None
        self.name = program_name() if name is None else str(name)
        names = GraphNames(graph)
        # Weakly: who only trains need not keep the graph in memory.
        self._graph = weakref.ref(graph)
        # With the shapes that TensorFlow inferred.
        self.graph_def = graph.as_graph_def(add_shapes=True)
        # A GraphDef does not tell this.
        self.unfetchable = frozenset(
            op.name for op in graph.get_operations() if not graph.is_fetchable(op)
        )
        definitions = {op.type: op.op_def for op in graph.get_operations()}
        definitions |= _definitions_in_functions(graph, self.graph_def, definitions)
        self._definitions = definitions
        self.op_graph = read_graph(self.graph_def, definitions)
        pairs = given_steps(train_op, loss, steps)
        train_ops = {name: names.operation(own, "train_op") for name, (own, _) in pairs.items()}
        in_steps = self.op_graph.ancestors(train_ops.values())
        variables = tuple(variables_of(graph, self.op_graph, in_steps))
        given = gradients_by_step(names, () if gradients is None else gradients, variables, pairs)
        parameters = {each.parameter for own in given.values() for each in own}
        variables = tuple(
            # A variable whose gradient is given is trained, however it was declared.
            dataclasses.replace(v, trainable=v.trainable or v.name in parameters)
            for v in variables
        )
        if trains and not any(variable.trainable for variable in variables):
            raise NoParametersError(
                "the graph has no trainable variables, so there is nothing to train; create them "
                "with tf1.get_variable or tf.Variable inside the graph"
            )
        weights = by_step(loss_weight, pairs)
        jobs = {
            name: TrainingJob(
                train_op=train_ops[name],
                loss=scalar_loss(names, own_loss),
                reduction=loss_reduction,
                variables=variables,
                given_gradients=given[name],
                replicated_feeds=frozenset(
                    names.operation(tensor, "replicated_feeds")
                    for feed in replicated_feeds
                    for tensor in tensors_of(feed)
                ),
                table_initializers=tuple(
                    op.name for op in graph.get_collection(tf1.GraphKeys.TABLE_INITIALIZERS)
                ),
                loss_weight=scalar_weight(names, weights.get(name)),
            )
            for name, (_, own_loss) in pairs.items()
        }
        if len(jobs) > 1:
            jobs = {name: _with_own_gradients(job, self.op_graph) for name, job in jobs.items()}
        self.job, *_ = jobs.values()
        self._jobs = jobs
        if trains:
            self._check_updates()
        losses = self.op_graph.ancestors([job.loss.op for job in jobs.values()])
        self._check_initialised(in_steps | losses)
        self.row_splits = RowSplits()
        self._captured: Context | None = None

    def __repr__(self) -> str:
        size = sum(variable.spec.bytes or 0 for variable in self.variables)
        ops, variables = counted(len(self.op_graph), "op"), counted(len(self.variables), "variable")
        steps = ", ".join(
            f"train op '{job.train_op}', loss '{job.loss}'" for job in self._jobs.values()
        )
        return f"<Context: {ops}, {variables} of {bytes_text(size)}, {steps}>"

    def _repr_html_(self) -> str:
        size = bytes_text(sum(variable.spec.bytes or 0 for variable in self.variables))
        rows = [("job", self.name), ("ops", f"{len(self.op_graph):,}")]
        rows.append(("variables", f"{len(self.variables):,}, {size}"))
        for name, job in self._jobs.items():
            step = "step" if len(self._jobs) == 1 else f"step {name!r}"
            rows.append((step, f"train op '{job.train_op}', loss '{job.loss}'"))
        return html_table(rows)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The user's variables, whole."""
        return self.captured.job.variables

    @property
    def captured(self) -> Context:
        """The context as it was before parameters were split by rows."""
        return self._captured or self

    @classmethod
    @checked(GraphError)
    def from_function(
        cls, function: Callable[..., Any], signature: Sequence[Any], **options: Any
    ) -> Context:
        """A job whose step is a function of TensorFlow 2; below `caramel.distribute`.

        Variables of the graph stand for those that the function captures (`lowered.variables`).
        They begin with zeros: give them values by `Session.assign`.

        Args:
            function: a Python function or a `tf.function`, which marks its loss by `caramel.loss`.
            signature: for each argument a `tf.TensorSpec`, or a structure of them. The first
                dimension of a batch must be open.
            options: further arguments of the context.

        Raises:
            GraphError: the function cannot be traced, or its job cannot be distributed.
        """
        for each in tf.nest.flatten(list(signature)):
            if not isinstance(each, tf.TypeSpec | bool | str | None):
                raise GraphError(
                    f"signature must have a tf.TensorSpec for each tensor, not {each!r:.200}"
                )
        lowered = lower(function, signature, trains=options.get("trains", True))
        context = cls(lowered.graph, train_op=lowered.train_op, loss=lowered.loss, **options)
        context.lowered = lowered
        return context

    @property
    def inputs(self) -> tuple[str, ...]:
        """Of a function: the placeholders of its tensors, in the order of `tf.nest.flatten`."""
        return () if self.lowered is None else tuple(t.name for t in self.lowered.inputs)

    @property
    def outputs(self) -> Any:
        """Of a function: what it returns, in its structure, with names in place of tensors."""
        if self.lowered is None:
            return ()
        return tf.nest.map_structure(_named, self.lowered.outputs)

    @property
    def steps(self) -> Mapping[StepName, Context]:
        """A context of each step alone, by name; this one if there is only one."""
        if len(self._jobs) == 1:
            return dict.fromkeys(self._jobs, self)
        return {name: self.of(job) for name, job in self._jobs.items()}

    def of(self, job: TrainingJob) -> Context:
        """A context of another job in the same graph, which has one step."""
        other = copy.copy(self)
        other.job, other._jobs = job, {0: job}
        return other

    def feeding_whole(self, feeds: frozenset[str]) -> Context:
        """A context of the same steps, in which every worker gets some feeds whole."""
        if not feeds:
            return self
        other = copy.copy(self)
        other._jobs = {
            name: dataclasses.replace(
                job,
                replicated_feeds=job.replicated_feeds | feeds,
                whole_feeds=job.whole_feeds | feeds,
            )
            for name, job in self._jobs.items()
        }
        other.job, *_ = other._jobs.values()
        return other

    def in_parts(
        self,
        splits: RowSplits,
        graph_def: Any = None,
        gradients: Mapping[StepName, Sequence[RawGradient]] = MappingProxyType({}),
    ) -> Context:
        """A context of the same steps, in which some parameters are several variables.

        Args:
            splits: which variables are split, and why others are not.
            graph_def: the graph in which they are, where all of the user's ops have their names;
                None if none are.
            gradients: by step, the raw gradients of what is split, whole.
        """
        other = copy.copy(self)
        other.row_splits, other._captured = splits, self.captured
        if graph_def is None:
            return other
        other.graph_def = graph_def
        known = tf.Graph()
        functions = {function.signature.name for function in graph_def.library.function}
        new = {node.op for node in graph_def.node} - functions - set(self._definitions)
        added = {kind: known.op_def_for_type(kind) for kind in new}
        other.op_graph = read_graph(graph_def, self._definitions | added)
        other._jobs = {
            name: _with_parts(job, splits, gradients[name]) for name, job in self._jobs.items()
        }
        other.job, *_ = other._jobs.values()
        return other

    def joined(self, job: TrainingJob, ops: Sequence[str]) -> Context:
        """A context of one step, in which a train op of its own waits for several ops.

        Args:
            job: what is trained by them together; its train op does not count.
            ops: what the train op waits for.
        """
        name, number = JOINED_STEP, 0
        while name in self.op_graph:
            number += 1
            name = f"{JOINED_STEP}_{number}"
        other = self.of(dataclasses.replace(job, train_op=name))
        other.graph_def = tf1.GraphDef()
        other.graph_def.CopyFrom(self.graph_def)
        controls = [control_string(op) for op in ops]
        other.graph_def.node.add(name=name, op="NoOp", input=controls)
        node = Op(name, "NoOp", "", (), tuple(ops))
        # Only one op is new, so the rest need not be read again.
        other.op_graph = dataclasses.replace(self.op_graph, ops={**self.op_graph.ops, name: node})
        return other

    def operation(self, given: Any, what: str) -> str:
        """The name of an operation of the captured graph, given as an object or a name.

        Raises:
            GraphError: there is none; `what` says in the message what it was given for.
        """
        return self.tensor_or_operation(given, what)[0]

    def tensor(self, given: Any, what: str) -> TensorRef:
        """A tensor of the captured graph, given as an object or a name.

        Raises:
            GraphError: there is none; `what` says in the message what it was given for.
        """
        operation, index = self.tensor_or_operation(given, what)
        outputs = len(self.op_graph[operation].outputs)
        if index is None and outputs != 1:
            raise UnknownNameError(f"{what}: '{operation}' has {outputs} outputs; name one of them")
        return TensorRef(operation, index or 0)

    def tensor_or_operation(self, given: Any, what: str) -> tuple[str, int | None]:
        """An op's name, and an output's index if a tensor was given.

        Raises:
            GraphError: it is neither in the captured graph; `what` says what it was given for.
        """
        name = name_of(given, what, self._graph())
        operation, colon, index = name.partition(":")
        if operation not in self.op_graph:
            raise UnknownNameError(
                f"{what}: there is no '{name}' in the graph that the Context captured"
                + suggestion(operation, self.op_graph.ops)
                + "; what is created after the Context is not part of it"
            )
        if not colon:
            return operation, None
        outputs = len(self.op_graph[operation].outputs)
        if not index.isdigit() or int(index) >= outputs:
            raise UnknownNameError(f"{what}: '{operation}' has {outputs} outputs, no '{name}'")
        return operation, int(index)

    def is_feedable(self, tensor: TensorRef) -> bool:
        """Whether a tensor may be fed (see `tf.Graph.prevent_feeding`)."""
        graph = self._graph()
        # Once the graph is gone nobody can tell.
        return graph is None or graph.is_feedable(graph.get_tensor_by_name(str(tensor)))

    def _check_updates(self) -> None:
        """Raise unless a train op updates a parameter, and each at least something."""
        writes = state_access(self.op_graph, self.job).writes
        trainable = {v.name for v in self.job.variables if v.trainable}
        written = {
            job.train_op: {
                name
                for op in self.op_graph.ancestors([job.train_op])
                for name in writes.get(op, ())
            }
            for job in self._jobs.values()
        }
        is_trained = any(trainable & names for names in written.values())
        for train_op, names in written.items():
            if not is_trained or not names:
                what = "nothing" if is_trained else "none of the trainable variables"
                raise NothingUpdatedError(
                    f"train_op '{train_op}' updates {what}; pass the operation that "
                    "Optimizer.minimize or apply_gradients returned"
                )

    def _check_initialised(self, step: set[str]) -> None:
        """Raise if the step uses a variable that nothing gives an initial value."""
        known = {variable.handle for variable in self.job.variables}
        known |= {  # scratch variables, to which the step itself gives a value
            op.inputs[0].op
            for op in self.op_graph
            if op.name in step and op.kind in op_types.ONLY_WRITE_VARIABLES
        }
        for op in self.op_graph:
            if op.name not in step or op.kind in op_types.NO_VALUE_OF_VARIABLES:
                continue
            for tensor in op.inputs:
                is_handle = self.op_graph[tensor.op].kind == op_types.VARIABLE
                if is_handle and tensor.op not in known:
                    raise GraphError(
                        f"variable '{tensor.op}', which '{op.name}' uses, has no op that gives it "
                        "an initial value; create it with tf1.get_variable or tf.Variable, whose "
                        "initial value does not depend on the step"
                    )


def _refuse_unsupported(graph: tf.Graph) -> None:
    """Raise for what cannot be replicated, naming the first op of its kind."""
    for op in graph.get_operations():
        # First: SyncReplicasOptimizer has queue runners, too, for which the advice would be
        # another.
        if op.type in op_types.ACCUMULATORS:
            raise UnsupportedOpError(
                f"'{op.name}' collects gradients of several processes, as SyncReplicasOptimizer "
                "does; Caramel aggregates them itself: minimise the loss with the inner optimizer, "
                "and leave out SyncReplicasOptimizer, its hooks and its queues"
            )
    if graph.get_collection(tf1.GraphKeys.QUEUE_RUNNERS):
        raise QueueRunnerError(
            "the graph has queue runners, which fill queues of one process only; read the data "
            "with tf.data or feed it"
        )
    for op in graph.get_operations():
        if op.type in op_types.REFERENCE_VARIABLES:
            raise ReferenceVariableError(
                f"'{op.name}' is a reference variable; create resource variables instead "
                "(tf1.enable_resource_variables() before the graph is built, or use_resource=True)"
            )
        if op.type == op_types.ONE_SHOT_ITERATOR:
            raise OneShotIteratorError(
                f"'{op.name}' is a one-shot iterator, whose pipeline is hidden in a function and "
                "cannot be sharded; use tf1.data.make_initializable_iterator(dataset)"
            )


def _definitions_in_functions(
    graph: tf.Graph, graph_def: Any, known: Mapping[str, Any]
) -> dict[str, Any]:
    """The OpDefs of kinds that occur in functions only."""
    functions = {function.signature.name for function in graph_def.library.function}
    kinds_inside = {n.op for function in graph_def.library.function for n in function.node_def}
    # A kind that is the name of a library function is a call of it, and has no OpDef.
    return {kind: graph.op_def_for_type(kind) for kind in kinds_inside - functions - set(known)}


def _with_own_gradients(job: TrainingJob, graph: OpGraph) -> TrainingJob:
    """A step of several, with those of the given gradients that it is computed from."""
    step = graph.ancestors([job.train_op])
    own = [each for each in job.given_gradients if each.values.op in step]
    return dataclasses.replace(job, given_gradients=tuple(own))


def _with_parts(
    job: TrainingJob, splits: RowSplits, gradients: Sequence[RawGradient]
) -> TrainingJob:
    """A step that trains the parts of parameters in place of these."""
    given = [each for each in job.given_gradients if each.parameter not in splits.of]
    for gradient in gradients:
        given += splits.of[gradient.parameter].gradients(gradient)
    variables = tuple(part for variable in job.variables for part in splits.parts(variable))
    together = [
        frozenset(part.name for part in parts)
        for split in splits.splits
        for parts in zip(*map(split.parts, split.variables), strict=True)
    ]
    return dataclasses.replace(
        job, variables=variables, given_gradients=tuple(given), together=tuple(together)
    )


def _named(output: Any) -> Any:
    """A name in place of a tensor that a function returns."""
    if isinstance(output, PerWorker):
        return PerWorker(_named(output.fetch))
    return output.name if isinstance(output, tf.Tensor) else output
