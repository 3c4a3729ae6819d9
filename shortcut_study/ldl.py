"""LAPACK's factorisation P L D Lᵀ Pᵀ of symmetric matrices, on as many threads at once as there are cores.

scipy.linalg.lapack has the same two routines, dsytrf and dsytrs, but holds Python's global lock while they run, so that
two threads take turns: on two idle cores counting (inertia.py) then takes 1.4 to 1.6 times as long.
ctypes releases it; the routines themselves are those that SciPy offers to Cython.
"""

import ctypes

import numpy as np
from scipy.linalg import cython_lapack

_BLOCK = 64  # columns that dsytrf updates at once
_LOWER = ctypes.c_char(b"L")


def ldl(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Factors a symmetric matrix [n, n], which is not changed.

    Returns:
      factor [n, n] and interchanges [n] as dsytrf returns them with "L": D is on the diagonal of the factor, and two
      equal negative interchanges mark a block of two rows. The status is 0, or i where D's entry i, counted from 1, is
      0.
    """
    n = len(matrix)
    factor = np.array(matrix.T, np.float64, order="F")  # of a matrix of C's order a plain copy
    interchanges = np.empty(n, np.int32)
    work = np.empty(n * _BLOCK)
    status = ctypes.c_int()
    _dsytrf(*_pointers(_LOWER, n, factor, n, interchanges, work, work.size, status))
    return factor, interchanges, status.value


def solve(factor: np.ndarray, interchanges: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns X [n, k] of MX = right, which is not changed, from the result of `ldl` for M, whose status must be 0."""
    n, k = right.shape
    solution = np.array(right, np.float64, order="F")
    _dsytrs(*_pointers(_LOWER, n, k, factor, n, interchanges, solution, n, ctypes.c_int()))
    return solution


def _pointers(*arguments: "int | np.ndarray | ctypes._SimpleCData") -> list:
    """Fortran takes all by address. What is returned keeps the numbers alive, the caller the arrays."""
    pointers = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            pointers.append(argument.ctypes.data_as(ctypes.c_void_p))
        elif isinstance(argument, int):
            pointers.append(ctypes.byref(ctypes.c_int(argument)))
        else:
            pointers.append(ctypes.byref(argument))
    return pointers


def _routine(name: str, num_arguments: int) -> "ctypes._CFuncPtr":
    capsule = cython_lapack.__pyx_capi__[name]
    signature = ctypes.pythonapi.PyCapsule_GetName
    signature.restype = ctypes.c_char_p
    signature.argtypes = [ctypes.py_object]
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype = ctypes.c_void_p
    address.argtypes = [ctypes.py_object, ctypes.c_char_p]
    function_type = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * num_arguments)
    return function_type(address(capsule, signature(capsule)))


_dsytrf = _routine("dsytrf", 8)
_dsytrs = _routine("dsytrs", 9)
