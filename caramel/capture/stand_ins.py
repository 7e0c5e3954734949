"""Variables that stand in a graph for others, made many at once.

TensorFlow takes 2 ms to make a variable op by op, and a large model has hundreds with those of its
optimizer. Here it makes one of each shape, in a graph of its own; the others are its nodes again,
under other names.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from caramel.core.names import source_op

tf1 = tf.compat.v1

_ZEROS, _VARIABLE = "zeros", "variable"  # what the ops of a template are called


def variables_like(others: Sequence[tuple[str, Any]]) -> Iterator[tf.Variable]:
    """Variables in the default graph, which begin with zeros; in the order of the others.

    Args:
        others: what each is to be called, and the variable whose shape and dtype it gets.

    Raises:
        ValueError: a shape is not known.
    """
    graph = tf1.get_default_graph()
    names = [
        {_ZEROS: graph.unique_name(_ZEROS), _VARIABLE: graph.unique_name(name)}
        for name, _ in others
    ]
    scopes = set(_scopes(graph))
    if any(name in scopes for own in names for name in own.values()):
        # What is imported may not be called as a scope is.
        for own, (_, other) in zip(names, others, strict=True):
            yield _made(other, {key: f"{name}/" for key, name in own.items()})
    else:
        yield from _imported(graph, names, [other for _, other in others])


def _scopes(graph: tf.Graph) -> Iterator[str]:
    for op in graph.get_operations():
        scope = op.name.rpartition("/")[0]
        while scope:
            yield scope
            scope = scope.rpartition("/")[0]


def _made(other: Any, own: dict[str, str]) -> tf.Variable:
    zeros = tf.zeros(other.shape, other.dtype, name=own[_ZEROS])
    return tf1.Variable(zeros, trainable=other.trainable, use_resource=True, name=own[_VARIABLE])


def _imported(
    graph: tf.Graph, names: Sequence[dict[str, str]], others: Sequence[Any]
) -> Iterator[tf.Variable]:
    nodes, made = tf1.GraphDef(), list[Any]()
    for own, other in zip(names, others, strict=True):
        if not other.shape.is_fully_defined():
            tf.zeros(other.shape)  # says that there are none
        template, description = _template(tuple(other.shape), other.dtype.base_dtype)
        nodes.versions.CopyFrom(template.versions)
        for node in template.node:
            _renamed(nodes.node.add(), node, own)
        made.append(_described(description, own, bool(other.trainable)))
    if made:
        tf.graph_util.import_graph_def(nodes, name="")
    for description in made:
        variable = tf1.Variable(variable_def=description, use_resource=True)
        graph.add_to_collection(tf1.GraphKeys.GLOBAL_VARIABLES, variable)
        if description.trainable:
            graph.add_to_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, variable)
        yield variable


def _renamed(copy: Any, node: Any, own: dict[str, str]) -> None:
    """Make the copy that node, in which all is called by other names."""
    copy.CopyFrom(node)
    copy.name = _under(node.name, own)
    for at, text in enumerate(node.input):
        copy.input[at] = _under(text, own)
    for key in ("shared_name", "debug_name"):
        if key in copy.attr:
            copy.attr[key].s = _under(node.attr[key].s.decode(), own).encode()
    if "_class" in copy.attr:
        copy.attr["_class"].list.s[:] = [f"loc:@{own[_VARIABLE]}".encode()]


def _under(text: str, own: dict[str, str]) -> str:
    scope = source_op(text).partition("/")[0]
    return own[scope] + text[len(scope) :]


def _described(description: Any, own: dict[str, str], trainable: bool) -> Any:
    """What tells TensorFlow the ops of a variable, by other names."""
    copy = type(description)()
    copy.CopyFrom(description)
    for key in ("variable_name", "initializer_name", "initial_value_name", "snapshot_name"):
        setattr(copy, key, _under(getattr(description, key), own))
    copy.trainable = trainable
    return copy


@functools.cache
def _template(shape: tuple[int, ...], dtype: tf.DType) -> tuple[Any, Any]:
    """The nodes of a variable of that shape, and what tells TensorFlow which they are."""
    with tf.Graph().as_default() as graph:
        zeros = tf.zeros(shape, dtype)
        made = tf1.Variable(zeros, trainable=False, use_resource=True, name=_VARIABLE)
        return graph.as_graph_def(), made.to_proto()
