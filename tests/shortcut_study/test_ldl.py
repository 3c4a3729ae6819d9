"""The factorisation agrees with SciPy's, does not change its arguments, and lets other threads run."""

import concurrent.futures
import threading
import time

import numpy as np
import pytest
from scipy.linalg import lapack

from shortcut_study import ldl


def symmetric(n, seed=0):
    matrix = np.random.default_rng(seed).standard_normal((n, n))
    return matrix + matrix.T


@pytest.mark.parametrize("n", [1, 2, 7, 200])
@pytest.mark.parametrize("order", ["C", "F"])
def test_factor_and_solution_are_scipys(n, order):
    matrix, right = np.array(symmetric(n), order=order), np.random.default_rng(1).standard_normal((n, 3))
    before, right_before = matrix.copy(), right.copy()
    factor, interchanges, status = ldl.ldl(matrix)
    # With the same workspace, so that SciPy's goes by the same blocks.
    expected, expected_interchanges, _ = lapack.dsytrf(matrix, lower=1, lwork=64 * n)
    assert status == 0
    np.testing.assert_array_equal(interchanges, expected_interchanges)
    np.testing.assert_allclose(np.tril(factor), np.tril(expected), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(matrix @ ldl.solve(factor, interchanges, right), right, atol=1e-10)
    np.testing.assert_array_equal(matrix, before)
    np.testing.assert_array_equal(right, right_before)


def test_a_singular_matrix_has_the_place_of_the_zero_as_status():
    assert ldl.ldl(np.diag([1.0, 0.0, 2.0]))[2] == 2


def test_inertia_of_blocks_of_two_rows():
    factor, interchanges, status = ldl.ldl(np.array([[0.0, 1.0], [1.0, 0.0]]))
    assert status == 0 and interchanges[0] == interchanges[1] < 0


def test_another_thread_runs_python_while_a_matrix_is_factored():
    matrix, times, stop = symmetric(2500), [], threading.Event()

    def note_the_time():
        while not stop.is_set():
            times.append(time.perf_counter())
            time.sleep(0.001)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(note_the_time)
        try:
            start = time.perf_counter()
            ldl.ldl(matrix)
            end = time.perf_counter()
        finally:
            stop.set()
    # Of scipy.linalg.lapack.dsytrf, in SciPy 1.17, there are none.
    middle = [moment for moment in times if 0.5 < (moment - start) / (end - start) < 0.9]
    assert middle, f"no other thread ran in the middle of {end - start:.3f} seconds"
