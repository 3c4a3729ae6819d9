"""Hides what TensorFlow's C++ code logs while it is imported, for which TensorFlow has no setting."""

import contextlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


@contextlib.contextmanager
def silenced_stderr() -> Iterator[None]:
    """Opens a context in which nothing that is written to the standard error of the process appears."""
    if sys.stderr:
        sys.stderr.flush()
    try:
        terminal = os.dup(2)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.close(nowhere)


class SilentTensorFlow(importlib.abc.MetaPathFinder):
    """Finds TensorFlow as Python does, and imports it in a `silenced_stderr`, whoever asks for it first."""

    _is_searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec of TensorFlow, None for other modules."""
        if fullname != "tensorflow" or self._is_searching:
            return None
        # Asking Python for the spec asks this finder again: with the flag set it returns None.
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(fullname)  # by the other finders
        finally:
            self._is_searching = False
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_silently(module: ModuleType) -> None:
                with silenced_stderr():
                    execute(module)

            spec.loader.exec_module = execute_silently
        return spec
