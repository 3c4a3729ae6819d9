"""The weights of Table 1, counted again from the shapes of its convolutions."""

import pytest

from theory.relu.table_1 import count_weights


@pytest.mark.parametrize(
    "biases, projections, extra", [(True, False, 16 + 18 * (64 + 128 + 256)), (False, True, 1024 + 8192 + 32768)]
)
def test_biases_and_projections_add_what_they_have(biases, projections, extra):
    count = count_weights(biases, projections)
    assert count.weights == 13_538_736 + extra
    assert count.convolutions == (58 if projections else 55)
