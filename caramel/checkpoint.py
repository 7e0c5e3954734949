"""Checkpoints in TensorFlow's own format, written so that an interruption never loses the last one.

A checkpoint is an index file and data files whose names say how many there are. One data file takes
turns with two, so that old and new can stand side by side until one atomic rename of the index
switches from the old to the new; then the old ones go. (A checkpoint of one scalar alone cannot be
split, and changes with two renames.)
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.errors import CheckpointError
from caramel.facts import Variable

tf1 = tf.compat.v1

_SHARD_COUNT = re.compile(r"\.data-\d{5}-of-(\d{5})$")


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One entry of a checkpoint; `slice_spec` is empty for a whole tensor."""

    name: str
    slice_spec: str
    value: Any


def write_checkpoint(prefix: str | os.PathLike[str], tensors: Sequence[SavedTensor]) -> str:
    """Write a checkpoint and make it the latest of its directory.

    Args:
        prefix: path without the endings that TensorFlow adds; the directory is made if missing.

    Returns:
        The prefix.

    Raises:
        CheckpointError: the files cannot be written; an earlier checkpoint of that prefix is whole.
    """
    path = Path(prefix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        with tempfile.TemporaryDirectory(
            dir=path.parent, prefix=_temporary_prefix(path)
        ) as directory:
            written = _write_files(Path(directory), tensors, _next_shard_count(path))
            _move_into_place(written, path)
        _make_latest(path)
    except (OSError, tf.errors.OpError) as error:
        raise CheckpointError(f"cannot write checkpoint '{path}': {error}") from error
    return str(path)


def read_checkpoint(
    prefix: str | os.PathLike[str], variables: Sequence[Variable]
) -> Mapping[str, np.ndarray]:
    """The values of variables in a checkpoint, by their names.

    Args:
        prefix: what `write_checkpoint` or `tf.compat.v1.train.Saver` returned, or a directory,
            whose latest checkpoint is read.

    Raises:
        CheckpointError: there is none, it cannot be read, or it has not all variables in the right
            shape; names them.
    """
    path = str(prefix)
    if os.path.isdir(path):
        latest = tf.train.latest_checkpoint(path)
        if latest is None:
            raise CheckpointError(f"directory '{path}' holds no checkpoint")
        path = latest
    if not os.path.exists(f"{path}.index"):
        raise CheckpointError(f"there is no checkpoint '{path}' ('{path}.index' does not exist)")
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
    except (tf.errors.OpError, ValueError) as error:
        raise CheckpointError(f"cannot read checkpoint '{path}': {error}") from error
    missing = [v.full_name for v in variables if v.full_name not in shapes]
    if missing:
        raise CheckpointError(
            f"checkpoint '{path}' lacks {len(missing)} of the graph's {len(variables)} variables: "
            + ", ".join(f"'{name}'" for name in missing[:10])
            + (" and others" if len(missing) > 10 else "")
        )
    return {variable.name: _read_variable(reader, path, variable) for variable in variables}


def _read_variable(reader: Any, path: str, variable: Variable) -> np.ndarray:
    try:
        value = np.asarray(reader.get_tensor(variable.full_name))
    except (tf.errors.OpError, IndexError, ValueError) as error:  # as the reader sees damaged files
        raise CheckpointError(
            f"cannot read '{variable.full_name}' of checkpoint '{path}'; is a data file missing or "
            f"damaged? {error}"
        ) from error
    for axis, (offset, length) in enumerate(_slices(variable.slice_spec)):
        value = value.take(range(offset, offset + length), axis)
    wanted = variable.spec.shape
    fits = wanted is None or (
        len(wanted) == value.ndim
        and all(d in (None, got) for d, got in zip(wanted, value.shape, strict=True))
    )
    if not fits or value.dtype.name != variable.spec.dtype:
        raise CheckpointError(
            f"checkpoint '{path}' has '{variable.full_name}' as {value.dtype.name} of shape "
            f"{value.shape}, the graph as {variable.spec.dtype} of shape {wanted}"
        )
    return value


def _slices(spec: str) -> Iterator[tuple[int, int]]:
    """Offset and length in each dimension, from TensorFlow's description of a slice."""
    if spec:
        for part in spec.rpartition(" ")[2].split(":"):
            offset, _, length = part.partition(",")
            yield int(offset), int(length)


# Files ------------------------------------------------------------------------------------------


def _write_files(directory: Path, tensors: Sequence[SavedTensor], shards: int) -> Path:
    """Write a checkpoint of `shards` data files into a directory; returns its prefix."""
    portions = _portions(tensors, shards)
    parts = [directory / f"part{shard}" for shard in range(len(portions))]
    with tf.Graph().as_default():
        fed: dict[Any, Any] = {}
        saves = []
        for own, part in zip(portions, parts, strict=True):
            placeholders = [tf1.placeholder(np.asarray(t.value).dtype) for t in own]
            fed |= {p: t.value for p, t in zip(placeholders, own, strict=True)}
            saves.append(
                tf.raw_ops.SaveV2(
                    prefix=str(part),
                    tensor_names=[t.name for t in own],
                    shape_and_slices=[t.slice_spec for t in own],
                    tensors=placeholders,
                )
            )
        merged = directory / "merged"
        with tf.control_dependencies(saves):
            merge = tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[str(part) for part in parts],
                destination_prefix=str(merged),
                delete_old_dirs=False,
            )
        with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
            session.run(merge, fed)
    return merged


def _move_into_place(written: Path, path: Path) -> None:
    """Data files first, then the index, whose rename is the moment of change; then clean up."""
    new = []
    for file in sorted(written.parent.glob(f"{written.name}.data-*")):
        target = path.with_name(path.name + file.name.removeprefix(written.name))
        os.replace(file, target)
        new.append(target)
    os.replace(f"{written}.index", f"{path}.index")
    for file in _data_files(path):
        if file not in new:
            file.unlink()


def _data_files(path: Path) -> list[Path]:
    return [
        file
        for file in path.parent.iterdir()
        if file.name.startswith(f"{path.name}.data-") and _SHARD_COUNT.search(file.name)
    ]


def _portions(tensors: Sequence[SavedTensor], shards: int) -> list[Sequence[SavedTensor]]:
    """The tensors of each data file; a single tensor is split into two slices."""
    if len(tensors) >= shards:
        return [tensors[shard::shards] for shard in range(shards)]
    (tensor,) = tensors
    shape = np.shape(tensor.value)
    if tensor.slice_spec or not shape or shape[0] < 2:
        return [tensors]
    half = shape[0] // 2
    whole = " ".join(str(size) for size in shape)
    rest = "".join(f":0,{size}" for size in shape[1:])
    return [
        [SavedTensor(tensor.name, f"{whole} 0,{half}{rest}", tensor.value[:half])],
        [SavedTensor(tensor.name, f"{whole} {half},{shape[0] - half}{rest}", tensor.value[half:])],
    ]


def _next_shard_count(path: Path) -> int:
    """How many data files to write: another number than the checkpoint in place has."""
    index = path.with_name(f"{path.name}.index")
    if not index.exists():
        return 1
    current = _shard_count(index)
    for file in _data_files(path):  # left by a saving that was interrupted
        if not file.name.endswith(f"-of-{current:05d}"):
            file.unlink()
    return 2 if current == 1 else 1


def _shard_count(index: Path) -> int:
    """The number of data files that an index file refers to.

    An index is a table whose first entry has the empty key and a `BundleHeaderProto` as value,
    whose first field is the number of shards: two zero bytes, the value's length, tag, number.
    """
    with index.open("rb") as file:
        start = file.read(5)
    is_header = len(start) == 5 and start[:2] == bytes(2) and start[3] == 0x08
    return start[4] if is_header else 1


def _temporary_prefix(path: Path) -> str:
    return f".{path.name}.saving-{os.getpid()}-"


def _remove_leftovers(path: Path) -> None:
    """Remove directories of savings that were interrupted: their process has ended."""
    for directory in path.parent.glob(f".{path.name}.saving-*"):
        process = directory.name.removeprefix(f".{path.name}.saving-").partition("-")[0]
        if process.isdigit() and not os.path.exists(f"/proc/{process}"):
            shutil.rmtree(directory, ignore_errors=True)


def _make_latest(path: Path) -> None:
    """Enter the checkpoint into its directory's ``checkpoint`` file."""
    state = None
    with contextlib.suppress(tf.errors.OpError):
        state = tf.train.get_checkpoint_state(str(path.parent))
    earlier = list(state.all_model_checkpoint_paths) if state is not None else []
    paths = [p for p in earlier if os.path.abspath(p) != os.path.abspath(path)]
    state = tf1.train.generate_checkpoint_state_proto(
        str(path.parent), str(path), [*paths, str(path)]
    )
    written = path.with_name(f"{_temporary_prefix(path)}latest")
    written.write_text(str(state))
    os.replace(written, path.with_name("checkpoint"))
