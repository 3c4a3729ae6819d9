"""Many small matrix products on all cores: one thread per item, each with single-threaded products."""

import concurrent.futures
import functools
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import threadpoolctl


def in_parallel(function: Callable, items: Sequence) -> list:
    """Returns function(item) for each item, on all cores, each with single-threaded matrix products.

    Products of such panels are too small to be split: two threads on one take longer than one.
    """
    # Set once and around the threads: OpenBLAS has one limit for the whole process, not one per thread.
    with single_threaded_products():
        if len(items) <= 1:
            return [function(item) for item in items]
        with concurrent.futures.ThreadPoolExecutor(available_cores()) as pool:
            return list(pool.map(function, items))


def available_cores() -> int:
    """Returns the number of cores that this process may use, or of all cores if unknown, as on macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def single_threaded_products() -> AbstractContextManager:
    """Returns a context in which NumPy and SciPy leave each matrix operation to the thread that calls it."""
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    """Returns the BLAS libraries, looked up once: that takes longer than a small network."""
    # At the first use and not at import: it knows only what is loaded by then, and NumPy and SciPy each bring a BLAS.
    return threadpoolctl.ThreadpoolController()
