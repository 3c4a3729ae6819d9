"""Rows of Hardt & Ma §3 to §5 and appendix B: networks with ReLU."""

from theory.checks import memorization, relu, widths
from theory.claim import Claim

ROWS = [
    Claim(
        id="hm.lemma_3.3",
        source="Hardt & Ma, Lemma 3.3",
        statement="blocks bring any distinct points to the surrogates of their labels",
        verdict="holds",
        proof="repaired: as Lemma B.2",
        restates="hm.lemma_B.2",
        function="residual_block.transform_block",
        check=memorization.lemma_b_2,
        test="theory/test_memorization.py::test_peeling_fits_nearly_degenerate_points_in_float64",
    ),
    Claim(
        id="hm.lemma_B.1",
        source="Hardt & Ma, Lemma B.1",
        statement="a block moves k points and no other if D² > 2ρ′ with one bias per row, > 4ρ′ with one for all",
        verdict="depends on the reading: squared distances of at least 3ρ′, holds; unsquared, false for every k ≥ 2",
        proof="repaired: the bias −(1 − 2ρ′) fails at squared distance 3ρ′; one bias per row needs more than 2ρ′ only",
        our_text="norms; whether the distance is squared",
        function="residual_block.transform_block",
        check=memorization.lemma_b_1,
        test="theory/test_residual_block.py::test_a_block_moves_its_points_and_no_other_at_the_corrected_separations",
    ),
    Claim(
        id="hm.eq_B.1",
        source="Hardt & Ma, (B.1)",
        statement="⟨α_i, α_j⟩ ≤ 1 + ρ′ − D²/2",
        verdict="false: the ½ belongs to the distance too",
        proof="wrong: ⟨α_i, α_j⟩ = ½(|α_i|² + |α_j|² − |α_i − α_j|²)",
        our_text="norms and minus signs",
        function="residual_block.transform_block",
        check=memorization.eq_b_1,
        test="theory/test_residual_block.py::test_the_printed_bias_fails_where_the_corrected_one_holds",
    ),
    Claim(
        id="hm.lemma_B.2",
        source="Hardt & Ma, Lemma B.2",
        statement="blocks bring any distinct points to surrogates q with ⟨q, z⟩ < |z|²",
        verdict="holds under the paper's own caveat: w.h.p. over the q",
        proof=(
            "repaired: its hypothesis is not Lemma B.1's; in the order of decreasing norm, with one bias per row, none"
            " is needed"
        ),
        our_text="whether the distance is squared",
        function="residual_block.transform_block",
        check=memorization.lemma_b_2,
        test="theory/test_residual_block.py::test_one_common_bias_needs_four_rho_and_one_per_row_two",
    ),
    Claim(
        id="hm.theorem_3.2",
        source="Hardt & Ma, Theorem 3.2",
        statement="a network with kd + ⌈n/k⌉(2k²+k) + rk + r² + r parameters fits any labels of distinct points",
        verdict="holds",
        proof="repaired: Lemma B.1's bias, Lemma B.2's hypothesis and the width fail; peeling needs none of them",
        our_text="ℓ and norms",
        function="memorization.memorize",
        check=memorization.theorem_3_2,
        test="theory/test_memorization.py::test_peeling_fits_any_shape_at_any_scale",
    ),
    Claim(
        id="hm.theorem_3.2_width",
        source="Hardt & Ma, proof of Theorem 3.2",
        statement=(
            "one bias per row and k ≥ 2 ln(n²/2δ)/ln(4/(4−ρ)) are enough; k = 10 ln n/ρ² does not keep all distances"
        ),
        verdict=(
            "false: with c = 10 some distance changes by more than a factor 1 ± ρ/3; no common bias exists then, and "
            "often none per row"
        ),
        proof="wrong: Johnson–Lindenstrauss at distortion ρ/3 needs a larger c, and B.2 more than it gives",
        function="projection_width.row_bias_width",
        check=widths.paper_width,
        test="theory/test_projection_width.py::test_the_proved_width_is_enough_and_a_quarter_of_it_is_not",
    ),
    Claim(
        id="hm.projection_scale",
        source="Hardt & Ma, proof of Theorem 3.2, A₀",
        statement="entries N(0, 1/k) keep E|A₀x|² = |x|²",
        verdict="false: standard normal entries give E|A₀x|² = k|x|²",
        proof="wrong: Johnson–Lindenstrauss needs the variance 1/k",
        function="projection_width.draw_projection",
        check=widths.projection_scale,
    ),
    Claim(
        id="hm.distortion",
        source="Hardt & Ma, proof of Theorem 3.2, ρ(1 − ρ/3) ≥ 2ρ/3",
        statement="for ρ ≤ 1; Lemma B.1's own bias needs a distortion of at most ρ/(6 + ρ), one bias per row ρ/(2 + ρ)",
        verdict=(
            "depends on the reading: ρ ≤ 1, which one may assume, holds; ρ the least squared distance, up to 4, false"
        ),
        proof="repaired: 2ρ′ of Lemma B.2 is not 3ρ′ of Lemma B.1",
        function="projection_width.largest_distortion",
        check=widths.distortion,
    ),
    Claim(
        id="hm.surrogates",
        source="Hardt & Ma §3, “if k > 4 log r”",
        statement="r random unit vectors in R^k have (r(r−1)/4) I_{3/4}((k−1)/2, ½) pairs with ⟨q, q′⟩ ≥ ½ on average",
        verdict="false: r = 1,000 has 1,435 such pairs at k = 28, 218 at k = 40",
        proof="none given",
        function="projection_width.correlated_pairs",
        check=widths.close_surrogates,
    ),
    Claim(
        id="hm.last_layer",
        source="Hardt & Ma §3, A_{ℓ+1} ∈ R^{k×r}, ŷ ∈ R^k, and B, ŷ = h + T(h)",
        statement="the last block has U [r, k], V [r, r], s [r] and no shortcut; its count kr + r² omits the r biases",
        verdict="false: misprints; A_{ℓ+1} is [r, k] and ŷ = T(h) ∈ R^r, as the text before has it",
        proof="wrong: Lemma B.1, with k × k matrices, does not apply to r ≠ k",
        function="memorization.memorize",
        check=memorization.last_layer,
        test="theory/test_memorization.py::test_more_labels_than_twice_the_width_still_fit",
    ),
    Claim(
        id="hm.table_1",
        source="Hardt & Ma, Table 1",
        statement="55 convolutions, 13,538,736 weights",
        verdict="holds",
        proof="none given",
        function="table_1.count_weights",
        check=widths.weights_of_table_1,
    ),
    Claim(
        id="hm.parameters",
        source="Hardt & Ma §4.1, “13.59 million trainable parameters”",
        statement=(
            "Table 1 has 13.54 million; 13.59 needs biases and 1 × 1 convolutions as shortcuts, which the paper has not"
        ),
        verdict="false: of Table 1",
        proof="none given",
        function="table_1.count_weights",
        check=widths.weights_of_the_text,
    ),
    Claim(
        id="hm.section_5",
        source="Hardt & Ma, §5, conjecture taken literally",
        statement="x + V ReLU(Ux) has critical points with |||A||| ≤ τ < 1 that are no global minima, for any small τ",
        verdict=(
            "depends on the reading: every critical point in the ball is a global minimum, false; another analogue of "
            "Theorem 2.2, open"
        ),
        proof="none given",
        function="relu_search.swapped_blocks",
        check=relu.section_5,
        test="theory/test_relu_search.py::test_swapped_blocks_end_in_a_bad_local_minimum_of_the_population_at_every_small_radius",
    ),
]
