"""Checkpoints of a training run: one .npz file each, the newest intact one is found again.

A .npz file is a zip archive, so every array carries a checksum and a truncated or damaged
file is recognised. It needs no TensorFlow and means the same under every Keras backend. It holds its step, so that a
file under the name of another one is recognised as well.
"""

import contextlib
import errno
import os
import re
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from identity_matters.errors import Unreadable, UserError, reason_of
from identity_matters.runs.files import open_file, replacing

KEEP = 3
TRAINING_FIGURES = ("cross_entropy", "loss", "top1", "top5")  # of every training step
_NAME = re.compile(r"step_(\d{8,10})\.npz")
# Of a file that is gone, a socket, or damaged: bytes before its start are asked for, or a decompressor refuses them.
_LASTING_ERRORS = (errno.ENOENT, errno.ENXIO, errno.EINVAL, None)


def save(directory: str, arrays: dict[str, np.ndarray]) -> str:
    """Writes step_<step>.npz, whole or not at all, and removes all but the newest KEEP checkpoints; returns its path.

    The arrays include the step.
    """
    step = int(arrays["step"])
    path = os.path.join(directory, f"step_{step:08d}.npz")
    try:
        os.makedirs(directory, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"cannot write the checkpoint {path}: {reason}; the older ones are kept") from error
    for _, old in [checkpoint for checkpoint in list_checkpoints(directory) if checkpoint[0] <= step][:-KEEP]:
        with contextlib.suppress(OSError):  # a directory of that name is not a checkpoint
            os.remove(old)
    return path


def load_newest(directory: str, use: Callable[[dict[str, np.ndarray]], None]) -> bool:
    """Calls use(arrays) with the newest intact checkpoint; returns whether there is one.

    One that is damaged, or for which `use` raises an error, is skipped with a warning.

    Raises Unreadable if the disk or the memory does not let a file be read now, though it may be intact; UserError if
    this user may not read it.
    """
    for step, path in reversed(list_checkpoints(directory)):
        try:
            use(_read(path, step))
            return True
        except Exception as error:  # of almost any type: one flipped bit can make a file seem encrypted
            if isinstance(error, MemoryError) or getattr(error, "errno", None) not in _LASTING_ERRORS:
                reason = f"cannot read the checkpoint {path} now: {reason_of(error)}"
                error_type = UserError if isinstance(error, PermissionError) else Unreadable
                raise error_type(f"{reason}; without it, the one before would be taken") from error
            warnings.warn(f"skipping the damaged checkpoint {path}: {reason_of(error)}", stacklevel=2)
    return False


def find(directory: str, step: int) -> str:
    """Returns the path of the checkpoint of a step; raises UserError if there is none, or none any more."""
    paths = dict(list_checkpoints(directory))
    if step not in paths:
        there = ", ".join(map(str, paths)) or "none"
        raise UserError(f"{directory} has no checkpoint of step {step}; steps that have one: {there}")
    return paths[step]


def load_weights(path: str, step: int, network: keras.Model) -> None:
    """Gives a network the weights of a step's checkpoint; raises UserError if it is damaged or of another step."""
    try:
        arrays = _read(path, step)
        for variable in network.variables:
            variable.assign(arrays[f"variable/{variable.path}"])
    except Exception as error:  # as in `load_newest`
        raise UserError(f"cannot use the checkpoint {path}: {reason_of(error)}") from error


def _read(path: str, step: int) -> dict[str, np.ndarray]:
    """Returns the arrays of the checkpoint of a step; raises an error of almost any type if it is damaged."""
    with open_file(path) as file, np.load(file, allow_pickle=False) as stored:
        arrays = dict(stored)
    stored_step = int(arrays["step"])
    if stored_step != step:
        raise UserError(f"it is of step {stored_step}, not of the step in its name")
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
      num_steps: The updates of the whole run.
      step: The updates done.
      is_end: Whether training ended with these weights, at the last step or by a callback.
    """

    def __init__(self, network: keras.Model, optimizer: keras.optimizers.Optimizer, num_steps: int) -> None:
        self.network = network
        self.num_steps = num_steps
        self.step = 0
        self.is_end = False
        self._variables = {f"variable/{v.path}": v for v in [*network.variables, *optimizer.variables]}
        # Sums of the figures over the steps since the last row: those before this epoch of fit, and its means.
        self._sums: dict[str, float] = dict.fromkeys(TRAINING_FIGURES, 0.0)
        self._num_summed = 0
        self._first_step = 0
        self._means: dict[str, Any] = {}

    def begin_epoch(self) -> None:
        """Begins an epoch of fit, whose means start anew."""
        self._sums = self.sums()
        self._num_summed = self._count()
        self._first_step = self.step
        self._means = {}

    def advance(self, num_steps: int, means: dict[str, Any]) -> None:
        """Records that an epoch of fit has done a number of steps, with these means of the training figures."""
        self.step = self._first_step + num_steps
        self._means = means

    def means(self) -> dict[str, float]:
        """Returns the means of the training figures since the last row; {} if no step was done since."""
        count = self._count()
        return {name: total / count for name, total in self.sums().items()} if count else {}

    def pop_means(self) -> dict[str, float]:
        """Returns the means of the training figures since the last call."""
        means = self.means()
        self._sums = dict.fromkeys(TRAINING_FIGURES, 0.0)
        self._means = {}
        self._num_summed = 0
        self._first_step = self.step
        return means

    def _count(self) -> int:
        return self._num_summed + self.step - self._first_step

    def sums(self) -> dict[str, float]:
        """Returns the sums of the training figures over the steps since the last row."""
        count = self.step - self._first_step
        names = self._sums.keys() | self._means.keys()
        return {name: self._sums.get(name, 0.0) + count * float(self._means.get(name, 0.0)) for name in sorted(names)}

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the variables of the network and the optimiser, as a checkpoint names them."""
        return {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns all that it holds, as a checkpoint does."""
        # A run that is made longer does not end where it ended before.
        end_of = self.num_steps if self.is_end else 0
        counts = {"step": self.step, "steps_summed": self._count(), "end_of": end_of}
        sums = {f"sum/{name}": np.float64(total) for name, total in self.sums().items()}
        return {name: np.int64(value) for name, value in counts.items()} | sums | self.weights()

    def assign(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes the state that another one's `arrays` holds; raises KeyError or ValueError if it does not fit."""
        step = int(arrays["step"])
        if step > self.num_steps:
            raise ValueError(f"it is at step {step} of {self.num_steps}")
        for name, variable in self._variables.items():
            if arrays[name].shape != tuple(variable.shape):
                raise ValueError(f"{name} has the shape {arrays[name].shape}, this network's {tuple(variable.shape)}")
        for name, variable in self._variables.items():
            variable.assign(arrays[name])
        self._sums = {name[4:]: float(total) for name, total in arrays.items() if name.startswith("sum/")}
        self._num_summed = int(arrays["steps_summed"])
        self.step = step
        self.is_end = int(arrays["end_of"]) == self.num_steps
        self._first_step = step

    def restore(self, directory: str) -> None:
        """Takes the state from the newest checkpoint that is intact, if there is a file.

        Raises UserError if none can be used: beginning again would cost what the run has done; Unreadable as
        `load_newest`.
        """
        is_restored = load_newest(directory, self.assign)
        count = len(list_checkpoints(directory))
        if count and not is_restored:
            raise UserError(
                f"none of the {count} checkpoint(s) in {directory} can be used; put an intact one there, or start "
                "again in another run_dir"
            )
