"""Rows of Hardt & Ma §3 to §5 and appendix B: networks with ReLU."""

from theory.checks import memorization, relu
from theory.claim import Claim

ROWS = [
    Claim(
        id="hm.lemma_3.3",
        source="Hardt & Ma, Lemma 3.3",
        statement="blocks bring any distinct points to the surrogates of their labels",
        verdict="holds",
        proof="repaired: as Lemma B.2",
        restates="hm.lemma_B.2",
        function="memorization.memorize",
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
        test="theory/test_memorization.py::test_a_block_moves_its_points_and_no_other_at_the_corrected_separations",
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
        test="theory/test_memorization.py::test_the_printed_bias_fails_where_the_corrected_one_holds",
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
        function="memorization.memorize",
        check=memorization.lemma_b_2,
        test="theory/test_memorization.py::test_one_common_bias_needs_four_rho_and_one_per_row_two",
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
            "one bias per row and k ≥ 2 ln(n²/2δ)/ln(4/(4−ρ)) are enough; a common bias and k = 10 ln n/ρ² are not"
        ),
        verdict="false: “c = 10 works” does not, for one bias a block or for one per row",
        proof="wrong: Johnson–Lindenstrauss at distortion ρ/3 needs a larger c, and B.2 more than it gives",
        function="projection_width.row_bias_width",
        check=memorization.paper_width,
        test="theory/test_memorization.py::test_the_proved_width_is_enough_and_a_quarter_of_it_is_not",
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
        test=(
            "theory/test_relu_search.py::test_swapped_blocks_end_in_a_bad_local_minimum_of_the_population_at_"
            "every_small_radius"
        ),
    ),
]
