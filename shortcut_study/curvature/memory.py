"""Memory for the vectors of a measurement: compared with what the process may use before the first product."""

import os
import shutil
import tempfile

import numpy as np

from identity_matters.errors import UserError
from identity_matters.runs.machine import available_memory

SHARE_OF_BASIS = 0.5  # of the available memory: a larger basis is mapped to a file, as others need memory too


def check_memory(argument: str, count: int, dim: int, dtype: type, spare: int, share: float = 1.0) -> None:
    """Raises ValueError unless `spare` vectors [dim] and that share of `count` of them fit into the memory."""
    size = np.dtype(dtype).itemsize * dim
    free = available_memory()
    needed = size * (share * min(count, dim) + spare)
    if needed > free:
        most = int((free / size - spare) / share)
        advice = f"choose at most {most}" if most > 0 else "which not even one leaves room for"
        raise UserError(f"{_needs(argument, count, needed, dim)}, and {free / 1e9:.1f} GB are free; {advice}")


def basis(order: int, dim: int, dtype: np.dtype, spare: int, folder: str | os.PathLike | None = None) -> np.ndarray:
    """Returns memory [order, dim] for a basis, or for eigenvectors, beside which `spare` vectors fit.

    A basis of more than half of the available memory is a file of `folder`, or of the folder for temporary files (which
    TMPDIR names; one in memory is of no use), that is mapped: the system keeps in memory what fits. It has no name from
    its start on, so that it is gone with the array, however the process ends.
    """
    check_memory("order", 0, dim, dtype, spare)
    size = dtype.itemsize * dim
    free = available_memory()
    if size * order <= SHARE_OF_BASIS * free:
        return np.empty((order, dim), dtype)
    folder = os.path.abspath(folder or tempfile.gettempdir())
    room = shutil.disk_usage(folder).free
    if size * order > room:
        most = max(room, SHARE_OF_BASIS * free) // size
        available = f"{free / 1e9:.1f} GB of memory are free, and {room / 1e9:.1f} GB of disk at {folder}"
        raise UserError(f"{_needs('order', order, size * order, dim)}; {available}; choose at most {most:.0f}")
    with tempfile.NamedTemporaryFile(dir=folder, prefix="lanczos_basis_") as file:
        return np.memmap(file, dtype, "w+", shape=(order, dim))


def _needs(argument: str, count: int, needed: float, dim: int) -> str:
    subject = f"{argument}={count} needs" if count else "each product needs"
    return f"{subject} {needed / 1e9:.1f} GB for vectors of {dim:,} weights"
