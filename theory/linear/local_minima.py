"""Linear residual networks without restriction to a ball: bad critical points, which are not local minima.

paper                                     code
(I + A_ℓ)···(I + A_1), f                  as in linear_residual.py
U, σ, Vᵀ of R, Σ = I                      a critical point for each subset of the σ: bad_critical_point

Kenji Kawaguchi, *Deep learning without poor local minima*, NeurIPS 2016 (arXiv 1605.07110): every local minimum of a
deep linear network is a global one; other critical points are saddles, from three layers on some without a negative
eigenvalue of the Hessian. Hardt & Ma cite it as [12]. The proof in docs/appendix/proofs.md, for square layers, is after
Thomas Laurent and James von Brecht, *Deep linear networks with arbitrary loss: all local minima are global*, ICML 2018.
"""

import numpy as np

from theory import linear_residual

_STEPS = 0.5 ** np.arange(0, 30, 3)
_DRAWS = 8


def bad_critical_point(R: np.ndarray, num_layers: int, kept: np.ndarray) -> np.ndarray:
    """Returns A [ℓ, d, d] with ∇f = 0, Σ = I, and excess risk Σ σ_i² over the singular values of R not kept.

    With R = U diag(σ) Vᵀ: N_1 = D Vᵀ, N_ℓ = U D, D between, D = diag(σ^{1/ℓ}) for the kept values, 0 for the others.

    Args:
      R: [d, d]. num_layers: ℓ ≥ 2. kept: [d] bool, not all true.
    """
    u, sigma, vt = np.linalg.svd(R)
    root = np.where(kept, sigma ** (1 / num_layers), 0)
    layers = np.repeat(np.diag(root)[None], num_layers, axis=0)
    layers[0] = root[:, None] * vt
    layers[-1] = u * root
    return layers - np.eye(len(R))


def escape(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """Returns a lower point near a bad critical point A, which is therefore not a local minimum (Kawaguchi 2016).

    Let k be the first layer at which N_k···N_1 is singular, uᵀN_k···N_1 = 0. Then N_{k+1} + size·w uᵀ gives the
    same output for every w; so do such changes of the layers after it. For random w the gradient there is not 0, and
    a step against it goes down; the lowest of several draws is returned, and A itself at a minimum.

    Args:
      A: [ℓ, d, d]. R, Sigma: [d, d]. size: Half of the largest change of a layer, in spectral norm.
    """
    lower = A
    for _ in range(_DRAWS):
        for point in _downhill(moved_freely(A, size, rng), R, Sigma, size):
            if linear_residual.risk(point, R, Sigma) < linear_residual.risk(lower, R, Sigma):
                lower = point
    return lower


def moved_freely(A: np.ndarray, size: float, rng: np.random.Generator) -> np.ndarray:
    """Returns A with size·w uᵀ, w random, added to each layer after a singular product uᵀN_j···N_1 = 0: f is the same.

    Args:
      A: [ℓ, d, d]. size: Spectral norm of each change.
    """
    moved = np.array(A, np.float64)
    product = np.eye(A.shape[-1])
    d = A.shape[-1]
    for i in range(len(A)):
        u, sigma, _ = np.linalg.svd(product)
        if sigma[-1] < 1e-9 * max(1.0, sigma[0]):
            w = rng.standard_normal(d)
            moved[i] += size * np.outer(w / np.linalg.norm(w), u[:, -1])
        product = (np.eye(d) + moved[i]) @ product
    return moved


def _downhill(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray, size: float) -> list[np.ndarray]:
    """Yields points on the line against the gradient, up to `size` away; none if it is 0 within rounding."""
    slope = linear_residual.gradient(A, R, Sigma)
    length = np.linalg.norm(slope, 2, axis=(1, 2)).max()
    if length <= 1e-12 * np.linalg.norm(R @ Sigma):
        return []
    return [A - step * size / length * slope for step in _STEPS]
