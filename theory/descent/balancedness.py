"""Balanced layers: conserved differences, velocity of the product, rate of descent (Arora et al. 2018, 2019).

paper                                      code
W_1 … W_N, W_{1:N} = W_N···W_1             N_i = I + A_i, layers A [ℓ, d, d]; W = end_to_end(A)
W_{i+1}ᵀ W_{i+1} − W_i W_iᵀ                imbalances(A) [ℓ − 1, d, d]
W_{1:N}'s update, P_W                      product_velocity(W, gradient, ℓ), preconditioner(W, ℓ)
deficiency margin c, ‖W − Φ‖_F ≤ σ_min(Φ) − c     deficiency_margin(W, R)

Sources: Sanjeev Arora, Nadav Cohen and Elad Hazan, *On the optimization of deep networks: implicit acceleration by
overparameterization*, ICML 2018 (Theorem 1, Claim 1); Sanjeev Arora, Nadav Cohen, Noah Golowich and Wei Hu, *A
convergence analysis of gradient descent for deep linear neural networks*, ICLR 2019 (Theorem 1). The latter's loss has
a ½ and the risk of `linear_residual` has none, so every velocity of this module is twice theirs. Its discrete step size
and balancedness, η ≤ c^{(4N−2)/N}/(6144N³‖Φ‖_F^{(6N−4)/N}) and δ = c²/(256N³‖Φ‖_F^{2(N−1)/N}), are quoted from memory,
not verified.
"""

import numpy as np

from theory import linear_residual
from theory.arrays import finite, real


def imbalances(A: np.ndarray) -> np.ndarray:
    """Returns D_i = N_{i+1}ᵀN_{i+1} − N_iN_iᵀ [ℓ − 1, d, d], conserved by gradient flow (Arora et al. 2018, Theorem 1).

    It is zero at A = 0 and for the polar construction of `factorization.factorize`: N_i = Q^{i/ℓ}P^{1/ℓ}Q^{−(i−1)/ℓ}.
    """
    return _differences_of_squares(np.eye(np.shape(A)[-1]) + real("A", A))


def imbalance_drift(gradient: np.ndarray, learning_rate: float) -> np.ndarray:
    """Returns η²(G_{i+1}ᵀG_{i+1} − G_iG_iᵀ), which a step of gradient descent adds to D_i exactly. Not in the papers.

    Terms of order η cancel, as N_{i+1}ᵀG_{i+1} = G_iN_iᵀ. Holds for every differentiable risk of the product, any Σ, R.
    η is the learning rate, G [ℓ, d, d] the gradient as of `linear_residual.gradient`; the result is [ℓ − 1, d, d].
    """
    return learning_rate**2 * _differences_of_squares(real("gradient", gradient))


def _differences_of_squares(G: np.ndarray) -> np.ndarray:
    return G[1:].swapaxes(1, 2) @ G[1:] - G[:-1] @ G[:-1].swapaxes(1, 2)


def drift_bound(learning_rate: float, start: float, end: float) -> float:
    """Returns 2η(f(0) − f(T)), an upper bound on the nuclear norm of D_i(T) − D_i(0) for descent. Not in the papers.

    It holds if each step gains at least η/2·‖∇f‖², as η ≤ 1/L guarantees: Σ_t η²‖∇f‖² ≤ 2η(f(0) − f(T)), for every
    number of steps, depth, dimension and data. Equality: ℓ = 2, A = 0, R − I nilpotent of rank 1,
    one step that gains exactly η/2·‖∇f‖². start and end are the risks f(0) and f(T).
    """
    return 2 * learning_rate * (start - end)


def preconditioner(W: np.ndarray, num_layers: int) -> np.ndarray:
    """Returns P_W [d², d²] with vec(dW/dt) = −P_W vec(∂f/∂W) for balanced layers (Arora et al. 2018, Claim 1).

    P_W = Σ_j (WᵀW)^{(j−1)/ℓ} ⊗ (WWᵀ)^{(ℓ−j)/ℓ} for vec by columns: eigenvectors v_s ⊗ u_r and eigenvalues Σ_j
    σ_r^{2(ℓ−j)/ℓ} σ_s^{2(j−1)/ℓ} by the singular value decomposition W = Σ σ_r u_r v_rᵀ.

    Args:
      W: [d, d]. num_layers: ℓ.
    """
    u, sigma, vt = np.linalg.svd(finite("W", W))
    basis = np.kron(vt.T, u)
    return (basis * _factors(sigma, num_layers).T.ravel()) @ basis.T


def product_velocity(W: np.ndarray, gradient: np.ndarray, num_layers: int) -> np.ndarray:
    """Returns dW/dt = −Σ_j (WWᵀ)^{(ℓ−j)/ℓ} ∂f/∂W (WᵀW)^{(j−1)/ℓ} [d, d] of balanced layers (Arora et al. 2018, Thm. 1).

    This is gradient flow on all layers. Depth appears only in the exponents; it favours directions in which W is large.

    Args:
      W: [d, d]. gradient: ∂f/∂W [d, d], 2(W − R)Σ for the risk of `linear_residual`. num_layers: ℓ.
    """
    W, gradient = _square_matrices(W=W, gradient=gradient)
    u, sigma, vt = np.linalg.svd(W)
    return -u @ (_factors(sigma, num_layers) * (u.T @ gradient @ vt.T)) @ vt


def _square_matrices(**matrices: np.ndarray) -> list[np.ndarray]:
    """Returns the matrices in float64; ValueError unless finite and of one shape [d, d]: NumPy would broadcast them."""
    arrays = [finite(name, matrix) for name, matrix in matrices.items()]
    shapes = [array.shape for array in arrays]
    if len(set(shapes)) > 1 or len(shapes[0]) != 2 or shapes[0][0] != shapes[0][1]:
        raise ValueError(f"{' and '.join(matrices)} must have one shape [d, d], got {' and '.join(map(str, shapes))}")
    return arrays


def _factors(sigma: np.ndarray, num_layers: int) -> np.ndarray:
    """Returns Σ_j σ_r^{2(ℓ−j)/ℓ} σ_s^{2(j−1)/ℓ} [r, s]."""
    exponents = 2 * np.arange(num_layers) / num_layers
    powers = np.power.outer(sigma, exponents)
    return powers[:, ::-1] @ powers.T


def deficiency_margin(W: np.ndarray, R: np.ndarray) -> float:
    """Returns σ_min(R) − ‖W − R‖_F, the largest c of Arora et al. 2019, Definition 2, whose bounds need c > 0.

    For Σ = I, σ_min(W) ≥ c at every later W too, as long as f does not rise.
    """
    W, R = _square_matrices(W=W, R=R)
    return float(np.linalg.svd(R, compute_uv=False)[-1] - np.linalg.norm(W - R))


def margin_bound(num_layers: int, smallest: float, excess: float) -> float:
    """Returns 4ℓ σ^{2−2/ℓ} f ≤ ‖∇f‖²_F for balanced layers, Σ = I, σ ≤ σ_min(W) (sharper than Arora et al. 2019).

    Their Theorem 1 has σ = c and the factor 1 in place of ℓ, which exact balance does not need. It equals
    `linear_residual.gradient_lower_bound_by_layer` for balanced layers, as σ_min(N_i) = σ_min(W)^{1/ℓ} then, and never
    below (2.3), as σ_min(N_i) ≥ 1 − τ.

    Args:
      num_layers: ℓ. smallest: σ, e.g. c; a negative c, which bounds nothing, counts as 0. excess: f.
    """
    return 4 * num_layers * max(smallest, 0.0) ** (2 - 2 / num_layers) * excess


def margin_rate(num_layers: int, smallest: float, learning_rate: float) -> float:
    """Returns 1 − 2ηℓσ^{2−2/ℓ}, an upper bound on the factor of f in a step η ≤ 1/L, by `margin_bound`."""
    return 1 - learning_rate * margin_bound(num_layers, smallest, 0.5)


def first_order_velocity(A: np.ndarray, R: np.ndarray, Sigma: np.ndarray) -> np.ndarray:
    """Returns dW/dt = −Σ_i (N_ℓ···N_{i+1}) ∂f/∂A_i (N_{i−1}···N_1) [d, d] under gradient flow, layers balanced or not.

    Args as `linear_residual.gradient`.
    """
    gradient = linear_residual.gradient(A, R, Sigma)
    layers = np.eye(gradient.shape[-1]) + real("A", A)
    velocity = np.zeros_like(layers[0])
    product = np.eye(gradient.shape[-1])
    for layer, slope in zip(layers, gradient):
        velocity, product = layer @ velocity - slope @ product, layer @ product
    return velocity
