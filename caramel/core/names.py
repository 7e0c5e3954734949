"""Names of nodes and tensors: the only place that builds or parses them."""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

EVALUATION = "evaluation"
ONCE = "once"
_CARAMEL = "caramel"
READY = f"{_CARAMEL}/ready"
"""An op that does nothing: running it makes TensorFlow place what was added to a graph."""
CHECK_SENT = f"{_CARAMEL}/check/sent"
CHECK_PRODUCT = f"{_CARAMEL}/check/product"
CHECK_CALL = f"{_CARAMEL}/check/call"
"""Ops of the small graph that is traced to see what TensorFlow calls things."""
# Without the underscores that names of containers may not have.
ON_SERVERS = "caramel-container-of-the-servers"
ON_WORKERS = "caramel-container-of-the-workers"
"""Marks in a distributed graph, each as long as a UUID, which takes its place."""
JOINED_STEP = "caramel_joined_step"
"""In a single-device graph: an op that waits for a train op and for what is fetched with it."""
REPORT = "caramel_report"
"""In a single-device graph: begins the names of tensors of which each worker has one of its own,
without an entry for each example."""
_VARIANT = "caramel_variant_"
# TensorFlow calls what it feeds and receives ``_recv_`` and the name.
_IN_VARIANT = re.compile(rf"^(_recv_)?{_VARIANT}\d+/")


class TensorRef(NamedTuple):
    """An output of an op: its op's name and the output's index."""

    op: str
    index: int = 0  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.op}:{self.index}"


# References -------------------------------------------------------------------------------------
#
# They follow TensorFlow's forms: ``op:1`` for a tensor (``op`` means ``op:0`` in a GraphDef's
# inputs), ``^op`` for a control input.


def parse_input(text: str) -> TensorRef | None:
    """The tensor that a GraphDef's input string names, or None for a control input."""
    if text.startswith("^"):
        return None
    op, colon, index = text.rpartition(":")
    return TensorRef(op, int(index)) if colon else TensorRef(text, 0)


def control_source(text: str) -> str:
    """The op that a control input string (``^op``) names."""
    return text.removeprefix("^")


def source_op(text: str) -> str:
    """The op that a GraphDef's input string names, for data or control."""
    return text.removeprefix("^").partition(":")[0]


def input_string(tensor: TensorRef) -> str:
    """The shortest GraphDef input string of a tensor."""
    return tensor.op if tensor.index == 0 else f"{tensor.op}:{tensor.index}"


def control_string(op: str) -> str:
    """The GraphDef input string of a control input from `op`."""
    return f"^{op}"


def parse_tensor(name: str) -> TensorRef:
    """A tensor's name as users write it (``op:0``) as a reference.

    Raises:
        ValueError: the name does not end in an output's index.
    """
    op, colon, index = name.rpartition(":")
    if not colon or not op or not index.isdigit():
        raise ValueError(f"'{name}' is not a tensor's name (expected 'op:index')")
    return TensorRef(op, int(index))


def with_prefix(prefix: str, text: str) -> str:
    """A GraphDef input string (data or control) with its op moved under `prefix`."""
    if text.startswith("^"):
        return f"^{prefix}/{text[1:]}"
    return f"{prefix}/{text}"


_COLOCATION = "loc:@"


def colocation_with_prefix(prefix: str, group: str) -> str:
    """A ``loc:@op`` colocation group with its op moved under `prefix`."""
    if group.startswith(_COLOCATION):
        return f"{_COLOCATION}{prefix}/{group.removeprefix(_COLOCATION)}"
    return group


def colocated_op(group: str) -> str | None:
    """The op that a colocation group names, or None if it is of another form."""
    return group.removeprefix(_COLOCATION) if group.startswith(_COLOCATION) else None


# Places -----------------------------------------------------------------------------------------
#
# Workers and parameter servers are *places*, with a number each: workers from 0 on, servers from -1
# down, so that a number tells which it is however many workers there are.


def server_place(server: int) -> int:
    """The place of a parameter server, which are counted from 0 on."""
    return -1 - server


def server_at(place: int) -> int | None:
    """Which parameter server is at a place; None if a worker is."""
    return -1 - place if place < 0 else None


# Replicas ---------------------------------------------------------------------------------------
#
# In the distributed graph every node of the user's graph keeps its name under the prefix of its
# replica (``worker_3/dense/kernel``); a second, unsharded copy on worker 0 may stand under
# ``evaluation/``. With parameter servers a third one, under ``once/``, has what a step does once.


def part_of(name: str, number: int) -> str:
    """A part of a variable that is split by rows, or what one op of the user's is for it."""
    return f"{name}/part_{number}"


def of_parts(variable: str, *parts: str) -> str:
    """A node that is added for a variable that is split by rows."""
    return "/".join((variable, "parts", *parts))


def tensor_part(variable: str, tensor: TensorRef, number: int) -> TensorRef:
    """The rows of a tensor that go with a part of a variable."""
    return TensorRef(part_of(of_parts(variable, "of", tensor.op, str(tensor.index)), number))


def whole_tensor(variable: str, tensor: TensorRef) -> TensorRef:
    """A tensor put together again from its parts."""
    return TensorRef(of_parts(variable, "whole", tensor.op, str(tensor.index)))


def replica_prefix(worker: int) -> str:
    """The prefix of everything that belongs to the replica on `worker`, or to a server's place."""
    server = server_at(worker)
    return f"worker_{worker}" if server is None else f"server_{server}"


def in_copy(prefix: str, op: str) -> str:
    """The op of the user's graph called `op`, in the copy with `prefix`."""
    return f"{prefix}/{op}"


def tensor_in_copy(prefix: str, tensor: TensorRef) -> TensorRef:
    """The tensor of the user's graph called `tensor`, in the copy with `prefix`."""
    return TensorRef(in_copy(prefix, tensor.op), tensor.index)


def partial_sum(op: str, number: int) -> str:
    """A partial sum that stands before the sum `op` of the user's graph."""
    return f"{op}/ordered_{number}"


def in_replica(worker: int, op: str) -> str:
    """The op of the user's graph called `op`, in the replica on `worker`."""
    return in_copy(replica_prefix(worker), op)


def is_in_replica(worker: int, op: str) -> bool:
    """Whether an op of the distributed graph is the user's, in the replica on `worker`."""
    return op.startswith(f"{replica_prefix(worker)}/")


def tensor_in_replica(worker: int, tensor: TensorRef) -> TensorRef:
    """The tensor of the user's graph called `tensor`, in the replica on `worker`."""
    return TensorRef(in_replica(worker, tensor.op), tensor.index)


def function_in_replica(prefix: str, function: str) -> str:
    """The copy of a library function that belongs to the replica with `prefix` alone."""
    return f"{function}__{prefix}"


def without_prefix(op: str) -> str:
    """The user's name of an op in a copy of the user's graph; else the name itself."""
    prefix, slash, rest = op.partition("/")
    is_copy = _is_replica_prefix(prefix) or prefix in (EVALUATION, ONCE)
    return rest if slash and is_copy else op


def evaluating(worker: int, number: int | None = None) -> str:
    """The prefix of what a worker evaluates, beside the evaluation copy; of one copy of several."""
    return f"{EVALUATION}_{worker}" + ("" if number is None else f"_{number}")


def is_in_evaluation(op: str) -> bool:
    """Whether an op of the distributed graph is the user's, in the evaluation copy."""
    return op.startswith(f"{EVALUATION}/")


def is_done_once(op: str) -> bool:
    """Whether an op of the distributed graph is the user's, in what a step does once."""
    return op.startswith(f"{ONCE}/")


# Variants ---------------------------------------------------------------------------------------
#
# Where the graph holds several plans for one job, all that belongs to the second and later ones
# stands below one more prefix, as in ``caramel_variant_1/worker_3/dense/kernel``. All functions but
# these are about names without it.


def variant_prefix(number: int) -> str:
    """The prefix of everything that belongs to a variant; the first (0) has none."""
    return f"{_VARIANT}{number}" if number else ""


def in_variant(number: int, op: str) -> str:
    """An op of a distributed graph, in the variant with that number."""
    return f"{_VARIANT}{number}/{op}" if number else op


def tensor_in_variant(number: int, tensor: TensorRef) -> TensorRef:
    """A tensor of a distributed graph, in the variant with that number."""
    return TensorRef(in_variant(number, tensor.op), tensor.index)


def without_variant(op: str) -> str:
    """An op's name without the prefix of its variant; also that of what TensorFlow feeds to it."""
    return _IN_VARIANT.sub(r"\1", op)


# What Caramel adds ------------------------------------------------------------------------------
#
# It stands under ``caramel/`` and names the worker it runs on, as in
# ``caramel/group_7/worker_3/reduced_0``. No name of the user can collide with it, since all of them
# are under the prefix of a replica.


def added(worker: int, *parts: str) -> str:
    """A node that Caramel adds on `worker`, apart from aggregation: ``caramel/worker_3/...``."""
    return "/".join((_CARAMEL, replica_prefix(worker), *parts))


def in_group(group: str, worker: int, *parts: str) -> str:
    """A node of the aggregation of `group` on `worker`: ``caramel/<group>/worker_3/...``."""
    return "/".join((_CARAMEL, group, replica_prefix(worker), *parts))


class PushName(NamedTuple):
    """What the name of what a worker has sent of a group to a server tells."""

    server: int
    worker: int
    group: str


def pushed(server: int, worker: int, group: str) -> str:
    """Runs on a server when what a worker sends of a group has arrived there, and hands it on."""
    return in_group(group, server_place(server), "pushed", str(worker))


def pushed_of(op: str) -> PushName | None:
    """What has arrived at a server, told from the name `pushed` gives; None if it is another."""
    group, (*_, kind, worker) = group_of(op), ["", "", *op.split("/")]
    server = server_at(worker_of(op) or 0)
    if group is None or server is None or kind != "pushed":
        return None
    return PushName(server, int(worker), group)


def gated(group: str, worker: int, *scope: str) -> str:
    """Puts out what a worker sends of a group when all that it waits for has arrived."""
    return in_group(group, worker, *scope, "gated")


def is_gated(op: str) -> bool:
    """Whether a node is one that `gated` names."""
    return group_of(op) is not None and op.endswith("/gated")


def is_checksum(op: str) -> bool:
    """Whether a node works on checksums of what is computed from factors."""
    first, *rest = op.split("/")
    return first == _CARAMEL and not {"checksum", "factor_checksums"}.isdisjoint(rest)


def factor_checksums(worker: int) -> TensorRef:
    """On a worker, a number for the bits of each gradient that it computed from factors."""
    return TensorRef(added(worker, "factor_checksums"))


def part_name(parameter: str, begin: int, end: int) -> str:
    """What a part of a split gradient is called among members of groups; no parameter's name."""
    return f"{parameter}[{begin}:{end}]"


def in_dtype(op: str, dtype: str) -> str:
    """What hands out in another dtype what an added node puts out."""
    return f"{op}/{dtype}"


def sliced(name: str, part: int | str) -> str:
    """A slice of what the node of this name is about. No scope: a parameter may be called so."""
    return f"{name}-slice-{part}"


def pulled_from(server: int, worker: int, variable: str) -> str:
    """What a server sends to a worker: the value of a variable."""
    return added(server_place(server), "pull", str(worker), variable)


def pulled(worker: int, variable: str) -> str:
    """Runs on a worker when the value of a variable has arrived there, and hands it on."""
    return added(worker, "pulled", variable)


class PullName(NamedTuple):
    """What the name of what a server sends of a variable to a worker tells."""

    server: int
    worker: int
    variable: str


def pull_of(op: str) -> PullName | None:
    """What a server sends to a worker, told from a node's name; None if it is no pull."""
    parts = op.split("/", 4)
    if len(parts) < 5 or parts[0] != _CARAMEL or parts[2] not in ("pull", "pull_ahead"):
        return None
    server = server_at(_place(parts[1])) if _is_replica_prefix(parts[1]) else None
    return None if server is None else PullName(server, int(parts[3]), parts[4])


def ahead_from(server: int, worker: int, variable: str) -> str:
    """What a server sends to a worker of a variable that was updated, for the next step."""
    return added(server_place(server), "pull_ahead", str(worker), variable)


def pulled_ahead(worker: int, variable: str) -> str:
    """Runs on a worker when that has arrived."""
    return added(worker, "pulled_ahead", variable)


def is_pulled(op: str) -> bool:
    """Whether a node runs when a variable has arrived at a worker."""
    return is_added(op) and op.split("/", 3)[2:3] == ["pulled"]


def asked(worker: int, op: str, position: int) -> str:
    """On a worker: what it sends to a server so that an op of its replica can run there."""
    return added(worker, "asked", op, str(position))


def answer(server: int, worker: int, op: str) -> str:
    """On a server: an op of a worker's replica that reads a variable there."""
    return added(server_place(server), "answer", str(worker), op)


def answered(worker: int, op: str) -> str:
    """On the worker: what has come back."""
    return added(worker, "answered", op)


def sent(op: str, output: int | None, device: int) -> str:
    """Sends to another device what an op of a replica that is spread over several puts out.

    Args:
        op: of the distributed graph.
        output: which of its outputs; None for the fact that it has run.
        device: the number of the device to which it is sent.
    """
    return added(0, "sent", str(device), op, _output(output))


def received(op: str, output: int | None, device: int) -> str:
    """Runs on the other device when that has arrived there, and hands it on."""
    return added(0, "received", str(device), op, _output(output))


def _output(output: int | None) -> str:
    return "done" if output is None else str(output)


class SentName(NamedTuple):
    """What the name of what `sent` or `received` names tells.

    `what` is one of these two words; `op` is one of the distributed graph.
    """

    what: str
    device: int
    op: str
    output: int | None


def sent_of(op: str) -> SentName | None:
    """What is sent to another device, told from a node's name; None if it is another node."""
    parts = op.split("/", 4)
    if len(parts) < 5 or parts[0] != _CARAMEL or parts[2] not in ("sent", "received"):
        return None
    source, _, output = parts[4].rpartition("/")
    if output != "done" and not output.isdigit():  # TensorFlow's own, for the fact that it has run
        return None
    return SentName(parts[2], int(parts[3]), source, None if output == "done" else int(output))


def is_for_evaluation(op: str) -> bool:
    """Whether a node is in the evaluation copy, or sends between devices what is in it."""
    sending = sent_of(op)
    return is_in_evaluation(op if sending is None else sending.op)


def flattened(worker: int, parameter: str) -> str:
    """The raw gradient of a parameter as a vector, to be split."""
    return added(worker, "flattened", parameter)


def split(worker: int, parameter: str) -> str:
    """The parts of a raw gradient."""
    return added(worker, "split", parameter)


def joined(worker: int, parameter: str) -> str:
    """The aggregated parts of a gradient side by side."""
    return added(worker, "joined", parameter)


def whole(worker: int, parameter: str) -> str:
    """The aggregated gradient of a parameter, made of its parts."""
    return added(worker, "whole", parameter)


def kept_piece(group: str, worker: int, member: int, piece: int) -> str:
    """The variable that keeps a piece of an aggregated part of a gradient for the next step."""
    return in_group(group, worker, "kept_sum", str(member), str(piece))


def inputs_read(worker: int) -> str:
    """Runs when a worker's own input pipelines have given what the step reads from them."""
    return added(worker, "inputs_read")


def all_inputs_read(worker: int) -> str:
    """Runs on a worker when the input pipelines of all workers have given theirs."""
    return added(worker, "all_inputs_read")


def kept_in(worker: int, tensor: TensorRef, *, aggregated: bool) -> str:
    """The variable that keeps a tensor of the single-device graph for the next step."""
    return added(worker, "kept_sum" if aggregated else "kept", tensor.op, str(tensor.index))


def kept_flat(group: str, worker: int, *scope: str) -> str:
    """The variable that keeps a worker's part of a deferred group for the next step."""
    return in_group(group, worker, *scope, "kept")


def assigned(kept: str) -> str:
    """Assigns a step's value to a variable that keeps it."""
    return f"{kept}/assign"


def read_back(kept: str) -> str:
    """Reads what is kept, in the next step."""
    return f"{kept}/read"


def freed(kept: str) -> str:
    """Lets go of what a variable keeps, when nothing is pending."""
    return f"{kept}/free"


ALL_KEPT = "_all_kept"
"""Stands for everything that is kept among the variables that have tokens; no variable's name."""


def arrived(group: str) -> str:
    """Stands for a deferred group that groups of the step wait for, among what has tokens."""
    return f"_arrived_{group}"


def tokens(worker: int, variable: str) -> str:
    """The queue with a token if the moved ops that touch a variable are done."""
    return added(worker, "tokens", variable)


def token_taken(worker: int, variable: str) -> str:
    """Takes the token; what waits for the moved ops waits for this."""
    return f"{tokens(worker, variable)}/take"


def token_put(worker: int, variable: str) -> str:
    """Puts the token back when the moved ops are done."""
    return f"{tokens(worker, variable)}/put"


def token_filled(worker: int, variable: str) -> str:
    """Puts the token, waiting for nothing."""
    return f"{tokens(worker, variable)}/fill"


def token_count(worker: int, variable: str) -> TensorRef:
    """How many tokens there are: 0 or 1."""
    return TensorRef(f"{tokens(worker, variable)}/count")


def is_token(op: str) -> bool:
    """Whether a node has to do with tokens; taking one waits for another part of the step."""
    return is_added(op) and op.split("/")[2:3] == ["tokens"]


Mark = Literal["ready", "arrived"]
"""What is marked of a group: its raw gradients are complete; it is there, aggregated."""


def marks(worker: int, kind: Mark) -> str:
    """The variable that counts for each group how often it was marked on a worker."""
    return added(worker, "marks", kind)


def marks_read(worker: int, kind: Mark) -> TensorRef:
    """The counts."""
    return TensorRef(f"{marks(worker, kind)}/read")


def marks_cleared(worker: int, kind: Mark) -> str:
    """Sets the counts to 0."""
    return f"{marks(worker, kind)}/clear"


def mark_of(group: str, worker: int, kind: Mark) -> str:
    """Marks a group."""
    return f"{marks(worker, kind)}/of/{group}"


def marks_made(worker: int, *, moved: bool) -> str:
    """Runs when all marks of the step are made, or all of its moved part."""
    return added(worker, "marks", "moved" if moved else "step")


def is_mark(op: str) -> bool:
    """Whether a node has to do with marks."""
    return is_added(op) and op.split("/")[2:3] == ["marks"]


Copy = Literal["original", "copy", "taken_value", "take", "value_put_back", "put_back", "drop"]
"""What has to do with the copy of a variable that is taken before a step."""


def copied(worker: int, variable: str, what: Copy) -> str:
    """A node that has to do with the copy of a worker's variable."""
    return added(worker, "copied", what, variable)


# What outlives a session ------------------------------------------------------------------------
#
# Another session builds the same shared names, also one with other workers: they tell no worker's
# number.

LEASES = f"{_CARAMEL}-leases"
"""The table of the leases on a worker, and its container."""
LEASES_ENTERED = f"{_CARAMEL}/leases/entered"
LEASES_REMOVED = f"{_CARAMEL}/leases/removed"
LEASES_SAID = f"{_CARAMEL}/leases/said"
"""Placeholders of what is written into the tables and logs of workers."""

Snapshot = Literal["take", "drop", "put_back"]
"""What is done with the snapshot of a task: it is taken, let go of, or variables get its values."""


def snapshot(task: int, what: Snapshot, slot: int) -> str:
    """An op that does something with the snapshot in a slot, by the number of the task."""
    return added(0, "snapshot", str(slot), what, str(task))


def snapshot_number_fed(task: int) -> TensorRef:
    """Placeholder of the number of the snapshot that a task takes."""
    return TensorRef(added(0, "snapshot", "number", str(task)))


def snapshot_text_fed(task: int) -> TensorRef:
    """Placeholder of what is told beside the snapshot that a task takes."""
    return TensorRef(added(0, "snapshot", "text", str(task)))


def in_snapshot(worker: int, *parts: str) -> str:
    """A node of snapshots that has to do with a worker's replica."""
    return added(worker, "snapshot", *parts)


def snapshot_number(slot: int) -> str:
    """The shared name of the number of a slot."""
    return f"number/{slot}"


def snapshot_text(slot: int) -> str:
    """The shared name of what is told beside the snapshot in a slot."""
    return f"text/{slot}"


def snapshot_value(slot: int, place: int, variable: str) -> str:
    """The shared name of a copy of a variable, by its place among those of one task."""
    return f"value/{slot}/{place}/{variable}"


# Told from names -------------------------------------------------------------------------------


def group_of(op: str) -> str | None:
    """The group whose aggregation a node belongs to, told from its name."""
    parts = op.split("/")
    if parts[0] != _CARAMEL or len(parts) < 3 or _is_replica_prefix(parts[1]):
        return None
    return parts[1]


def is_added(op: str) -> bool:
    """Whether a node is Caramel's own, not a copy of one of the user's."""
    return op.startswith(f"{_CARAMEL}/")


def worker_of(op: str) -> int | None:
    """The place that a node of the distributed graph belongs to, told from its name."""
    # Only the beginning is looked at: names of parameters may have many parts.
    first, _, rest = op.partition("/")
    return _owner(*rest.split("/", 2)[:2]) if first == _CARAMEL else _owner(first)


@functools.lru_cache(maxsize=10_000)  # graphs have many nodes of few owners
def _owner(*parts: str) -> int | None:
    """The place that the first parts of a name, without Caramel's own, tell."""
    if parts in ((EVALUATION,), (ONCE,)):
        return 0
    return next((_place(part) for part in parts if _is_replica_prefix(part)), None)


def _is_replica_prefix(part: str) -> bool:
    return part.startswith(("worker_", "server_")) and part[7:].isdigit()


def _place(prefix: str) -> int:
    number = int(prefix[7:])
    return server_place(number) if prefix.startswith("server_") else number
