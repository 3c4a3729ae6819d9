"""Rows of ours on the time that an n-shortcut network stays at zero, beside Li et al., Theorem 1."""

from theory.checks import saddle_escape
from theory.claim import Claim

ROWS = [
    Claim(
        id="ours.saddle_order",
        source="ours, beside Li et al., Theorem 1",
        statement="to leave zero descent needs ∫dN/Nⁿ⁻¹/(ηg) steps, momentum (1 − μ) times it, orthogonalised ΔN/η",
        verdict="holds",
        proof="complete",
        function="saddle_escape.least_steps",
        check=saddle_escape.order,
        test="theory/test_saddle_escape.py::test_at_exactly_zero_nothing_moves_but_the_1_shortcut",
    ),
    Claim(
        id="ours.saddle_time",
        source="ours, beside Li et al., Theorem 1",
        statement="aligned starts w leave zero in 1, log(1/w), 1/w for n = 1, 2, 3; orthogonalised in (w₁ − w)/η",
        verdict="holds",
        proof="complete",
        function="saddle_escape.predicted_steps",
        check=saddle_escape.prediction,
        test="theory/test_saddle_escape.py::test_the_predicted_steps_are_those_that_are_measured",
    ),
]
