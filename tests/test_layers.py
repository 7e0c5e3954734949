"""Imports point downward only, and nobody reaches into TensorFlow's private parts.

| layer | what                                              | may import                          |
|-------|---------------------------------------------------|-------------------------------------|
| 0     | errors, names, devices, kinds, ...                | the standard library                |
| 1     | data                                              | 0-1, numpy                          |
| 2     | algorithms                                        | 0-2, numpy, networkx                |
| 3     | TensorFlow                                        | 0-1, 3, tensorflow, numpy, protobuf |
| 4     | what puts them together                           | anything                            |
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "caramel"

# A name that ends in a dot stands for all modules of that package.
LAYERS = {
    0: {
        "checkpoint_index",
        "collector",
        "congestion",
        "devices",
        "errors",
        "files",
        "kinds",
        "library",
        "memory",
        "names",
        "onednn",
        "outcome",
        "quiet",
        "receiving",
        "steps",
        "stopwatch",
        "turns",
        "version",
    },
    1: {
        *("access", "cache", "clocks", "cluster", "crossings", "entries", "explanation", "facts"),
        *("feeds", "fingerprint", "initial_values"),
        *("graph", "grpc_server", "launchers", "measurements", "metrics", "patterns", "plan"),
        *("processes", "profile", "records", "replanning", "results", "rows", "stalls"),
        *("timeline", "traffic", "trials", "workload"),
    },
    2: {
        *("analysis", "analyzers.", "checks", "network", "ordering", "over_steps", "planning."),
        "simulation.",
    },
    3: {
        *(
            "c_api",
            "channel",
            "checkpoint",
            "context",
            "distributed_graph",
            "exchangeable",
            "job",
            "kernels",
            "late",
            "marks",
            "modifiers.",
            "pending",
            "placement",
        ),
        *(
            "probation",
            "profiler",
            "program",
            "recording",
            "remembered",
            "runner",
            "scaling_results",
            "servers",
            "session",
            "state",
            "step_trace",
        ),
        *("stepper", "structures", "steppers", "traces", "variables", "watchdog"),
    },
    4: {
        *("", "__main__", "assembly", "builder", "cli", "live_planning", "measure"),
        *(
            "model_plans",
            "observed",
            "plan_table",
            "profiling",
            "report.",
            "simulating",
            "joint_steps",
            "step_model",
            "tracing",
            "user_job",
            "variants",
        ),
    },
}
MAY_IMPORT = {0: {0}, 1: {0, 1}, 2: {0, 1, 2}, 3: {0, 1, 3}, 4: {0, 1, 2, 3, 4}}
LIBRARIES = {
    0: set(),
    1: {"numpy"},
    2: {"numpy", "networkx"},
    3: {"numpy", "tensorflow", "google"},
}
OPTIONAL = {"launchers": {"mpi4py"}}  # imported where it is used, and only by those who have it

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    """The module's name without the package's: "" for the package itself, "analyzers.frames"."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


def layer_of(module: str) -> int | None:
    package = module.partition(".")[0] + "."
    return next((n for n, names in LAYERS.items() if module in names or package in names), None)


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


def test_every_module_has_a_layer():
    for module, file in MODULES.items():
        assert layer_of(module) is not None, (
            f"caramel/{file.relative_to(PACKAGE)} belongs to no layer: enter '{module}' into "
            "LAYERS at the top of this file, as low as its imports allow (0 basics, 1 data, "
            "2 algorithms, 3 TensorFlow, 4 what puts them together)"
        )
    named = {name for names in LAYERS.values() for name in names}
    packages = {module.partition(".")[0] + "." for module in MODULES}
    assert named <= set(MODULES) | packages, "LAYERS names modules that do not exist"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downward(module):
    layer = layer_of(module)
    for imported in imports_of(tree_of(module)):
        top, _, inner = imported.partition(".")
        if top == "caramel":
            assert layer_of(inner) in MAY_IMPORT[layer], (
                f"'{module}' is in layer {layer} and imports '{inner}' of layer {layer_of(inner)}; "
                f"it may import the layers {sorted(MAY_IMPORT[layer])}"
            )
        elif layer < 4 and top not in sys.stdlib_module_names:
            allowed = LIBRARIES[layer] | OPTIONAL.get(module, set())
            assert top in allowed, (
                f"'{module}' is in layer {layer} and imports '{top}'; of libraries it may import "
                f"{sorted(allowed) or 'none'}"
            )


def test_what_needs_no_tensorflow_does_not_import_it():
    modules = [f"caramel.{module}" for module in MODULES if layer_of(module) in (0, 1, 2)]
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
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "tf.python":
            yield "tf.python"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value) and name.value not in own:
                yield ast.unparse(node)
    yield from (name for name in imports_of(tree) if f"{name}.".startswith("tensorflow.python."))


@pytest.mark.parametrize("module", MODULES)
def test_only_public_api_is_used(module):
    found = set(foreign_private_names(tree_of(module), own_names())) - {"os._exit"}
    assert not found, f"'{module}' uses private names of other libraries: {sorted(found)}"


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
