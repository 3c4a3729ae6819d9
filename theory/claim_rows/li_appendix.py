"""Rows of Li et al., appendix A: the Hessian at zero."""

from theory.checks import hessian
from theory.claim import Claim

ROWS = [
    Claim(
        id="li.eq_18",
        source="Li et al., (18)",
        statement="n = 2, linear: R copies of the d² values ±σ(A): ±σ_i(M), each sign d·R times",
        verdict="holds",
        proof="complete",
        function="shortcut_hessians.spectrum_at_zero",
        check=hessian.eq_18,
        test="theory/test_shortcut_hessians.py::test_equations_18_and_22_the_spectrum_is_that_of_the_matrix_with_its_multiplicities",
    ),
    Claim(
        id="li.eq_22",
        source="Li et al., (22)",
        statement="n = 2, activations: R copies of ±σ(A): ±|c|σ_i(M), each sign d·R times",
        verdict="holds",
        proof="complete",
        function="shortcut_hessians.spectrum_at_zero",
        check=hessian.eq_22,
        test="theory/test_shortcut_hessians.py::test_equations_18_and_22_the_spectrum_is_that_of_the_matrix_with_its_multiplicities",
    ),
    Claim(
        id="li.eq_25",
        source="Li et al., (25)",
        statement="n = 1, linear: B = P (I ⊗ Sxx) Pᵀ = Sxx ⊗ I",
        verdict="holds",
        proof="complete",
        function="shortcut_hessians.hessian_at_zero",
        check=hessian.eq_25,
        test="theory/test_shortcut_hessians.py::test_the_hessian_equals_differences_of_a_forward_pass",
    ),
    Claim(
        id="li.eq_28",
        source="Li et al., (28)",
        statement="n = 1, linear: A = (I ⊗ M) Pᵀ + B, its row the later unit",
        verdict="holds",
        proof="complete",
        function="shortcut_hessians.hessian_at_zero",
        check=hessian.eq_28,
        test="theory/test_shortcut_hessians.py::test_the_hessian_equals_differences_of_a_forward_pass",
    ),
    Claim(
        id="li.lemma_1",
        source="Li et al., Lemma 1",
        statement="an n-th derivative at zero is nonzero only in one weight of each layer of one unit",
        verdict="holds",
        proof="complete: where σ_pre has the derivatives that it takes",
        our_text="sub- and superscripts",
        function="shortcut_networks.loss",
        check=hessian.lemma_1,
    ),
    Claim(
        id="li.lemma_2",
        source="Li et al., Lemma 2",
        statement="second derivatives at zero do not change when the units are moved",
        verdict="holds",
        proof="complete",
        our_text="w₂′ is in unit 1 + [r₁ ≠ r₂], not r₁ = r₂",
        function="shortcut_hessians.hessian_at_zero",
        check=hessian.lemma_2,
    ),
]
