"""Rows of the review and of the blog, which restate Hardt & Ma."""

from theory.checks import convergence, factorization, linear, memorization
from theory.claim import Claim

ROWS = [
    Claim(
        id="review.theorem_1",
        source="review, Theorem 1",
        statement="free critical points inside the ball are minima, KKT points on its boundary need not be",
        verdict="holds: of critical points of f(·), as it says; KKT points of its constrained problem need not be",
        proof="none given",
        function="linear_residual.stationarity_in_ball",
        check=convergence.review_theorem_1,
        test=(
            "theory/test_linear_residual.py::test_the_constrained_problem_has_stationary_points_on_the_boundary_"
            "that_are_no_minima"
        ),
    ),
    Claim(
        id="review.theorem_2",
        source="review, Theorem 2",
        statement="Theorem 2.1 as Hardt & Ma state it",
        verdict="holds",
        proof="none given",
        restates="hm.theorem_2.1",
        function="factorization.factorize",
        check=factorization.theorem_2_1,
        test="theory/test_paper_construction.py::test_the_printed_construction_misses_the_printed_bound_that_polar_meets",
    ),
    Claim(
        id="review.eq_6",
        source="review, (6)",
        statement="‖∇f‖² ≥ 4ℓ(1−τ)^{2ℓ−2} (σ_min²/σ_max)(f − C), not σ_min²",
        verdict="false: σ_min(Σ)² where σ_min(Σ) stands in (2.3)",
        proof="none given",
        function="gradient_bounds.smallest_counterexample",
        check=convergence.review_eq_6,
        test="theory/test_linear_residual.py::test_the_reviews_inequality_6_fails_on_whole_numbers_and_2_3_does_not",
    ),
    Claim(
        id="review.convergence",
        source="review, “gradient descent is guaranteed to converge”",
        statement="steps η ≤ 1/L that stay in the ball multiply f − C by at most 1 − 2ηℓ(1−τ)^{2ℓ−2} σ_min(Σ)",
        verdict="depends on the reading: with a step of at most 1/L, holds; as it stands, with any step, false",
        proof="none given",
        function="linear_residual.convergence_rate_bound",
        check=convergence.descent,
        test="theory/test_claims.py::test_every_claim_holds_as_the_table_says",
    ),
    Claim(
        id="review.last_layer",
        source="review, last layer",
        statement="the last block has U [r, k], V [r, r], s [r]: not V [k, k]",
        verdict="false: V is [r, r]",
        proof="none given",
        function="memorization.memorize",
        check=memorization.last_layer,
        test="theory/test_memorization.py::test_more_labels_than_twice_the_width_still_fit",
    ),
    Claim(
        id="review.theorem_3",
        source="review, Theorem 3",
        statement="the points must be distinct (ρ > 0, not ρ ≥ 0), and that is enough",
        verdict="false: at ρ = 0 one point may have two labels",
        proof="none given",
        function="memorization.memorize",
        check=memorization.review_theorem_3,
        test="theory/test_memorization.py::test_equal_points_with_equal_labels_are_merged",
    ),
    Claim(
        id="blog.theorem_1",
        source="blog, Theorem 1",
        statement="Theorem 2.2 as Hardt & Ma state it",
        verdict="holds",
        proof="none given",
        restates="hm.theorem_2.2",
        function="linear_residual.gradient",
        check=linear.theorem_2_2,
        test=(
            "theory/test_linear_residual.py::test_theorem_2_2_below_radius_1_only_global_minima_are_critical_and_"
            "at_1_it_fails"
        ),
    ),
    Claim(
        id="blog.theorem_2",
        source="blog, Theorem 2",
        statement="Theorem 3.2 as Hardt & Ma state it",
        verdict="holds",
        proof="none given",
        restates="hm.theorem_3.2",
        function="memorization.memorize",
        check=memorization.theorem_3_2,
        test="theory/test_memorization.py::test_peeling_fits_any_shape_at_any_scale",
    ),
    Claim(
        id="blog.note_4",
        source="blog, note 4, on Theorem 2.1",
        statement="det R > 0, ℓ ≥ 3γ: some global minimum has |||A||| ≤ (4π+3γ)/ℓ; for det R < 0 all have |||A||| > 1",
        verdict="false: det R > 0 is missing; with det R < 0 no γ will do from ℓ = 4π + 3γ on",
        proof="none given",
        function="factorization.factorize",
        check=factorization.blog_note_4,
        test="theory/test_factorization.py::test_layers_of_norm_below_1_have_a_product_of_positive_determinant",
    ),
    Claim(
        id="blog.convergence",
        source="blog, note 5, “does guarantee convergence”",
        statement="steps η ≤ 1/L that stay in the ball multiply f − C by at most 1 − 2ηℓ(1−τ)^{2ℓ−2} σ_min(Σ)",
        verdict="holds: with a step of at most 1/L, as in the paper's reference, to which it points",
        proof="none given",
        restates="hm.convergence",
        function="linear_residual.convergence_rate_bound",
        check=convergence.descent,
        test="theory/test_claims.py::test_every_claim_holds_as_the_table_says",
    ),
]
