"""Rows of Hardt & Ma §1, §2 and appendices A and C: linear residual networks."""

from theory.checks import convergence, factorization, linear
from theory.claim import Claim

ROWS = [
    Claim(
        id="hm.claim_2.3",
        source="Hardt & Ma, Claim 2.3",
        statement="f(A) = ‖EΣ^½‖²_F + C for every symmetric root Σ^½, of which there are several; on a sample R is W*",
        verdict="holds",
        proof="complete",
        our_text="the minus sign of R and the root of Σ",
        function="linear_residual.risk",
        check=linear.claim_2_3,
        test="theory/test_linear_residual.py::test_claim_2_3_the_risk_is_the_mean_squared_excess_error_of_the_examples",
    ),
    Claim(
        id="hm.lemma_2.4",
        source="Hardt & Ma, Lemma 2.4",
        statement="∇f exists in closed form: two dense products a layer around EΣ",
        verdict="holds",
        proof="repaired: the last line of A.2 has its factors in reverse, the line above it is right",
        our_text="the transposes",
        restates="hm.eq_2.5",
        function="linear_residual.gradient",
        check=linear.eq_2_5,
        test="theory/test_linear_residual.py::test_lemma_2_4_the_gradient_is_that_of_the_forward_pass",
    ),
    Claim(
        id="hm.eq_2.5",
        source="Hardt & Ma, (2.5), and the last line of A.2",
        statement="∂f/∂A_i = 2 (I+A_{i+1})ᵀ···(I+A_ℓ)ᵀ EΣ (I+A_1)ᵀ···(I+A_{i−1})ᵀ",
        verdict="holds",
        proof="repaired: the last line of A.2 has its factors in reverse, the line above it is right",
        our_text="the transposes",
        function="linear_residual.gradient",
        check=linear.eq_2_5,
        test=(
            "theory/test_linear_residual.py::test_the_gradient_equals_central_differences_and_fails_without_"
            "transposes_or_with_the_factors_reversed"
        ),
    ),
    Claim(
        id="hm.eq_2.3",
        source="Hardt & Ma, (2.3)",
        statement="‖∇f‖² ≥ 4ℓ(1−τ)^{2ℓ−2} σ_min(Σ)(f − C) for |||A||| ≤ τ < 1; between the two lies our product form",
        verdict="holds",
        proof="repaired: its second line does not give the third; ‖EΣ‖_F ≥ σ_min(Σ^½)‖EΣ^½‖_F does",
        our_text="ℓ, minus signs and norms",
        function="linear_residual.gradient_lower_bound",
        check=linear.eq_2_3,
        test=(
            "theory/test_linear_residual.py::test_2_3_bounds_the_squared_gradient_from_below_and_the_bound_by_"
            "layer_lies_between"
        ),
    ),
    Claim(
        id="hm.convergence",
        source="Hardt & Ma, after (2.3)",
        statement="steps η ≤ 1/L that stay in the ball multiply f − C by at most 1 − 2ηℓ(1−τ)^{2ℓ−2} σ_min(Σ)",
        verdict="holds: with a step of at most 1/L, as in the reference it cites; with a longer one it need not",
        proof="complete: by its reference, Karimi et al. 2016",
        function="linear_residual.convergence_rate_bound",
        check=convergence.descent,
        test="theory/test_claims.py::test_every_claim_holds_as_the_table_says",
    ),
    Claim(
        id="hm.theorem_2.2",
        source="Hardt & Ma, Theorem 2.2",
        statement="for τ < 1 every critical point with |||A||| ≤ τ is a global minimum",
        verdict="holds",
        proof="repaired: for a singular Σ (2.3) says nothing; ∇f = 0 gives EΣ = 0, so EΣ^½ = 0",
        function="linear_residual.gradient",
        check=linear.theorem_2_2,
        test=(
            "theory/test_linear_residual.py::test_theorem_2_2_below_radius_1_only_global_minima_are_critical_and_"
            "at_1_it_fails"
        ),
    ),
    Claim(
        id="hm.standard_parametrization",
        source="Hardt & Ma, §1.1",
        statement="in the standard parametrisation W = 0 is a bad critical point for ℓ ≥ 2",
        verdict="holds",
        proof="complete",
        our_text="ℓ",
        function="linear_residual.standard_gradient",
        check=linear.standard_critical_point,
        test=(
            "theory/test_linear_residual.py::test_the_standard_parametrisation_has_a_bad_critical_point_at_zero_"
            "and_the_residual_one_has_not"
        ),
    ),
    Claim(
        id="hm.gradients_vanish",
        source="Hardt & Ma, §1.1, “the gradients vanish only when f(A) = 0”",
        statement=(
            "for |||A||| < 1 the gradient vanishes only at zero excess risk: f = 0 without noise, f = C = d with it"
        ),
        verdict="depends on the reading: y = Rx, as in §1.1, holds; y = Rx + ξ, as in §2, it is f = C_opt",
        proof="complete",
        our_text="minus signs and norms",
        function="linear_residual.gradient",
        check=linear.gradients_vanish,
        test="theory/test_claims.py::test_every_claim_holds_as_the_table_says",
    ),
    Claim(
        id="hm.theorem_2.1",
        source="Hardt & Ma, Theorem 2.1",
        statement="det R > 0, ℓ ≥ 3γ: some A has product R and |||A||| ≤ (4π+3γ)/ℓ",
        verdict="holds",
        proof=(
            "repaired: with whole p and q the construction can miss the bound, as footnote 6 concedes (“rounding them "
            "to closest integer will change final bound of the norm by small constant factor”); polar keeps it"
        ),
        our_text="ℓ and minus signs",
        function="factorization.factorize",
        check=factorization.theorem_2_1,
        test="theory/test_paper_construction.py::test_the_printed_construction_misses_the_printed_bound_that_polar_meets",
    ),
    Claim(
        id="hm.theorem_2.1_psd",
        source="Hardt & Ma, §1.1 and A.1, semidefinite R",
        statement="for positive definite R and ℓ ≥ γ, |||A||| ≤ 3γ/ℓ",
        verdict=(
            "depends on the reading: A.1 under the theorem's det R > 0 holds; §1.1, “any symmetric positive "
            "semidefinite matrix O”, is false for diag(1, 0)"
        ),
        proof="complete",
        our_text="ℓ, minus signs",
        function="factorization.factorize",
        check=factorization.positive_definite,
        test="theory/test_factorization.py::test_for_normal_targets_the_lower_bound_is_met",
    ),
    Claim(
        id="hm.negative_determinant",
        source="Hardt & Ma, after Theorem 2.1",
        statement="det R < 0: x′ = [x, b], y′ = [y, −b] makes it positive and keeps γ",
        verdict="holds",
        proof="complete",
        our_text="the minus signs of −b, of the corner −1 and of det R′ = −det R",
        function="factorization.augment",
        check=factorization.negative_determinant,
        test=(
            "theory/test_factorization.py::test_flipping_a_label_or_adding_a_coordinate_turns_the_determinant_"
            "and_keeps_gamma"
        ),
    ),
    Claim(
        id="hm.odd_dimension",
        source="Hardt & Ma, footnote 2",
        statement="d odd, det R < 0: y → −y turns R into −R, of positive determinant and the same γ",
        verdict="holds",
        proof="complete",
        our_text="minus signs",
        function="factorization.factorize",
        check=factorization.odd_dimension,
        test="theory/test_claims.py::test_every_claim_holds_as_the_table_says",
    ),
    Claim(
        id="hm.rescaling",
        source="Hardt & Ma, after Theorem 2.1",
        statement="R can be scaled to γ = ½ log κ",
        verdict="holds",
        proof="complete",
        our_text="the roots: σ_min = 1/√κ, σ_max = √κ, γ = log √κ",
        function="factorization.rescale",
        check=factorization.rescaling,
        test="theory/test_factorization.py::test_rescaling_makes_gamma_half_the_logarithm_of_the_condition_number",
    ),
    Claim(
        id="hm.claim_A.1",
        source="Hardt & Ma, Claim A.1",
        statement="an orthogonal Q [2, 2] is W^q Λ with ‖W − I‖ = 2 sin(|θ|/2q) ≤ π/q",
        verdict="holds",
        proof="complete",
        our_text="norms and minus signs",
        function="rotations.rotation_roots",
        check=factorization.claim_a_1,
        test=(
            "theory/test_rotations.py::test_claim_a1_an_orthogonal_2_by_2_matrix_is_a_power_of_a_matrix_near_the_"
            "identity"
        ),
    ),
    Claim(
        id="hm.claim_C.1",
        source="Hardt & Ma, Claim C.1",
        statement="a real normal U is S D Sᵀ with blocks of size at most 2",
        verdict="holds",
        proof="complete",
        our_text="transposes, and the second term of Q_i",
        function="rotations.block_diagonalize",
        check=factorization.claim_c_1,
        test="theory/test_rotations.py::test_claim_c1_a_normal_matrix_is_block_diagonal_in_an_orthogonal_basis",
    ),
    Claim(
        id="hm.claim_C.2",
        source="Hardt & Ma, Claim C.2",
        statement="‖AB‖_F ≥ σ_min(A)‖B‖_F for square A",
        verdict="holds",
        proof="complete",
        our_text="norms and transposes",
        function="gradient_bounds.product_lower_bound",
        check=linear.claim_c_2,
        test="theory/test_claims.py::test_every_claim_holds_as_the_table_says",
    ),
]
