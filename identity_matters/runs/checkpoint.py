"""Checkpoints of a training run: one .npz file each, the newest intact one is found again.

A .npz file is a zip archive, so every array carries a checksum and a truncated or damaged
file is recognised. It needs no TensorFlow and means the same under every Keras backend.
"""

import json
import os
import re
import warnings
import zipfile
import zlib

import keras
import numpy as np

from identity_matters.distributed.workers import Workers
from identity_matters.runs.directory import replacing
from identity_matters.runs.errors import UserError

KEEP = 3
_NAME = re.compile(r"step_(\d{8})\.npz")


def save(directory: str, step: int, arrays: dict[str, np.ndarray]) -> str:
    """Writes step_<step>.npz whole or not at all, removes all but the newest KEEP checkpoints, returns its path.

    Args:
      directory: str. Created if missing.
      step: int. Updates done.
      arrays: Name to array.

    Raises:
      OSError: the file cannot be written; the older checkpoints are as they were.
    """
    path = os.path.join(directory, f"step_{step:08d}.npz")
    try:
        os.makedirs(directory, exist_ok=True)
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays, num_arrays=len(arrays) + 1)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"cannot write the checkpoint {path}: {reason}; the older ones are kept") from error
    for _, old in _list_checkpoints(directory)[:-KEEP]:
        os.remove(old)
    return path


def load_newest(directory: str) -> tuple[int, dict[str, np.ndarray]] | None:
    """Returns (step, arrays) of the newest intact checkpoint; None where there is none.

    A damaged file is skipped with a warning.
    """
    for step, path in reversed(_list_checkpoints(directory)):
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            if len(arrays) != arrays["num_arrays"]:
                raise UserError("arrays are missing")
            return step, arrays
        # A bit flipped in the archive's directory can make a file seem encrypted, which raises RuntimeError.
        except (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
            warnings.warn(f"skipping the damaged checkpoint {path}: {error}", stacklevel=2)
    return None


def _list_checkpoints(directory: str) -> list[tuple[int, str]]:
    """Returns the checkpoints as (step, path), the oldest first."""
    if not os.path.isdir(directory):
        return []
    matches = (_NAME.fullmatch(name) for name in sorted(os.listdir(directory)))
    return [(int(m[1]), os.path.join(directory, m[0])) for m in matches if m]


class TrainingState:
    """What a checkpoint holds: weights, the optimiser's state, and the training figures since the last row."""

    def __init__(self, network: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        self.network, self.step = network, 0
        self._variables = {v.path: v for v in [*network.variables, *optimizer.variables]}
        self._sums, self._steps_summed = {}, 0

    def advance(self, step: int, means: dict[str, float]) -> None:
        """Takes in the means of the training figures over the steps up to `step`."""
        for name, mean in means.items():
            self._sums[name] = self._sums.get(name, 0.0) + mean * (step - self.step)
        self._steps_summed += step - self.step
        self.step = step

    def take_means(self) -> dict[str, float]:
        """Returns the means of the training figures since the last call."""
        means = {name: total / self._steps_summed for name, total in self._sums.items()}
        self._sums, self._steps_summed = {}, 0
        return means

    def save(self, directory: str) -> None:
        """Writes a checkpoint into the directory."""
        arrays = {f"variable/{path}": keras.ops.convert_to_numpy(v) for path, v in self._variables.items()}
        sums = {f"sum/{name}": np.float64(total) for name, total in self._sums.items()}
        save(directory, self.step, arrays | sums | {"steps_summed": np.int64(self._steps_summed)})

    def broadcast(self, workers: Workers) -> None:
        """Gives every worker all that the chief holds."""
        if workers.num_processes == 1:
            return
        self._sums, self._steps_summed = json.loads(
            workers.broadcast_text(json.dumps([self._sums, self._steps_summed]))
        )
        parts = [keras.ops.convert_to_numpy(v).ravel().astype(np.float64) for v in self._variables.values()]
        flat = workers.broadcast(np.concatenate([[self.step], *parts]))
        self.step = int(flat[0])
        edges = np.cumsum([1, *map(len, parts)])
        for variable, start, stop in zip(self._variables.values(), edges, edges[1:]):
            variable.assign(flat[start:stop].reshape(variable.shape))

    def restore(self, directory: str) -> None:
        """Takes the state from the newest intact checkpoint; nothing changes where there is none."""
        found = load_newest(directory)
        if found is None:
            return
        self.step, arrays = found
        for path, variable in self._variables.items():
            variable.assign(arrays[f"variable/{path}"])
        self._sums = {name[4:]: float(total) for name, total in arrays.items() if name.startswith("sum/")}
        self._steps_summed = int(arrays["steps_summed"])
