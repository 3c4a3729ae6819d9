"""Imports TensorFlow and Keras quietly, with a UserError for a backend that is not installed."""

import contextlib
import os
import sys
from collections.abc import Iterator

from identity_matters.errors import UserError, translate_errors


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Context manager: hides what TensorFlow's C++ code logs while it is imported, for which there is no setting.

    Raises:
      UserError: Keras cannot be imported with the backend that KERAS_BACKEND names.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with translate_errors(unusable_backend):
            yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nowhere)


def unusable_backend(error: Exception) -> Exception | None:
    """The rule that names KERAS_BACKEND if Keras cannot import that backend."""
    backend = os.environ.get("KERAS_BACKEND", "")
    is_missing = isinstance(error, ImportError) and bool(backend) and (error.name or "").startswith(backend)  # jaxlib
    is_unknown = isinstance(error, ValueError) and str(error).startswith("Unable to import backend")
    return UserError(f"KERAS_BACKEND={backend} cannot be used: {error}") if is_missing or is_unknown else None
