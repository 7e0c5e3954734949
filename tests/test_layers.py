"""Imports point downward only, and nobody reaches into TensorFlow's private parts.

`MAY_IMPORT` is the architecture: each package, and the packages and libraries that it may import.
A package may import only what stands above it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "caramel"

MAY_IMPORT = {
    "core": "",
    "native": "core  tensorflow numpy",
    "protection": "core  cryptography",
    "cluster": "core native protection  tensorflow mpi4py",
    "capture": "core  tensorflow numpy google",
    "analyzers": "core  numpy networkx",
    "simulation": "core  numpy",
    "planning": "core analyzers simulation  numpy",
    "modifiers": "core analyzers  tensorflow numpy google",
    "runtime": "core native cluster capture modifiers  tensorflow numpy google grpc",
    "report": "core analyzers planning  rich matplotlib",
    "models": "core cluster capture analyzers simulation planning modifiers runtime report  "
    "tensorflow numpy keras",
    "profiling": "core native cluster capture analyzers simulation planning runtime models  "
    "tensorflow numpy",
    "cli": "core native protection cluster capture simulation planning runtime report models "
    "profiling  "
    "tensorflow numpy typer rich",
}
WITHOUT_TENSORFLOW = ("core", "analyzers", "simulation", "planning", "report")

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    """The module's name without `caramel`: "" for `caramel` itself, "analyzers.frames"."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}
ROOMS = {module: file for module, file in MODULES.items() if module not in ("", "__main__")}


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Full names of the imported modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                own = inner.removeprefix("caramel.")
                yield inner if own in MODULES else str(node.module)


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def test_every_module_is_in_a_package_of_the_table():
    assert {module.partition(".")[0] for module in ROOMS} == set(MAY_IMPORT)


@pytest.mark.parametrize("package", [m for m, file in ROOMS.items() if file.name == "__init__.py"])
def test_packages_tell_what_each_of_their_files_is(package):
    told = set(re.findall(r"^`(\w+)/?`", ast.get_docstring(tree_of(package)) or "", re.MULTILINE))
    inside = {m.removeprefix(f"{package}.") for m in MODULES if m.startswith(f"{package}.")}
    assert not told or told == {name for name in inside if "." not in name}


def test_the_table_has_no_cycle():
    above: set[str] = set()
    for package, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) & set(MAY_IMPORT) <= above
        above.add(package)


def forbidden_imports(module: str) -> Iterator[str]:
    package = module.partition(".")[0]
    allowed = {package, *MAY_IMPORT[package].split()}
    for imported in imports_of(tree_of(module)):
        top, _, inner = imported.partition(".")
        name = inner.partition(".")[0] if top == "caramel" else top
        if name not in allowed and top not in sys.stdlib_module_names:
            yield f"'caramel.{module}' imports '{imported}'; it may import {sorted(allowed)}"


# One test for all modules: hundreds, each with a name, take longer than to look.
def test_imports_are_those_of_the_table():
    assert [told for module in ROOMS for told in forbidden_imports(module)] == []


def test_what_needs_no_tensorflow_does_not_import_it():
    modules = [f"caramel.{m}" for m in ROOMS if m.partition(".")[0] in WITHOUT_TENSORFLOW]
    code = f"""
import importlib, sys
import caramel
assert "tensorflow" not in sys.modules, "caramel imports tensorflow"
for module in {modules!r}:
    importlib.import_module(module)
    assert "tensorflow" not in sys.modules, f"{{module}} imports tensorflow"
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


# Private names ----------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


@cache
def own_names() -> set[str]:
    """Private names that Caramel itself defines: functions, classes, attributes, fields."""
    names = set()
    for module in MODULES:
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                of_self = isinstance(node, ast.Name) or ast.unparse(node.value) == "self"
                if of_self:
                    names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def foreign_private_names(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Uses of private names that are not Caramel's own, or of TensorFlow's private package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and node.attr == "python":
            yield from {"tf.python"} & {ast.unparse(node)}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id not in ("getattr", "setattr"):
                continue
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value) and name.value not in own:
                yield ast.unparse(node)
    yield from (name for name in imports_of(tree) if f"{name}.".startswith("tensorflow.python."))


def test_only_public_api_is_used():
    own = own_names()
    found = {m: set(foreign_private_names(tree_of(m), own)) - {"os._exit"} for m in MODULES}
    assert {m: sorted(names) for m, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "from tensorflow.python.framework import ops",
        "import tensorflow.python as tfp",
        "tf.python.framework.ops",
        "op._add_control_input(other)",
        "op._set_attr('x', 1)",
        "getattr(op, '_inputs')",
    ],
)
def test_private_api_is_noticed(code):
    assert list(foreign_private_names(ast.parse(code), own_names()))
