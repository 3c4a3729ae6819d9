"""Rows of Arora, Cohen & Hazan 2018 and Arora, Cohen, Golowich & Hu 2019, and of ours beside them."""

from theory.checks import balancedness
from theory.claim import Claim
from theory.claim_rows.wording import OUR_PROOF, RESTATED

ROWS = [
    Claim(
        id="ach.theorem_1",
        source="Arora, Cohen & Hazan 2018, Theorem 1",
        statement="balanced layers, flow: dW/dt = −Σ_j (WWᵀ)^{(ℓ−j)/ℓ} ∂f/∂W (WᵀW)^{(j−1)/ℓ}",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="balancedness.product_velocity",
        check=balancedness.velocity,
        test="theory/test_balancedness.py::test_the_velocity_is_that_of_two_layers_written_out",
    ),
    Claim(
        id="ach.claim_1",
        source="Arora, Cohen & Hazan 2018, Claim 1",
        statement="depth acts as the preconditioner P_W with eigenvalues Σ_j σ_r^{2(ℓ−j)/ℓ} σ_s^{2(j−1)/ℓ}",
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="balancedness.preconditioner",
        check=balancedness.preconditioner,
        test="theory/test_balancedness.py::test_the_preconditioner_is_the_velocity_as_a_matrix_and_is_identity_for_one_layer",
    ),
    Claim(
        id="acgh.margin",
        source="Arora, Cohen, Golowich & Hu 2019, Definition 2",
        statement=(
            "Σ = I: σ_min(W) ≥ c = σ_min(R) − ‖W₀ − R‖_F while f does not rise; with it rate 1 − 2ηℓc^{2−2/ℓ} (ours)"
        ),
        verdict=RESTATED,
        proof=OUR_PROOF,
        function="balancedness.deficiency_margin",
        check=balancedness.deficiency,
        test="theory/test_balancedness.py::test_the_margin_is_met_by_the_nearest_deficient_direction_and_bounds_the_descent",
    ),
    Claim(
        id="ours.margin_bound",
        source="ours, beside (2.3) and Arora et al. 2019",
        statement="balanced layers, Σ = I: ‖∇f‖² ≥ 4ℓσ_min(W)^{2−2/ℓ}(f − C), never below (2.3)",
        verdict="holds",
        proof="complete",
        function="balancedness.margin_bound",
        check=balancedness.margin,
        test="theory/test_balancedness.py::test_the_margin_bound_is_the_bound_by_layer_for_balanced_layers_and_no_bound_for_others",
    ),
    Claim(
        id="ours.imbalance_drift",
        source="ours, beside Arora, Cohen & Hazan 2018",
        statement="a step of descent adds exactly η²(G_{i+1}ᵀG_{i+1} − G_iG_iᵀ) to N_{i+1}ᵀN_{i+1} − N_iN_iᵀ",
        verdict="holds",
        proof="complete",
        function="balancedness.imbalance_drift",
        check=balancedness.conservation,
        test="theory/test_balancedness.py::test_a_step_of_descent_adds_exactly_the_drift_and_flow_adds_none",
    ),
    Claim(
        id="ours.drift_bound",
        source="ours, beside Arora, Cohen & Hazan 2018",
        statement="over any number of steps with η ≤ 1/L it moves by 2η(f(0) − f(T)) at most in nuclear norm",
        verdict="holds",
        proof="complete",
        function="balancedness.drift_bound",
        check=balancedness.drift,
        test="theory/test_balancedness.py::test_the_drift_of_a_whole_descent_stays_below_twice_the_rate_times_the_fall_of_the_risk",
    ),
]
