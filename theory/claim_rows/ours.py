"""Rows of what is in none of the papers."""

from theory.checks import factorization, hessian, widths
from theory.claim import Claim

ROWS = [
    Claim(
        id="ours.polar",
        source="not in the papers",
        statement="|||A||| ≤ 2 sin(π/2ℓ) + e^{γ/ℓ} − 1 for every ℓ ≥ 1, all layers of one norm",
        verdict="holds",
        proof="complete",
        function="factorization.factorize",
        check=factorization.polar_bound,
        test="theory/test_factorization.py::test_polar_layers_multiply_to_r_are_all_of_one_norm_and_keep_within_the_bound",
    ),
    Claim(
        id="ours.norm_lower_bound",
        source="not in the papers",
        statement="|||A||| ≥ |exp((log(|Rx|/|x|) + i·angle(x, Rx))/ℓ) − 1| for every factorisation, every x ≠ 0",
        verdict="holds",
        proof="complete",
        function="factorization.norm_lower_bound",
        check=factorization.norm_lower_bound,
        test="theory/test_factorization.py::test_no_factorisation_goes_below_the_lower_bound",
    ),
    Claim(
        id="ours.polar_ratio",
        source="not in the papers",
        statement=(
            "polar's norm over the lower bound is at most (φ + γ)/max(γ, min(φ, π/2)) ≤ 3 as ℓ → ∞, φ the largest "
            "angle of Q"
        ),
        verdict="holds",
        proof="complete",
        function="factorization.norm_lower_bound",
        check=factorization.polar_ratio,
    ),
    Claim(
        id="ours.one_shortcut_growth",
        source="not in the paper",
        statement="n = 1, linear, d ≥ 2: cond(H) ≥ R λ_max(Sxx)/σ_min(M)",
        verdict="holds",
        proof="complete",
        function="shortcut_hessians.condition_number_lower_bound",
        check=hessian.one_shortcut_growth,
        test="theory/test_shortcut_hessians.py::test_the_lower_bound_on_the_1_shortcuts_condition_number_holds",
    ),
    Claim(
        id="ours.pair_law",
        source="not in the papers",
        statement="P(⟨z_i, z_j⟩ ≥ |z_i|²) = P(Student-t_k ≥ √(k(1−c)/(1+c))) for unit x of inner product c",
        verdict="holds",
        proof="complete",
        function="projection_width.pair_failure_probability",
        check=widths.pair_law,
        test="theory/test_projection_width.py::test_a_pair_fails_as_often_as_students_law_says",
    ),
]
