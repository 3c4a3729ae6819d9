"""Curvature of any Keras model on TensorFlow: exact products with the Hessian, spectra, traces, diagonals.

    from shortcut_study import curvature

    spectrum = curvature.spectrum(model, x, y)
    print(spectrum)            # extreme eigenvalues, condition number, index and mean, each with its error
    spectrum.plot()            # the density of the eigenvalues, a Matplotlib figure

    spectrum(model, x, y, loss=None, …)              ModelSpectrum; gauss_newton=True: of the Gauss–Newton matrix
    trace_and_diagonal(model, x, y, loss=None, …)    both, with their standard errors
    per_layer(model, x, y, loss=None, …)             a row for each layer, or residual block; see the next two
    parts_table(rows), parts_figure(rows)            them as text and as a figure
    HessianCallback(x, y, log_dir, …)                along training: a callback of model.fit, for TensorBoard
    model_mvp(model, x, y, batch_size, …)            v ↦ Hv and the number of weights, for methods of your own
    linear_operator(mvp_fn, dim)                     that product as scipy.sparse.linalg takes it
    with_dtype(model, "float64")                     a copy of the model, for products in float64

That is all that a user needs; each is loaded when it is first asked for, so that a spectrum can be drawn again without
waiting for TensorFlow. In the modules: lanczos and quadrature, which know a matrix by its products alone; products, of
a model, with its checks and copies; report, what is printed and drawn.
"""

import importlib
from typing import Any

_MODULES = {
    "ModelSpectrum": "model_spectrum",
    "spectrum": "model_spectrum",
    "trace_and_diagonal": "model_spectrum",
    "per_layer": "model_spectrum",
    "parts_table": "report",
    "parts_figure": "report",
    "HessianCallback": "callback",
    "model_mvp": "products",
    "linear_operator": "lanczos",
    "with_dtype": "copies",
}
__all__ = list(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
