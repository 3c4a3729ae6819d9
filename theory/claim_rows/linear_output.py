"""Rows of Shamir 2018 and Kawaguchi & Bengio 2019, and of ours on Hardt & Ma §5 beside them."""

from theory.checks import linear_output
from theory.claim import Claim
from theory.claim_rows.wording import OUR_PROOF, RESTATED

ROWS = [
    Claim(
        id="sh.local_minima",
        source="Shamir 2018; Kawaguchi & Bengio 2019",
        statement="W(x + V f), r ≤ d: a local minimum in (W, V) has the risk of the best predictor linear in (x, f)",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="linear_output.local_minimum_risk",
        check=linear_output.local_minima,
        test="theory/test_linear_output.py::test_a_bad_critical_point_is_left_downhill_and_a_global_one_is_not",
    ),
    Claim(
        id="kb.chain",
        source="Kawaguchi & Bengio 2019, beside Hardt & Ma §5",
        statement="relu_search's minima with an output W: the best predictors linear in (h, f) of the last block",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="linear_output.local_minimum_risk",
        check=linear_output.chain,
        test="theory/test_linear_output.py::test_minima_of_the_search_with_a_trained_output_are_the_best_in_their_last_block",
    ),
    Claim(
        id="ours.ball_risk",
        source="ours, beside Hardt & Ma §5",
        statement="ReLU student and teacher in B_τ: f ≤ 4((1 + τ²)^ℓ − 1)² E‖x‖², near 4ℓ²τ⁴E‖x‖², at any width",
        verdict="holds",
        proof="complete",
        function="linear_output.ball_risk_bound",
        check=linear_output.ball,
        test="theory/test_linear_output.py::test_the_bounds_in_the_ball_are_of_order_4_and_8",
    ),
    Claim(
        id="ours.reordering_risk",
        source="ours, beside Hardt & Ma §5",
        statement="bad minima at a reordered teacher: f ≤ 4((1 + τ²)^ℓ − 1 − ℓτ²)² E‖x‖², order τ⁸; others keep f/f(0)",
        verdict="holds",
        proof="complete",
        function="linear_output.reordering_risk_bound",
        check=linear_output.regrouped,
        test="theory/test_linear_output.py::test_the_swapped_minimum_falls_like_the_eighth_power_and_a_one_block_minimum_like_the_fourth",
    ),
]
