"""Claims that make remarks about linear networks precise: depth and norms, complex layers, the cost of flattening."""

import math

import numpy as np
from scipy import linalg

from theory import factorization, linear_residual
from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.linear import remarks
from theory.mutations import changed, reversed_layers, scaled


@claim(
    id="hm.offset",
    source="Hardt & Ma §1.1, “regularization may offset the increase in parameters”",
    statement=(
        "det R > 0: some A with product R has Σ‖A_i‖²_F ≤ dℓ(2 sin(π/2ℓ) + e^{γ/ℓ} − 1)², which falls as 1/ℓ while the "
        "parameters grow as ℓ"
    ),
    hypotheses={
        "det R > 0": (
            lambda: factorization.factorize(np.diag([-1.0, 1.0]), 8).any(),
            lambda: factorization.factorize(np.diag([0.0, 1.0]), 8).any(),
        )
    },
    verdict="holds: of the least weight penalty; what a penalty does to the test error is no statement",
    proof="none given",
    is_remark=True,
    function=factorization.factorize,
    mutation=(reversed_layers, scaled(1.01)),
)
def offset(rng: np.random.Generator, trials: int) -> Pairs:
    """Σ‖A_i‖²_F of the polar method against dℓ times the square of its bound; ℓΣ‖A_i‖²_F against ‖log Q + log P‖²_F.

    ‖A_i‖²_F ≤ d‖A_i‖², and all layers of the polar method have one norm, within 2 sin(π/2ℓ) + e^{γ/ℓ} − 1. To first
    order in 1/ℓ, ℓA_i is log Q + log P turned by a power of Q, which keeps its norm.
    """
    for _ in range(trials):
        R = rng.standard_normal((4, 4))
        R = factorization.rescale(R if np.linalg.det(R) > 0 else factorization.flip_label(R))[0]
        num_layers = math.ceil(3 * factorization.log_condition(R)) + int(rng.integers(1, 30))
        penalties = []
        for depth in (num_layers, 64 * num_layers):
            A = factorization.factorize(R, depth)
            yield relative_error(linear_residual.end_to_end(A), R), ROUNDING
            penalties.append(np.square(A).sum())
            yield penalties[-1], 4 * depth * factorization.norm_bound(R, depth) ** 2
        u, sigma, vt = np.linalg.svd(R)
        limit = np.square(linalg.logm(u @ vt).real + (vt.T * np.log(sigma)) @ vt).sum()
        yield abs(depth * penalties[1] / limit - 1), 1 / num_layers
        yield penalties[1], penalties[0]  # of 64 times the parameters


@claim(
    id="hm.complex_layers",
    source="Hardt & Ma A.1, “significantly easier … if we allow the variables to be complex matrices”",
    statement=(
        "complex A_i: every R that is not singular, also with det R < 0, is a product with |||A||| ≤ 2 sin(π/2ℓ) + "
        "e^{γ/ℓ} − 1"
    ),
    hypotheses={"not singular": lambda: bool(remarks.complex_layers(np.diag([0.0, 1.0]), 8).any())},
    verdict="holds: eigenvalues −1 need no pairs and det R no sign",
    proof="none given",
    is_remark=True,
    function=remarks.complex_layers,
    mutation=(reversed_layers, scaled(1.01)),
)
def complex_layers(rng: np.random.Generator, trials: int) -> Pairs:
    """|||A||| of complex layers against the bound, their product against R, det R of both signs; equality at R = −1."""
    signs = set()
    for _ in range(2 * trials):
        d = int(rng.integers(1, 7))
        R = rng.standard_normal((d, d))
        signs.add(bool(np.linalg.det(R) > 0))
        num_layers = int(rng.integers(1, 40))
        A = remarks.complex_layers(R, num_layers)
        product = np.eye(d)
        for layer in A:
            product = product + layer @ product
        yield np.abs(product - R).max() / np.abs(R).max(), ROUNDING
        gamma = factorization.log_condition(R)
        bound = 2 * math.sin(math.pi / (2 * num_layers)) + math.expm1(gamma / num_layers)
        yield np.linalg.norm(A, 2, axis=(1, 2)).max(), bound * (1 + ROUNDING)
    require(len(signs) == 2, "determinants of one sign were tried")
    for num_layers in range(1, 20):
        norm = np.abs(remarks.complex_layers(-np.eye(1), num_layers)).max()
        yield abs(norm / (2 * math.sin(math.pi / (2 * num_layers))) - 1), ROUNDING


@claim(
    id="blog.flattening",
    source="blog, note 3, “a great cost in efficiency can be incurred”",
    statement=(
        "ℓ layers of width d = 2^ℓ with two entries a row, 2dℓ in all, have a product of d² entries; ℓ dense layers "
        "have ℓd², and their product d²"
    ),
    verdict="holds: “can”, with sparse layers; dense layers of one width become cheaper",
    proof="none given",
    is_remark=True,
    function=remarks.butterfly_layers,
    mutation=(scaled(1.1), changed(lambda A: A[1:])),
)
def flattening(rng: np.random.Generator, trials: int) -> Pairs:
    """The product of the layers against Hadamard's matrix; how many entries are not 0 against 2dℓ, of it against d²."""
    for num_layers in range(1, 9):
        d = 2**num_layers
        A = remarks.butterfly_layers(num_layers)
        product = linear_residual.end_to_end(A)
        yield relative_error(product, linalg.hadamard(d)), 0
        layers_entries = np.count_nonzero(A + np.eye(d))
        yield layers_entries, 2 * d * num_layers
        yield d * d, np.count_nonzero(product)
        dense = rng.standard_normal((num_layers, d, d)) / d
        yield num_layers * np.count_nonzero(linear_residual.end_to_end(dense)), np.count_nonzero(dense + np.eye(d))
