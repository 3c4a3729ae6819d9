"""Rows of Li et al., Demystifying ResNet."""

from theory.checks import hessian, networks, shortcut
from theory.claim import Claim

ROWS = [
    Claim(
        id="li.definition_1",
        source="Li et al., Definition 1, (3)",
        statement="for normal matrices the condition number is |λ|_max/|λ|_min",
        verdict="holds",
        proof="complete",
        our_text="the fractions",
        function="shortcut_hessians.condition_number_at_zero",
        check=shortcut.definition_1,
    ),
    Claim(
        id="li.definition_4",
        source="Li et al., Definition 4",
        statement="unless cM = 0, zero is a stationary point of order n − 1 and of no higher: L(tW) − L(0) ~ tⁿ",
        verdict="holds",
        proof="complete: that the order is at least n − 1; that it is no higher is ours",
        our_text="the exponent of o(‖x − x₀‖^k)",
        function="stationarity.order_of_stationarity",
        check=shortcut.definition_4,
        test="theory/test_shortcut_hessians.py::test_the_loss_leaves_zero_with_exactly_the_power_and_coefficient_of_the_leading_term",
    ),
    Claim(
        id="li.theorem_1_hypotheses",
        source="Li et al., Theorem 1, its hypotheses",
        statement=(
            "n ≥ 2: |σ_mid(z)|, |σ_post(z)| ≤ C|z| near 0; (11) also needs σ′_mid(0), σ′_post(0) and σ_pre continuous "
            "at the data"
        ),
        verdict=(
            "false: derivatives of σ_pre are asked for at 0, where it does not act; it acts on the data, where it may "
            "have a pole"
        ),
        proof="wrong: Lemma 1 differentiates σ_pre near the data",
        function="stationarity.leading_term",
        check=shortcut.hypotheses,
    ),
    Claim(
        id="li.theorem_1.1",
        source="Li et al., Theorem 1.1",
        statement="L(tW) − L(0) = c tⁿ Σ_r tr(W_n···W_1 Mᵀ) + o(tⁿ); for n ≥ 3 the Hessian at zero is 0",
        verdict="holds: given hypotheses that suffice",
        proof="complete: where σ_pre has the derivatives that Lemma 1 takes",
        function="stationarity.leading_term",
        check=shortcut.theorem_1_1,
        test="theory/test_shortcut_hessians.py::test_the_loss_leaves_zero_with_exactly_the_power_and_coefficient_of_the_leading_term",
    ),
    Claim(
        id="li.theorem_1_relu",
        source="Li et al., after Theorem 1",
        statement=(
            "with ReLU at mid or post the order is n − 1; for n = 2, all else linear, a Hessian exists at zero only if "
            "E[(y − x)|w·x|] = 0 for every w"
        ),
        verdict=(
            "depends on the reading: of ReLU itself at mid or post false, in general no Hessian exists for n = 2; of a "
            "polynomial in its place true, of another loss"
        ),
        proof="none given",
        function="stationarity.order_of_stationarity",
        check=shortcut.theorem_1_1_relu,
        test="theory/test_shortcut_hessians.py::test_with_relu_at_mid_or_post_the_loss_has_no_quadratic_form_at_zero_and_at_pre_it_has",
    ),
    Claim(
        id="li.theorem_1.2",
        source="Li et al., Theorem 1.2, (11), (19)–(21)",
        statement="n = 2: H = I_R ⊗ [0 Aᵀ; A 0], A = c (I ⊗ M) P; a strict saddle exactly if cM ≠ 0",
        verdict="holds under the paper's own caveat: “except for degenerate cases”, which are cM = 0",
        proof="complete",
        our_text="transposes; (12)'s number",
        function="stationarity.escape_from_saddle",
        check=hessian.theorem_1_2,
        test="theory/test_shortcut_hessians.py::test_zero_is_a_strict_saddle_of_the_2_shortcut_along_the_direction_of_escape",
    ),
    Claim(
        id="li.theorem_1.3",
        source="Li et al., Theorem 1.3, (13)",
        statement="n = 1: H is block Toeplitz of B and A, also with activations; zero is not stationary there",
        verdict="holds",
        proof="complete",
        function="shortcut_hessians.hessian_at_zero",
        check=hessian.theorem_1_3,
        test="theory/test_shortcut_hessians.py::test_the_hessian_is_the_index_formulas_written_as_loops",
    ),
    Claim(
        id="li.one_shortcut_growth",
        source="Li et al. §2, and after Theorem 1, citing Gray",
        statement="n = 1, linear: the condition number grows without bound in R for d ≥ 2, σ_min(M) > 0",
        verdict=(
            "depends on the reading: that it “tends to explode” and is “growing unboundedly” holds for d ≥ 2 and "
            "σ_min(M) > 0; of every network it is false: for d = 1, y = 2x it is 1 for every R"
        ),
        proof="wrong: Gray's theory needs blocks that are summable, which these are not; our lower bound shows it",
        function="shortcut_hessians.condition_number_at_zero",
        check=hessian.one_shortcut_of_the_paper,
    ),
    Claim(
        id="li.eq_7",
        source="Li et al., (7)",
        statement="∂L/∂W^{r,l} = (W_after^r W_after^{r,l})ᵀ (W Σxx − Σyx) (W_before^{r,l} W_before^r)ᵀ",
        verdict="holds",
        proof="none given",
        our_text="sub- and superscripts; (8) and (9) lost 1/m",
        function="shortcut_networks.gradient",
        check=networks.eq_7,
        test="theory/test_shortcut_networks.py::test_equation_7_is_the_gradient_of_the_loss",
    ),
    Claim(
        id="li.eq_10",
        source="Li et al., (10)",
        statement="y = W_after (W_after^{r,l} W^{r,l} W_before^{r,l} + I) W_before x for every r and l",
        verdict="holds",
        proof="none given",
        our_text="sub- and superscripts",
        function="shortcut_networks.forward",
        check=networks.eq_10,
    ),
    Claim(
        id="li.depth",
        source="Li et al. §3.2, a “(Σ(L_r − 1) + 1)-layer plain linear network”",
        statement="without shortcuts it is a plain network of Σ(L_r − 1) = nR weight matrices",
        verdict="holds: layers of neurons, as L_r is counted; weight matrices are one fewer",
        proof="none given",
        function="shortcut_networks.forward",
        check=networks.plain_depth,
    ),
    Claim(
        id="li.variance",
        source="Li et al. §4.1, “the output variance … will actually explode”",
        statement="linear, weights of variance g/d: E‖ŷ‖² = (1 + gⁿ)^R ‖x‖², doubling in every unit for Xavier's g = 1",
        verdict="holds",
        proof="none given",
        function="shortcut_networks.output_growth",
        check=networks.variance_explosion,
    ),
    Claim(
        id="li.eq_12",
        source="Li et al., (1), (12)",
        statement="n = 2: cond(H) = cond(M) at every depth if c ≠ 0, infinite where M is singular",
        verdict=(
            "depends on the reading: (1), of linear networks, holds; (12), of any activations, is false for c = 0, "
            "where H is 0 whatever M is; the paper's “degenerate cases” are of the strict saddle alone"
        ),
        proof="complete: for c ≠ 0",
        our_text="the roots",
        function="shortcut_hessians.condition_number_at_zero",
        check=hessian.eq_12,
        test="theory/test_shortcut_hessians.py::test_the_2_shortcuts_condition_number_is_that_of_m_at_every_depth_and_the_1_shortcuts_grows",
    ),
    Claim(
        id="li.eq_14",
        source="Li et al., (14)",
        statement="a 1-shortcut linear network moves as a plain one started at the identity, products to R",
        verdict=(
            "depends on the reading: with R units, as in (5), false, the products run to R; with R − 1 units, holds"
        ),
        proof="none given",
        our_text="transposes",
        function="shortcut_networks.gradient",
        check=networks.eq_14,
        test="theory/test_shortcut_networks.py::test_equation_14_the_linear_map_is_the_product_over_all_units",
    ),
    Claim(
        id="li.one_unit",
        source="Li et al. §4.2, R = 1",
        statement=(
            "one shortcut over everything changes the outputs from Y to Y − X: the loss is that of a plain network on "
            "them"
        ),
        verdict="holds",
        proof="none given",
        function="shortcut_networks.loss",
        check=networks.one_unit,
    ),
    Claim(
        id="li.eq_15",
        source="Li et al., (15)",
        statement="the best linear map is Σyx Σxx⁻¹",
        verdict="holds",
        proof="complete",
        function="shortcut_networks.least_squares_map",
        check=networks.eq_15,
        test="theory/test_shortcut_networks.py::test_equations_15_and_16_are_the_least_squares_of_scipy",
    ),
    Claim(
        id="li.eq_16",
        source="Li et al., (16)",
        statement="L_min is the same for any G with ΣxxGΣxx = Σxx, and every n-shortcut linear network reaches it",
        verdict="holds",
        proof="none given",
        function="shortcut_networks.minimum_loss",
        check=networks.eq_16,
        test="theory/test_shortcut_networks.py::test_equation_16_holds_for_every_generalised_inverse",
    ),
]
