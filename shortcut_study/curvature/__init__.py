"""Curvature of any Keras model, on every backend: exact products with the Hessian, spectra, traces, diagonals.

    spectrum = curvature.spectrum(model, x, y)
    print(spectrum)            # extreme eigenvalues, trace and density, each with its error
    spectrum.plot()            # the density of the eigenvalues, a Matplotlib figure

    Hessian(model, x, y, loss=None, …)       the operator: h @ v, h.shape, h.spectrum(), h.trace(), h.diagonal(),
                                             h.per_layer(), h.landscape(), h.to_scipy(); of the Gauss–Newton matrix too
    spectrum(model, x, y, …), diagonal, …    the same in one call: Hessian(model, x, y).spectrum()
    HessianCallback(x, y, log_dir, …)        during training: a callback of model.fit, for TensorBoard
    with_dtype(model, "float64")             a copy of a model in another type; Hessian(…, dtype="float64") needs none

Each is loaded when it is first asked for, so that a spectrum can be drawn without TensorFlow. lanczos, quadrature
and estimators need only a matrix's products; operator computes those of an objective through a backend.
"""

import importlib
from typing import Any

_MODULES = {
    "Hessian": f"{__name__}.operator",
    "ModelSpectrum": f"{__name__}.model_spectrum",
    "spectrum": f"{__name__}.operator",
    "trace": f"{__name__}.operator",
    "diagonal": f"{__name__}.operator",
    "per_layer": f"{__name__}.operator",
    "landscape": f"{__name__}.operator",
    "Landscape": f"{__name__}.landscapes",
    "HessianCallback": f"{__name__}.callback",
    "with_dtype": "identity_matters.dtypes",
}
__all__ = list(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
