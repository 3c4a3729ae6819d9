"""Output that survives its reader: a run continues when a pipe or terminal is closed."""

import contextlib
import io
import os
import sys
from collections.abc import Iterator

from absl import logging

from identity_matters import silence_tensorflow
from identity_matters.errors import UserError, explaining


class _Output(io.FileIO):
    """stdout or stderr; once it cannot be written, output is dropped."""

    def write(self, data: bytes) -> int:
        try:
            return super().write(data)
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def open_outputs() -> None:
    """Replaces sys.stdout and sys.stderr by streams that drop what cannot be written, also where `>&-` closed them.

    The next file that is opened would otherwise get a closed descriptor, and TensorFlow would log into it.
    """
    logging.set_verbosity(logging.ERROR)  # TFDS's warnings would stand before the one line of an error
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free, which is this one
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__"):  # not a notebook's, or pytest's
            raw = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
            encoding = stream.encoding if stream else "utf-8"
            setattr(sys, name, io.TextIOWrapper(raw, encoding, errors="backslashreplace", line_buffering=True))


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Hides what TensorFlow's C++ code logs while it is imported, for which TensorFlow has no setting.

    Raises:
      UserError: Keras cannot be imported with the backend that KERAS_BACKEND names.
    """
    with explaining(unusable_backend), silence_tensorflow.silenced_stderr():
        yield


def unusable_backend(error: Exception) -> Exception | None:
    """The rule that names KERAS_BACKEND where Keras cannot import the backend that it names."""
    backend = os.environ.get("KERAS_BACKEND", "")
    is_missing = isinstance(error, ImportError) and bool(backend) and (error.name or "").startswith(backend)  # jaxlib
    is_unknown = isinstance(error, ValueError) and str(error).startswith("Unable to import backend")
    return UserError(f"KERAS_BACKEND={backend} cannot be used: {error}") if is_missing or is_unknown else None
