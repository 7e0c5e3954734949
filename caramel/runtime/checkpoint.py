"""Checkpoints in TensorFlow's own format, written so that an interruption never loses the last one.

A checkpoint is an index file and data files whose names say how many there are. One data file takes
turns with two, so that old and new can stand side by side until one atomic rename of the index
switches from the old to the new; when that is on the disk, the old ones go. What is written beside
the variables is a file with such a name, too, of which TensorFlow knows nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from caramel.core.errors import CheckpointError, DamagedCheckpointError
from caramel.core.facts import Variable
from caramel.core.util.atomic_files import sync, write_whole
from caramel.core.util.leftovers import remove_leftovers, temporary_prefix
from caramel.runtime.checkpoint_index import data_files, with_data_files

tf1 = tf.compat.v1

_SHARD_COUNT = re.compile(r"\.(?:data|progress)-\d{5}-of-(\d{5})")
_PATTERN = re.compile(r"[*?\[\\]")  # what TensorFlow does not take literally in a path
_DAMAGED = (tf.errors.OpError, IndexError, ValueError)  # as TensorFlow's reader sees such files
_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_NODE = re.compile(r"^Node: .*\n", re.MULTILINE)  # in TensorFlow's messages


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One entry of a checkpoint; `slice_spec` is empty for a whole tensor."""

    name: str
    slice_spec: str
    value: Any


@dataclass(frozen=True, slots=True)
class Restored:
    """What a checkpoint holds for a graph.

    Attributes:
        values: by the variable's name.
        missing: names of variables that it does not hold.
        left_over: what it holds of which the graph has no variable.
    """

    values: Mapping[str, np.ndarray]
    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()


def path_of(prefix: str | os.PathLike[str]) -> Path:
    """The path of a checkpoint, without the endings that TensorFlow adds.

    Raises:
        CheckpointError: it names no file.
    """
    path = Path(prefix)
    if not path.name:
        raise CheckpointError(f"'{prefix}' is no path of a checkpoint; give a file name, too")
    return path


def write_checkpoint(
    prefix: str | os.PathLike[str], tensors: Sequence[SavedTensor], progress: str | None = None
) -> str:
    """Write a checkpoint and make it the latest of its directory.

    Args:
        prefix: path without the endings that TensorFlow adds; the directory is made if missing.
        progress: what stands beside the variables: where training was. None for nothing.

    Returns:
        The prefix.

    Raises:
        CheckpointError: the files cannot be written; an earlier checkpoint of that prefix is whole.
    """
    path = path_of(prefix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, path.name)
        with tempfile.TemporaryDirectory(
            dir=path.parent, prefix=temporary_prefix(path.name)
        ) as directory:
            shards = _free_shard_count(path)
            written = _write_files(Path(directory), tensors, shards)
            if progress is not None:
                _progress_file(written, shards).write_text(progress)
            _move_into_place(written, path)
    except (OSError, ValueError, tf.errors.OpError) as error:  # names that cannot be
        raise CheckpointError(
            f"cannot write checkpoint '{path}': {_reason(error)}; what was there before is whole"
        ) from error
    try:
        _make_latest(path)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint '{path}' is written, but not entered as its directory's latest: "
            + _reason(error)
        ) from error
    return str(path)


def read_checkpoint(
    prefix: str | os.PathLike[str], variables: Sequence[Variable], *, partial: bool = False
) -> Restored:
    """The values of variables in a checkpoint.

    Args:
        prefix: what `write_checkpoint` or `tf.compat.v1.train.Saver` returned, or a directory,
            whose latest checkpoint is read.
        partial: whether the checkpoint may lack some of the variables, but not all.

    Raises:
        DamagedCheckpointError: files are missing or damaged.
        CheckpointError: there is none, or it has not all variables in the right shape; names them.
    """
    path = os.fspath(prefix)
    if os.path.isdir(path) and not _exists(path):
        path = _latest(path)
    if not _exists(path):
        raise CheckpointError(f"there is no checkpoint '{path}' ('{path}.index' does not exist)")
    with _literal(path) as readable:
        try:
            reader = tf.train.load_checkpoint(readable)
            held = reader.get_variable_to_dtype_map()
            shapes = reader.get_variable_to_shape_map()
        except _DAMAGED as error:
            raise DamagedCheckpointError(
                f"cannot read checkpoint '{path}': {_reason(error)}"
            ) from error
        if _OBJECTS in held:
            raise CheckpointError(
                f"checkpoint '{path}' names values by the objects that hold them, as "
                "tf.train.Checkpoint does; write one with tf.compat.v1.train.Saver"
            )
        found = [v for v in variables if v.full_name in held]
        missing = tuple(v.name for v in variables if v.full_name not in held)
        _check_missing(path, missing, len(variables), partial)
        for variable in found:
            _check_fits(path, variable, held[variable.full_name].name, shapes[variable.full_name])
        values = {v.name: _read_variable(reader, readable, path, v) for v in found}
    known = {variable.full_name for variable in variables}
    return Restored(values, missing, tuple(sorted(set(held) - known)))


def read_progress(path: str) -> str | None:
    """What stands beside the variables of a checkpoint; None if nothing does.

    Raises:
        DamagedCheckpointError: it cannot be read.
    """
    try:
        count = data_files(Path(f"{path}.index").read_bytes())
        file = _progress_file(Path(path), count or 0)
        return file.read_text() if file.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedCheckpointError(
            f"cannot read where training was at checkpoint '{path}': {_reason(error)}"
        ) from error


def _progress_file(path: Path, shards: int) -> Path:
    """The file of what stands beside the variables of a checkpoint of so many data files."""
    return path.with_name(f"{path.name}.progress-00000-of-{shards:05d}")


def _exists(path: str) -> bool:
    """Whether there is a checkpoint, perhaps one file of TensorFlow's first format."""
    return os.path.exists(f"{path}.index") or os.path.isfile(path)


def some_of(names: Sequence[str]) -> str:
    """The first names of a list, for messages."""
    return ", ".join(f"'{name}'" for name in names[:10]) + (" and others" if names[10:] else "")


def _check_missing(path: str, missing: Sequence[str], wanted: int, partial: bool) -> None:
    if partial and len(missing) == wanted:
        raise CheckpointError(
            f"checkpoint '{path}' holds none of the graph's {wanted} variables; they are called "
            + some_of(missing)
        )
    if missing and not partial:
        raise CheckpointError(
            f"checkpoint '{path}' lacks {len(missing)} of the graph's {wanted} variables: "
            f"{some_of(missing)}; restore(..., partial=True) restores the others and leaves these "
            "as they are"
        )


def _latest(directory: str) -> str:
    """The latest checkpoint of a directory."""
    state = _state(directory)
    path = state.model_checkpoint_path if state is not None else ""
    if not path or not _exists(path):
        lost = f": '{path}.index', its latest, does not exist" if path else ""
        raise CheckpointError(f"directory '{directory}' holds no checkpoint{lost}")
    return str(path)


@contextlib.contextmanager
def _literal(path: str) -> Iterator[str]:
    """A path by which TensorFlow finds a checkpoint, which takes paths for patterns, or for the
    directories of that name."""
    if not _PATTERN.search(path) and not os.path.isdir(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="caramel-restore-") as directory:
        link = Path(directory, "checkpoint")
        for file in _files(Path(path).absolute()):
            link.with_name(link.name + file.name.removeprefix(Path(path).name)).symlink_to(file)
        yield str(link)


def _reason(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ('{error.filename}')" if error.filename else error.strerror
    message = error.message if isinstance(error, tf.errors.OpError) else str(error)
    told = _NODE.split(message)[-1]  # after where the op was made, which is in this file
    return str(told).strip().partition("\n")[0]


def _check_fits(path: str, variable: Variable, dtype: str, shape: Sequence[int]) -> None:
    """Raise unless what a checkpoint holds has the dtype and shape of the (whole) variable."""
    wanted = variable.spec.shape
    if variable.slice_spec:
        wanted = tuple(int(size) for size in variable.slice_spec.split(" ")[:-1])
    fits = wanted is None or (
        len(wanted) == len(shape)
        and all(d in (None, got) for d, got in zip(wanted, shape, strict=True))
    )
    if not fits or dtype != variable.spec.dtype:
        raise CheckpointError(
            f"checkpoint '{path}' has '{variable.full_name}' as {dtype} of shape {tuple(shape)}, "
            f"the graph as {variable.spec.dtype} of shape {wanted}"
        )


def _read_variable(reader: Any, readable: str, path: str, variable: Variable) -> np.ndarray:
    try:
        if variable.slice_spec:
            value = _read_slice(readable, variable)
        else:
            value = reader.get_tensor(variable.full_name)
    except _DAMAGED as error:
        raise DamagedCheckpointError(
            f"cannot read '{variable.full_name}' of checkpoint '{path}'; is a data file missing or "
            f"damaged? {_reason(error)}"
        ) from error
    # NumPy's own strings lose zeros at the end, and the reader does not know quantized types.
    return np.asarray(value, tf.as_dtype(variable.spec.dtype).as_numpy_dtype)


def _read_slice(readable: str, variable: Variable) -> Any:
    """A part of a tensor, without the rest of it, which the reader would read."""
    with tf.Graph().as_default(), tf1.Session(config=_on_processor()) as session:
        (value,) = tf.raw_ops.RestoreV2(
            prefix=readable,
            tensor_names=[variable.full_name],
            shape_and_slices=[variable.slice_spec],
            dtypes=[variable.spec.dtype],
        )
        return session.run(value)


# Files ------------------------------------------------------------------------------------------


def _write_files(directory: Path, tensors: Sequence[SavedTensor], shards: int) -> Path:
    """Write a checkpoint of `shards` data files into a directory; returns its prefix."""
    portions = [tensors[shard::shards] for shard in range(min(shards, len(tensors)))]
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
        with tf1.Session(config=_on_processor()) as session:
            session.run(merge, fed)
    _fill_up(merged, len(portions), shards)
    return merged


def _fill_up(written: Path, files: int, shards: int) -> None:
    """Make a checkpoint of fewer tensors than shards one of so many shards, with empty ones."""
    if files == shards:
        return
    index = written.with_name(f"{written.name}.index")
    index.write_bytes(with_data_files(index.read_bytes(), shards))
    for file in _data_files(written):
        os.replace(file, file.with_name(f"{file.name[:-5]}{shards:05d}"))
    for shard in range(files, shards):
        written.with_name(f"{written.name}.data-{shard:05d}-of-{shards:05d}").touch()


def _on_processor() -> Any:
    config = tf1.ConfigProto(device_count={"GPU": 0})
    config.graph_options.rewrite_options.disable_meta_optimizer = True  # nothing is computed
    return config


def _move_into_place(written: Path, path: Path) -> None:
    """Data files first, then the index, whose rename is the moment of change; then clean up.

    Each is on the disk before the next begins: what is gone is never needed any more.
    """
    files = _files(written)
    for file in files:
        sync(file)
    new = []
    for file in _data_files(written):
        target = path.with_name(path.name + file.name.removeprefix(written.name))
        os.replace(file, target)
        new.append(target)
    sync(path.parent)
    os.replace(f"{written}.index", f"{path}.index")
    sync(path.parent)
    for file in _data_files(path):
        if file not in new:
            file.unlink()


def _files(path: Path) -> list[Path]:
    """The files of a checkpoint."""
    others = (path.with_name(f"{path.name}.index"), path)
    return [*_data_files(path), *(file for file in others if file.is_file())]


def _data_files(path: Path) -> list[Path]:
    return sorted(
        file
        for file in path.parent.iterdir()
        if file.name.startswith(path.name)
        and _SHARD_COUNT.fullmatch(file.name.removeprefix(path.name))
    )


def _free_shard_count(path: Path) -> int:
    """How many data files to write: none may have the name of one of the checkpoint in place."""
    index = path.with_name(f"{path.name}.index")
    taken = set()
    if index.exists():
        current = data_files(index.read_bytes())
        # Of an index that is not known, any data file may be.
        taken = {current} if current else {int(file.name[-5:]) for file in _data_files(path)}
    return next(number for number in itertools.count(1) if number not in taken)


def _make_latest(path: Path) -> None:
    """Enter the checkpoint into its directory's ``checkpoint`` file."""
    paths = [p for p in entered(path.parent) if os.path.abspath(p) != os.path.abspath(path)]
    _enter(path.parent, [*paths, str(path)])


def entered(directory: Path) -> list[str]:
    """The checkpoints that a directory's ``checkpoint`` file names, the latest last."""
    state = _state(str(directory))
    return list(state.all_model_checkpoint_paths) if state is not None else []


def _state(directory: str) -> Any:
    """What a directory's ``checkpoint`` file says; None if there is none, or it is damaged."""
    with contextlib.suppress(tf.errors.OpError, ValueError):
        return tf.train.get_checkpoint_state(directory)
    return None


def forget(directory: Path, paths: Sequence[str]) -> None:
    """Take checkpoints out of a directory's ``checkpoint`` file; the latest is none of them."""
    if paths:
        _enter(directory, [each for each in entered(directory) if each not in paths])


def _enter(directory: Path, paths: Sequence[str]) -> None:
    state = tf1.train.generate_checkpoint_state_proto(str(directory), paths[-1], paths)
    write_whole(directory / "checkpoint", str(state))


def remove(path: Path) -> None:
    """Remove the files of a checkpoint, the index first: without it there is none."""
    for file in reversed(_files(path)):
        file.unlink()
