"""Names that do not depend on what else a process has built.

Keras numbers layers, optimizers and metrics that have no names: the first `Dense` is ``dense``, the
next one of any model ``dense_1``. These numbers are in the names of variables, ops and arguments of
functions. Here they are counted anew, within each scope, in the order in which they come.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from caramel.core.names import source_op

_COUNT = re.compile(r"(?:_\d+)*$")
_DIRECTION = re.compile("^(?:forward|backward)_")  # before the names of layers in a Bidirectional


class CountedNames:
    """Gives names with new counts. The names of variables are to be asked for first."""

    def __init__(self) -> None:
        self._counted = frozenset(_names_of_kinds())
        self._parts: dict[tuple[str, str, str], str] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._joined: dict[str, str] = {}  # names as they are in those of optimizers' slots

    def of_variable(self, name: str) -> str:
        """The name of a variable."""
        scope, _, last = name.rpartition("/")
        other = last
        while other and other not in self._joined:
            other = other.rpartition("_")[0]
        if other:
            last = self._joined[other] + last[len(other) :]
        renamed = self._of("variable", f"{scope}/{last}" if scope else last)
        self._joined[name.replace("/", "_")] = renamed.replace("/", "_")
        return renamed

    def of_op(self, name: str) -> str:
        """The name of an op, which is in other scopes than all variables."""
        return self._of("op", name)

    def _of(self, kind: str, name: str) -> str:
        new = given = ""
        for part in name.split("/"):
            base = _COUNT.sub("", part)
            given = f"{given}/{part}"
            if _DIRECTION.sub("", base) in self._counted:
                key = (kind, given, new)
                if key not in self._parts:
                    number = self._counts.get((new, base), 0)
                    self._counts[new, base] = number + 1
                    self._parts[key] = f"{base}_{number}" if number else base
                part = self._parts[key]
            new = f"{new}/{part}" if new else part
        return new


def rename_ops(nodes: Iterable[Any], names: Mapping[str, str]) -> None:
    """Give nodes other names, and let others read them by these, in place."""
    for node in nodes:
        node.name = names.get(node.name, node.name)
        for at, text in enumerate(node.input):
            node.input[at] = _renamed(text, names)
        for at, text in enumerate(node.attr["_class"].list.s if "_class" in node.attr else ()):
            op = text.decode().removeprefix("loc:@")
            node.attr["_class"].list.s[at] = f"loc:@{names.get(op, op)}".encode()


def rename_in_function(function: Any) -> None:
    """Give what is in a library function such names, in place. Its arguments have none."""
    counted = CountedNames()
    names = {node.name: counted.of_op(node.name) for node in function.node_def}
    results, controls = dict(function.ret), dict(function.control_ret)
    function.ret.clear()
    function.control_ret.clear()
    signature = function.signature
    for number, argument in enumerate(signature.input_arg):
        names[argument.name] = argument.name = f"argument_{number}"
        if number in function.arg_attr:  # where it came from, by name
            function.arg_attr[number].attr.pop("_user_specified_name", None)
    for number, result in enumerate(signature.output_arg):
        source, result.name = results[result.name], f"result_{number}"
        function.ret[result.name] = _renamed(source, names)
    for number, control in enumerate(signature.control_output):
        signature.control_output[number] = f"control_{number}"
        function.control_ret[f"control_{number}"] = names[controls[control]]
    rename_ops(function.node_def, names)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    """What a node reads, under its new name."""
    name = source_op(text)
    begin = len(text) - len(text.removeprefix("^"))
    return text[:begin] + names.get(name, name) + text[begin + len(name) :]


def _names_of_kinds() -> Iterator[str]:
    """What Keras calls those that have no name, but for the number."""
    keras = sys.modules.get("keras")
    if keras is None:  # then nothing is made with it
        return
    waiting = [
        *(keras.layers.Layer, keras.metrics.Metric, keras.losses.Loss),
        *(keras.optimizers.Optimizer, keras.random.SeedGenerator),
    ]
    seen = set(waiting)
    while waiting:
        kind = waiting.pop()
        yield _in_small_letters(kind.__name__)
        new = set(kind.__subclasses__()) - seen
        seen |= new
        waiting += new


def _in_small_letters(name: str) -> str:
    """``my_layer`` of ``MyLayer``, as Keras makes it."""
    parts = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub("([a-z])([A-Z])", r"\1_\2", parts).lower()
