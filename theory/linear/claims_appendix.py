"""Claims A.1, C.1 and C.2 of Hardt & Ma, on which the proofs of §2 rest."""

import math

import numpy as np

from theory import linear_residual
from theory.claim import claim
from theory.evidence import ROUNDING, Pairs, relative_error, require
from theory.linear import paper_construction, rotations
from theory.mutations import first_transposed, larger, scaled, vanishing


@claim(
    id="hm.claim_A.1",
    source="Hardt & Ma, Claim A.1",
    statement="an orthogonal Q [2, 2] is W^q Λ with ‖W − I‖ = 2 sin(|θ|/2q) ≤ π/q",
    hypotheses={"orthogonal": lambda: bool(rotations.rotation_roots(2 * np.eye(2), 3)[0].any())},
    function=rotations.rotation_roots,
    mutation=first_transposed,
)
def claim_a_1(rng: np.random.Generator, trials: int) -> Pairs:
    """W^q Λ = Q for rotations and reflections, ‖W − I‖ = 2 sin(|θ|/2q) ≤ π/q and Λ = I for a rotation."""
    for trial in range(2 * trials):
        angle = rng.uniform(-math.pi, math.pi)
        num_roots = int(rng.integers(1, 20))
        Q = rotations.rotation(angle) @ np.diag([1.0, (-1.0) ** trial])
        W, reflection = rotations.rotation_roots(Q, num_roots)
        require(np.array_equal(reflection, np.diag([1.0, (-1.0) ** trial])), "Λ is not what it should be")
        yield relative_error(np.linalg.matrix_power(W, num_roots) @ reflection, Q), ROUNDING
        norm = np.linalg.norm(W - np.eye(2), 2)
        yield abs(norm - 2 * math.sin(abs(angle) / 2 / num_roots)), ROUNDING
        yield norm, math.pi / num_roots


@claim(
    id="hm.exponential",
    source="Hardt & Ma, A.1, “|e^x − 1| ≤ 3|x| for all |x| ≤ 1”",
    statement="|e^x − 1| ≤ (e − 1)|x| ≤ 3|x| for |x| ≤ 1, with equality on the left at x = 1",
    proof="none given",
    after="hm.theorem_2.1_psd",
    function=paper_construction.exponential_bound,
    mutation=(larger, scaled(0.9)),
    hypotheses={"|x| ≤ 1": lambda: paper_construction.exponential_bound(2.0) >= math.expm1(2.0)},
)
def exponential(rng: np.random.Generator, trials: int) -> Pairs:
    """|e^x − 1| against (e − 1)|x|, and that against 3|x|; both ends of the range."""
    for x in (-1.0, *rng.uniform(-1, 1, trials), 1.0):
        bound = paper_construction.exponential_bound(x)
        yield abs(math.expm1(x)), bound * (1 + ROUNDING)
        yield bound, 3 * abs(x)
    yield paper_construction.exponential_bound(1.0), math.expm1(1) * (1 + ROUNDING)


@claim(
    id="hm.claim_C.1",
    source="Hardt & Ma, Claim C.1",
    statement="a real normal U is S D Sᵀ with blocks of size at most 2",
    hypotheses={"normal": lambda: bool(rotations.block_diagonalize(np.array([[1.0, 5.0], [0.0, 1.0]]))[0].any())},
    function=rotations.block_diagonalize,
    mutation=first_transposed,
)
def claim_c_1(rng: np.random.Generator, trials: int) -> Pairs:
    """S D Sᵀ = U with D of blocks of size at most 2, for random normal U with repeated eigenvalues."""
    for trial in range(trials):
        blocks = [rng.uniform(0.1, 2) * rotations.rotation(rng.uniform(-math.pi, math.pi)) for _ in range(2)]
        middle = np.zeros((7, 7))
        for i, block in enumerate(blocks + [blocks[0]] if trial % 2 else blocks):
            middle[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = block
        middle[6, 6] = rng.standard_normal()
        basis = np.linalg.qr(rng.standard_normal((7, 7)))[0]
        U = basis @ middle @ basis.T
        S, D = rotations.block_diagonalize(U)
        below = np.abs(np.diag(D, -1)) > 0
        in_blocks = not ((below[1:] & below[:-1]).any() or np.tril(D, -2).any() or np.triu(D, 2).any())
        require(in_blocks, "D has a block larger than 2")
        yield max(relative_error(S @ D @ S.T, U), relative_error(S @ S.T, np.eye(7))), ROUNDING


@claim(
    id="hm.claim_C.2",
    source="Hardt & Ma, Claim C.2",
    statement="‖AB‖_F ≥ σ_min(A)‖B‖_F for square or tall A",
    hypotheses={"square or tall A": lambda: linear_residual.product_lower_bound(np.eye(1, 2), np.ones((2, 1))) > 0},
    function=linear_residual.product_lower_bound,
    mutation=(vanishing, larger),
    relation="≥",
)
def claim_c_2(rng: np.random.Generator, trials: int) -> Pairs:
    """‖AB‖_F against σ_min(A)‖B‖_F, A square or tall; and equality if B's columns are A's last singular vector."""
    for _ in range(10 * trials):
        columns = int(rng.integers(1, 6))
        A = rng.standard_normal((columns + int(rng.integers(0, 3)), columns))
        B = rng.standard_normal((columns, 4))
        yield np.linalg.norm(A @ B) * (1 + ROUNDING), linear_residual.product_lower_bound(A, B)
        last = np.outer(np.linalg.svd(A)[2][-1], B[0])
        yield linear_residual.product_lower_bound(A, last), np.linalg.norm(A @ last) * (1 - ROUNDING)
    wide = np.array([[1.0, 0.0]])
    orthogonal = np.array([[0.0], [1.0]])
    return f"not for wide A: A = [1 0], B = [0 1]ᵀ has ‖AB‖ = {np.linalg.norm(wide @ orthogonal):.0f} < 1"
