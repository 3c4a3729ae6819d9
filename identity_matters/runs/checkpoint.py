"""Checkpoints of a training run: one .npz file each, the newest intact one is found again.

A .npz file is a zip archive, so every array carries a checksum and a truncated or damaged
file is recognised. It needs no TensorFlow and means the same under every Keras backend. It holds its step, so that a
file under the name of another one is recognised as well.
"""

import contextlib
import errno
import json
import math
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from identity_matters.errors import Unreadable, UserError, reason_of
from identity_matters.fields import require
from identity_matters.runs.files import open_file, replacing

KEEP = 3
_FIGURES = {"sum/loss", "sum/cross_entropy", "sum/top1", "sum/top5", "steps_summed"}
_NAME = re.compile(r"step_(\d{8,10})\.npz")
# Of a file that is gone, a socket, or damaged: bytes before its start are asked for, or a decompressor refuses them.
_LASTING_ERRORS = (errno.ENOENT, errno.ENXIO, errno.EINVAL, None)


def save(directory: str, step: int, arrays: dict[str, np.ndarray]) -> str:
    """Writes step_<step>.npz whole or not at all, removes all but the newest KEEP checkpoints, returns its path."""
    path = os.path.join(directory, f"step_{step:08d}.npz")
    try:
        os.makedirs(directory, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays, step=step)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"cannot write the checkpoint {path}: {reason}; the older ones are kept") from error
    for _, old in [checkpoint for checkpoint in list_checkpoints(directory) if checkpoint[0] <= step][:-KEEP]:
        with contextlib.suppress(OSError):  # a directory of that name is not a checkpoint
            os.remove(old)
    return path


def load_newest(
    directory: str, check: Callable[[int, dict[str, np.ndarray]], None] = lambda step, arrays: None
) -> tuple[int, dict[str, np.ndarray]] | None:
    """Returns (step, arrays) of the newest intact checkpoint; None where there is none.

    One that is damaged, or for which check raises an error, is skipped with a warning.

    Raises Unreadable where the disk or the memory does not let a file be read now, which says nothing of what it holds;
    UserError where this user may not read it.
    """
    for step, path in reversed(list_checkpoints(directory)):
        try:
            arrays = _read(path, step)
            check(step, arrays)
            return step, arrays
        except Exception as error:  # of almost any type: one flipped bit can make a file seem encrypted
            if isinstance(error, MemoryError) or getattr(error, "errno", None) not in _LASTING_ERRORS:
                reason = f"cannot read the checkpoint {path} now: {reason_of(error)}"
                error_type = UserError if isinstance(error, PermissionError) else Unreadable
                raise error_type(f"{reason}; without it, the one before would be taken") from error
            warnings.warn(f"skipping the damaged checkpoint {path}: {reason_of(error)}", stacklevel=2)
    return None


def find(directory: str, step: int) -> str:
    """Returns the path of the checkpoint of a step; raises UserError where there is none, or none any more."""
    paths = dict(list_checkpoints(directory))
    if step not in paths:
        there = ", ".join(map(str, paths)) or "none"
        raise UserError(f"{directory} has no checkpoint of step {step}; steps that have one: {there}")
    return paths[step]


def load_weights(path: str, step: int, network: keras.Model) -> None:
    """Gives a network the weights of a step's checkpoint; raises UserError where it is damaged or of another one."""
    try:
        arrays = _read(path, step)
        for variable in network.variables:
            variable.assign(arrays[f"variable/{variable.path}"])
    except Exception as error:  # as in `load_newest`
        raise UserError(f"cannot use the checkpoint {path}: {reason_of(error)}") from error


def _read(path: str, step: int) -> dict[str, np.ndarray]:
    """Returns the arrays of a checkpoint; raises UserError where it is of another step, almost any if it is damaged."""
    with open_file(path) as file, np.load(file, allow_pickle=False) as stored:
        arrays = dict(stored)
    stored_step = arrays.get("step", np.empty(0))
    require(stored_step.ndim == 0 and stored_step.dtype.kind in "ui", "it has no step number")
    require(stored_step == step, f"it is of step {stored_step}, not of the step in its name")
    return arrays


def list_checkpoints(directory: str) -> list[tuple[int, str]]:
    """Returns the checkpoints, intact or not, as (step, path), the oldest first."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted((int(m[1]), os.path.join(directory, m[0])) for m in matches if m)


class TrainingState:
    """The contents of a checkpoint: weights, the optimiser's state, and the training figures since the last row.

    Attributes:
      step: The updates done.
      is_end: Whether training ended with these weights, at the last step or by a callback.
    """

    def __init__(self, network: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        self.network = network
        self.step = 0
        self.is_end = False
        self._variables = {v.path: v for v in [*network.variables, *optimizer.variables]}
        # Sums of the figures over the steps since the last row: those before this epoch of fit, and its means.
        self._sums: dict[str, float] = {}
        self._num_summed = 0
        self._first_step = 0
        self._means: dict[str, Any] = {}

    def begin_epoch(self) -> None:
        """Begins an epoch of fit, whose means start anew."""
        self._sums = self._all_sums()
        self._num_summed = self._count()
        self._first_step = self.step
        self._means = {}

    def advance(self, num_steps: int, means: dict[str, Any]) -> None:
        """Records that an epoch of fit has done a number of steps, with these means of the training figures."""
        self.step = self._first_step + num_steps
        self._means = means

    def means(self) -> dict[str, float]:
        """Returns the means of the training figures since the last row."""
        count = self._count()
        return {name: total / count for name, total in self._all_sums().items()}

    def pop_means(self) -> dict[str, float]:
        """Returns the means of the training figures since the last call."""
        means = self.means()
        self._sums = {}
        self._means = {}
        self._num_summed = 0
        self._first_step = self.step
        return means

    def _count(self) -> int:
        return self._num_summed + self.step - self._first_step

    def _all_sums(self) -> dict[str, float]:
        count = self.step - self._first_step
        names = self._sums.keys() | self._means.keys()
        return {name: self._sums.get(name, 0.0) + count * float(self._means.get(name, 0.0)) for name in names}

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the variables, as a checkpoint names them."""
        return {f"variable/{path}": keras.ops.convert_to_numpy(v) for path, v in self._variables.items()}

    def save(self, directory: str, end_of: int = 0) -> None:
        """Writes a checkpoint into the directory; end_of is the run's train_steps where training has ended, else 0."""
        sums = {f"sum/{name}": np.float64(total) for name, total in self._all_sums().items()}
        count = np.int64(self._count())
        save(directory, self.step, self.arrays() | sums | {"steps_summed": count, "end_of": np.int64(end_of)})

    def flat(self) -> tuple[str, np.ndarray]:
        """Returns all that it holds: the training figures as text, the step and the variables as float64 [n]."""
        parts = [keras.ops.convert_to_numpy(v).ravel().astype(np.float64) for v in self._variables.values()]
        return json.dumps([self._all_sums(), self._count(), self.is_end]), np.concatenate([[self.step], *parts])

    def take_flat(self, figures: str, values: np.ndarray) -> None:
        """Takes the state that another worker's `flat` returned."""
        self._sums, self._num_summed, self.is_end = json.loads(figures)
        self.step = self._first_step = int(values[0])
        start = 1
        for variable in self._variables.values():
            stop = start + math.prod(variable.shape)
            variable.assign(values[start:stop].reshape(variable.shape))
            start = stop

    def restore(self, directory: str, num_steps: int) -> None:
        """Takes the state from the newest checkpoint that is intact and fits a run of num_steps, if there is a file.

        Raises UserError where none can be used: beginning again would cost what the run has done; Unreadable as
        `load_newest`.
        """

        def check(step: int, arrays: dict[str, np.ndarray]) -> None:
            # Whole numbers are of 32 bits under one backend and of 64 under another.
            type_and_shape = lambda array, name: (name.replace("int64", "int32"), *array.shape)  # noqa: E731
            expected = {f"variable/{path}": type_and_shape(v, v.dtype) for path, v in self._variables.items()}
            stored = {k: type_and_shape(a, a.dtype.name) for k, a in arrays.items() if k.startswith("variable/")}
            name = min({name for name, _ in stored.items() ^ expected.items()}, default="")
            require(not name, f"{name} is {stored.get(name)}, this network's {expected.get(name)}")
            scalars = {name for name, array in arrays.items() if array.ndim == 0 and np.isfinite(array)}
            num_summed = arrays.get("steps_summed", -1)
            needed = _FIGURES if num_summed else {"steps_summed"}
            require(scalars >= needed, f"it lacks {', '.join(sorted(needed - scalars))}")
            is_possible = 0 <= num_summed <= step <= num_steps
            require(is_possible, f"it is at step {step} of {num_steps}, with figures of {num_summed} steps")

        newest = load_newest(directory, check)
        if newest is None:
            count = len(list_checkpoints(directory))
            advice = "put an intact one there, or start again in another run_dir"
            require(count == 0, f"none of the {count} checkpoint(s) in {directory} can be used; {advice}")
            return
        self.step, arrays = newest
        self._first_step = self.step
        self.is_end = bool(arrays.get("end_of", 0) == num_steps)
        for path, variable in self._variables.items():
            variable.assign(arrays[f"variable/{path}"])
        self._sums = {name[4:]: float(total) for name, total in arrays.items() if name.startswith("sum/")}
        self._num_summed = int(arrays["steps_summed"])
