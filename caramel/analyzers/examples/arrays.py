"""What loops and branches hand on: arrays and lists, and one of several values."""

from __future__ import annotations

from dataclasses import replace

from caramel.analyzers.examples.arithmetic import joined
from caramel.analyzers.examples.at import At, Rule
from caramel.analyzers.examples.courses import NOTHING, SHARED, Course, Kind
from caramel.analyzers.examples.elementwise import same


def empty_array(at: At) -> list[Course]:
    """An array or a list that nothing has been written into."""
    return [NOTHING] * max(1, len(at.op.outputs))


def array_write(at: At) -> Course:
    """The flow of an array after an element is written: what all its elements have in common."""
    return joined([at.inputs[3], at.inputs[2]], at.where)


def array_scatter(at: At) -> Course:
    """The same of many elements."""
    return joined([at.inputs[3], _without_first_axis(at.inputs[2])], at.where)


def array_read(at: At) -> Course:
    """One element."""
    return at.inputs[2]


def array_gather(at: At) -> Course:
    """Many elements along a new first axis."""
    return _with_first_axis(at.inputs[2])


def list_from(at: At) -> Course:
    """A list of the rows of a tensor."""
    return _without_first_axis(at.inputs[0])


def list_stack(at: At) -> Course:
    """The elements of a list along a new first axis."""
    return _with_first_axis(at.inputs[0])


def list_set(at: At) -> Course:
    """A list into which an element is written."""
    return joined([at.inputs[0], at.inputs[2]], at.where)


def list_push(at: At) -> Course:
    """A list with one more element."""
    return joined([at.inputs[0], at.inputs[1]], at.where)


def list_pop(at: At) -> list[Course]:
    """A list and its last element."""
    return [at.inputs[0], at.inputs[0]]


def _without_first_axis(course: Course) -> Course:
    if course.kind is Kind.ROWS and course.axis is not None:
        return replace(course, axis=course.axis - 1)  # from 0 to OF_ARRAY
    return replace(course, elements=None)


def _with_first_axis(course: Course) -> Course:
    if course.kind is Kind.ROWS and course.axis is not None:
        return replace(course, axis=course.axis + 1)
    return replace(course, elements=None, leaves=None)


def merge(at: At) -> list[Course]:
    """One of the inputs, and which."""
    # Both branches of a conditional, or the first and the later rounds of a loop.
    return [joined(at.inputs, at.where), SHARED]


def switch(at: At) -> list[Course]:
    """The input, on one of the outputs."""
    return [at.inputs[0]] * max(2, len(at.op.outputs))


def all_same(at: At) -> list[Course]:
    """Every input as it is."""
    return list(at.inputs)


RULES: dict[str, Rule] = {
    **dict.fromkeys(
        ("TensorArrayV3", "TensorListReserve", "EmptyTensorList", "TensorArrayGradV3"), empty_array
    ),
    **dict.fromkeys(("Merge", "RefMerge"), merge),
    **dict.fromkeys(("Switch", "RefSwitch"), switch),
    "IdentityN": all_same,
    "OptionalFromValue": lambda at: joined(at.inputs, at.where),
    "OptionalGetValue": same,
    "OptionalNone": empty_array,
    "TensorArrayGatherV3": array_gather,
    "TensorArrayReadV3": array_read,
    "TensorArrayScatterV3": array_scatter,
    "TensorArraySizeV3": lambda at: SHARED,
    "TensorArrayWriteV3": array_write,
    "TensorListElementShape": lambda at: SHARED,
    "TensorListFromTensor": list_from,
    "TensorListGetItem": same,
    "TensorListLength": lambda at: SHARED,
    "TensorListPopBack": list_pop,
    "TensorListPushBack": list_push,
    "TensorListSetItem": list_set,
    "TensorListStack": list_stack,
}
