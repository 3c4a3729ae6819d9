"""Rows of what is known since both papers: what gradient descent does with identity parametrisations."""

from theory.checks import descent
from theory.claim import Claim
from theory.claim_rows.wording import OUR_PROOF, RESTATED

BARTLETT = "Bartlett, Helmbold & Long 2018"
ZOU = "Zou, Long & Gu 2020"

ROWS = [
    Claim(
        id="bhl.recursion",
        source=f"{BARTLETT}, symmetric targets",
        statement="from zero, Σ = I, all layers stay equal; each eigenvalue moves alone, λ ← λ − ηλ̄^{ℓ−1}(λ^ℓ − φ)",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="descent.recursion_risks",
        check=descent.recursion,
        test="theory/test_descent.py::test_the_recursion_is_gradient_descent_to_rounding",
    ),
    Claim(
        id="bhl.positive_definite",
        source=f"{BARTLETT}, positive definite targets",
        statement="descent from zero needs poly(ℓ, κ, log(d/ε)) steps; ours: κ^{2−2/ℓ} log(…) + 1, bounded in ℓ",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="descent.step_bound",
        check=descent.steps,
        test="theory/test_descent.py::test_the_step_bound_does_not_grow_with_the_depth",
    ),
    Claim(
        id="bhl.negative_eigenvalue",
        source=f"{BARTLETT}, a negative eigenvalue",
        statement="for symmetric R descent from zero does not fall below excess Σ_{φ<0} φ² and tends to it, ℓ ≥ 2",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="descent.excess_floor",
        check=descent.floor,
        test="theory/test_descent.py::test_minus_identity_has_a_small_solution_that_descent_does_not_find",
    ),
    Claim(
        id="bhl.asymmetric",
        source=f"{BARTLETT}, uᵀRu > 0",
        statement="descent with balanced layers and a product projected on uᵀWu ≥ γ|u|² reaches R; rates not checked",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="descent.project_positive",
        check=descent.projected,
        test="theory/test_descent.py::test_balanced_projected_descent_keeps_its_layers_balanced_and_its_product_positive",
    ),
    Claim(
        id="zlg.theorem_3.1",
        source=f"{ZOU}, Theorem 3.1",
        statement=(
            "Σ = I, fixed maps A, B, √f(0) ≤ μ_A²μ_B²/(4e^{3/2}‖A‖‖B‖): f shrinks by 1 − 2ηℓμ_A²μ_B²/e (our constants)"
        ),
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="widened_descent.guarantee",
        check=descent.widened_rate,
        test="theory/test_widened_descent.py::test_minus_identity_is_reached_from_zero_at_the_guaranteed_rate",
    ),
    Claim(
        id="ours.widened_gradient_bound",
        source="ours, beside (2.3)",
        statement="‖∇f‖² ≥ 4ℓ μ_A² μ_B² (1−τ)^{2ℓ−2} σ_min(Σ) f with fixed maps A and B around the network",
        verdict="holds",
        proof="complete",
        function="widened_descent.gradient_lower_bound",
        check=descent.widened_bound,
        test="theory/test_widened_descent.py::test_the_gradient_equals_central_differences",
    ),
    Claim(
        id="ours.monotone_descent",
        source=f"ours, beside {BARTLETT}",
        statement="no λ crosses its root exactly up to η = 1/max(Σ_k φ^{k/ℓ}, ℓφ^{2−2/ℓ}), for φ < 0, ℓ ≥ 2 1/(1 − φ)",
        verdict="holds",
        proof="complete",
        function="descent.largest_learning_rate",
        check=descent.monotone,
        test="theory/test_descent.py::test_the_contraction_lies_between_its_ends_and_meets_them",
    ),
    Claim(
        id="ours.singular_target",
        source=f"ours, beside {BARTLETT}",
        statement="an eigenvalue 0 adds at most (1 + 2(ℓ−1)ηt)^{−ℓ/(ℓ−1)} after t steps",
        verdict="holds",
        proof="complete",
        function="descent.singular_risk_bound",
        check=descent.singular,
        test="theory/test_descent.py::test_a_singular_target_is_reached_at_the_bound_s_polynomial_rate",
    ),
    Claim(
        id="ours.straight_line",
        source=f"ours, beside {BARTLETT}",
        statement="normal R: under the flow λ^ℓ goes straight from 1 to φ; with ℓ ≥ 2 it fails exactly for negative φ",
        verdict="holds",
        proof="complete",
        function="descent.distance_to_zero",
        check=descent.straight_line,
        test="theory/test_descent.py::test_the_recursion_holds_for_rotations_with_complex_eigenvalues",
    ),
]
