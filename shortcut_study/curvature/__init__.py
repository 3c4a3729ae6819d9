"""Curvature of any Keras model on TensorFlow: exact products with the Hessian, spectra, traces, diagonals.

    from shortcut_study import curvature

    spectrum = curvature.spectrum(model, x, y)
    print(spectrum)            # extreme eigenvalues, trace and density, each with its error
    spectrum.plot()            # the density of the eigenvalues, a Matplotlib figure

    spectrum(model, x, y, loss=None, …)      .largest, .smallest, .trace, .eigenvectors; of the Gauss–Newton matrix too
    diagonal(model, x, y, loss=None, …)      the diagonal, and the trace, with their errors
    per_layer(model, x, y, loss=None, …)     of each layer, residual block, or group of weights; print it, or .plot()
    HessianCallback(x, y, log_dir, …)        during training: a callback of model.fit, for TensorBoard
    model_mvp(model, x, y, …)                v ↦ Hv and the number of weights, for methods of your own
    linear_operator(mvp_fn, dim)             that product as scipy.sparse.linalg takes it
    with_dtype(model, "float64")             a copy of the model, for products in float64

That is all that a user needs; each is loaded when it is first asked for, so that a spectrum can be drawn again without
waiting for TensorFlow. x and y are arrays, or x is a tf.data.Dataset, a PyDataset or an iterable of batches. In the
modules: lanczos, quadrature, deflation and hutchinson, which know a matrix by its products alone; products, of a model,
with its checks, copies and examples; kept, which has them in a file; report, what is printed and drawn.
"""

import importlib
from typing import Any

_MODULES = {
    "ModelSpectrum": "model_spectrum",
    "spectrum": "model_spectrum",
    "diagonal": "model_spectrum",
    "per_layer": "model_spectrum",
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
